"""Deadlines: each task has its time and no more, and one timer serves all of them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.deadlines import Deadlines

WAIT_SECONDS = 20.0  # for what must come about at all


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


class Clock:
    """A loop's time that passes when it is told to, and its timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.set = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, act: Callable[[], None]) -> object:
        self.set += 1
        self.timers.append((when, act))
        return act

    def call_later(self, seconds: float, act: Callable[[], None]) -> object:
        return self.call_at(self.now + seconds, act)

    def pass_to(self, now: float) -> None:
        """Let time pass, and each timer go off when it is due."""
        while due := [timer for timer in self.timers if timer[0] <= now]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = now


class Task:
    """A task that only notes when it was cancelled."""

    def __init__(self, clock: Clock) -> None:
        self.cancelled_at: float | None = None
        self._clock = clock

    def cancel(self) -> None:
        assert self.cancelled_at is None, "once is enough"
        self.cancelled_at = self._clock.now


def test_a_late_task_is_cancelled_and_told_why() -> None:
    """A task whose time is over is cancelled; its end says so, once."""

    async def scenario() -> None:
        deadlines = Deadlines(0.05)

        async def work() -> list[bool]:
            task = asyncio.current_task()
            assert task is not None
            deadlines.begin(task)
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                task.uncancel()
                return [deadlines.end(task), deadlines.end(task)]
            raise AssertionError("nothing else ends it")

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        assert await asyncio.gather(*tasks) == [[True, False]] * 3

    run(scenario)


def test_who_is_cancelled_by_another_is_not_late() -> None:
    """A task that is cancelled for another reason is not said to be late, nor later cancelled."""

    async def scenario() -> None:
        deadlines = Deadlines(0.05)

        async def work() -> bool:
            task = asyncio.current_task()
            assert task is not None
            deadlines.begin(task)
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                late = deadlines.end(task)
                await asyncio.sleep(0.1)  # past its former deadline
                return late
            raise AssertionError("nothing else ends it")

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        assert await task is False

    run(scenario)


def test_a_task_that_ended_is_let_go() -> None:
    """Nothing is kept of a task that ended in time, however long its time would have been."""

    async def scenario() -> None:
        deadlines = Deadlines(3_600)

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            deadlines.begin(task)
            await asyncio.sleep(0)
            assert not deadlines.end(task)

        task = asyncio.create_task(work())
        ended = weakref.ref(task)
        await task
        del task
        await asyncio.sleep(0)  # the loop has it until then
        gc.collect()
        assert ended() is None

    run(scenario)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30) | st.none()), max_size=40))
def test_each_has_its_time_and_no_more(lives: list[tuple[int, int | None]]) -> None:
    """Tasks that begin and end at any times are cancelled where they outlast their own deadline."""
    seconds = 10
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(asyncio, "get_running_loop", lambda: clock)
        deadlines: Any = Deadlines(seconds)
        begun = clock.now
        events: list[tuple[float, int, int]] = []
        for number, (pause, length) in enumerate(lives):
            begun += pause
            events.append((begun, 0, number))
            if length is not None:
                events.append((begun + length, 1, number))
        tasks = [Task(clock) for _ in lives]
        late: dict[int, bool] = {}
        for when, ends, number in sorted(events):
            clock.pass_to(when)
            if ends:
                late[number] = deadlines.end(tasks[number])
            else:
                deadlines.begin(tasks[number])
            assert len(clock.timers) <= 1, "one timer is for all"
        clock.pass_to(begun + 2 * seconds)
        for when, ends, number in events:
            if ends:
                continue
            length = lives[number][1]
            if length is not None and length < seconds:
                assert tasks[number].cancelled_at is None
                assert late[number] is False
            elif length is None or length > seconds:
                assert tasks[number].cancelled_at == when + seconds
                assert late.get(number, True) is True
        assert clock.timers == [], "nothing goes off for nobody"
        assert deadlines._due == {}


def test_many_tasks_need_few_timers() -> None:
    """Ten thousand tasks that begin and end within one deadline set no more than two timers."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(asyncio, "get_running_loop", lambda: clock)
        deadlines: Any = Deadlines(10)
        for number in range(10_000):
            clock.pass_to(100 + number / 1_000)
            task = Task(clock)
            deadlines.begin(task)
            assert not deadlines.end(task)
        clock.pass_to(200)
        assert clock.set <= 2
