"""Lanes: what gathers goes out together, and nothing that happens to one ask touches another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from actors.calls import Answer, BoardLostError
from actors.errors import Refusal
from actors.questions import Ask, Describe, Reply, Top, decode_asks, encode
from node import board_client
from node.board_client import Lane, LaneLimits

WAIT_SECONDS = 20  # for what comes at once; longer means it never does
LIMITS = LaneLimits(
    queue_items_max=1_000, queue_bytes_max=1 << 20, call_items_max=1_000, call_entries_max=1_000
)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(board_client, "RETRY_SECONDS", 0.0)


class Board:
    """The far side of a lane: answers each ask with its number, as the test wants.

    payloads: every call's bytes. failures: what the next calls raise. refused: numbers that get a
    refusal, with `code`. While it is held, a call waits.
    """

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.failures: list[Exception] = []
        self.refused: set[int] = set()
        self.code = "member_not_found"
        self._going = asyncio.Event()
        self._going.set()
        self._called = asyncio.Semaphore(0)

    def hold(self) -> None:
        self._going.clear()

    def go(self) -> None:
        self._going.set()

    async def called(self) -> None:
        """Return when the next call has come."""
        await self._called.acquire()

    async def send(self, payload: bytes) -> Answer:
        self.payloads.append(payload)
        self._called.release()
        await self._going.wait()
        if self.failures:
            raise self.failures.pop(0)
        return Answer(encode([self._answer(number) for number in numbers(payload)]), 7, 9)

    def _answer(self, number: int) -> Reply:
        if number in self.refused:
            return Reply(b"", self.code, "nobody", {"number": number})
        return Reply(b"%d" % number)


def numbers(payload: bytes) -> list[int]:
    return [ask.min_sequence for ask in decode_asks(payload)]


def ask(number: int) -> Ask:
    """Make an ask that is told from others by its number."""
    return Ask(number, Describe(False, 0))


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def body_of(lane: Lane, ask: Ask) -> bytes:
    return (await lane.ask(ask)).body


def asking(lane: Lane, *asked: int) -> list[asyncio.Task[bytes]]:
    return [asyncio.create_task(body_of(lane, ask(number))) for number in asked]


async def behind_a_call(
    lane: Lane, board: Board, count: int
) -> tuple[asyncio.Task[bytes], list[asyncio.Task[bytes]]]:
    """Start ask 0, and when its call is held at the board, the asks 1 to `count` behind it."""
    board.hold()
    (first,) = asking(lane, 0)
    await board.called()
    others = asking(lane, *range(1, count + 1))
    await asyncio.sleep(0)
    return first, others


# Batching


def test_an_idle_lane_sends_at_once():
    """A lone ask goes out by itself, without waiting for others."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS)
        assert not lane.busy
        for number in range(3):
            assert await body_of(lane, ask(number)) == b"%d" % number
        assert list(map(numbers, board.payloads)) == [[0], [1], [2]]
        assert (lane.calls, lane.asked) == (3, 3)
        await asyncio.sleep(0)
        assert not lane.busy

    run(scenario)


@pytest.mark.parametrize(("call_items_max", "calls"), [(1_000, 2), (10, 8)])
def test_what_gathers_during_a_call_goes_out_together(call_items_max, calls):
    """64 asks with a call in flight need one more, or as few as the limit of one call allows."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS._replace(call_items_max=call_items_max))
        first, others = await behind_a_call(lane, board, 63)
        assert lane.busy
        board.go()
        answers = await asyncio.gather(first, *others)
        assert answers == [b"%d" % number for number in range(64)]
        assert (lane.calls, lane.asked) == (calls, 64)

    run(scenario)


def test_order_is_kept():
    """Asks arrive in the order in which they were asked, over any number of calls."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS._replace(call_items_max=7))
        await asyncio.gather(*asking(lane, *range(100)))
        assert [n for payload in board.payloads for n in numbers(payload)] == list(range(100))
        assert all(len(numbers(payload)) <= 7 for payload in board.payloads)

    run(scenario)


def test_lanes_do_not_wait_for_each_other():
    """Reads are answered while a write's call is in flight."""

    async def scenario():
        writes, reads = Board(), Board()
        write_lane, read_lane = Lane(writes.send, LIMITS), Lane(reads.send, LIMITS)
        first, others = await behind_a_call(write_lane, writes, 3)
        for number in range(5):
            assert await body_of(read_lane, ask(number)) == b"%d" % number
        assert not first.done()
        writes.go()
        await asyncio.gather(first, *others)

    run(scenario)


# Bounds


def test_a_full_queue_is_overloaded():
    """More asks than may wait are refused at once, those that wait are not, and room comes back."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS._replace(queue_items_max=4))
        first, others = await behind_a_call(lane, board, 4)
        with pytest.raises(Refusal) as caught:
            await lane.ask(ask(9))
        assert caught.value.code == "overloaded"
        board.go()
        assert await asyncio.gather(first, *others) == [b"0", b"1", b"2", b"3", b"4"]
        assert await body_of(lane, ask(9)) == b"9"

    run(scenario)


def test_a_call_is_bounded_in_what_it_answers():
    """Pages go out in calls of so many entries together; one that is longer goes alone."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS._replace(call_entries_max=1_000))
        board.hold()
        asked = [asyncio.create_task(body_of(lane, ask(0)))]
        await board.called()
        for number, limit in enumerate((400, 600, 1, 1_000, 1_001, 1), 1):
            top = Top(False, 0, None, None, limit, None)
            asked.append(asyncio.create_task(body_of(lane, Ask(number, top))))
        await asyncio.sleep(0)
        board.go()
        assert await asyncio.gather(*asked) == [b"%d" % number for number in range(7)]
        calls = [numbers(payload) for payload in board.payloads]
        assert calls == [[0], [1, 2], [3], [4], [5], [6]]

    run(scenario)


def test_the_queue_is_bounded_in_bytes_too():
    """Asks whose bytes together are too many are refused, and the bytes are given back."""

    async def scenario():
        size = len(encode(ask(1)))
        board = Board()
        lane = Lane(board.send, LIMITS._replace(queue_bytes_max=2 * size))
        for _ in range(3):
            first, others = await behind_a_call(lane, board, 2)
            with pytest.raises(Refusal, match="too many"):
                await lane.ask(ask(3))
            others[0].cancel()
            board.go()
            await asyncio.gather(first, *others, return_exceptions=True)
            await board.called()

    run(scenario)


# One ask's fate


def test_a_refusal_is_its_own():
    """One item's refusal reaches its caller with all it says, and no other."""

    async def scenario():
        board = Board()
        board.refused = {2}
        lane = Lane(board.send, LIMITS)
        found = await asyncio.gather(*asking(lane, 1, 2, 3), return_exceptions=True)
        assert (found[0], found[2]) == (b"1", b"3")
        assert (found[1].code, found[1].extra) == ("member_not_found", {"number": 2})

    run(scenario)


@pytest.mark.parametrize("cancelled", [0, 2])
def test_a_cancellation_is_its_own(cancelled):
    """One caller that gives up, its ask in flight or waiting, touches no other."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS)
        first, others = await behind_a_call(lane, board, 3)
        tasks = [first, *others]
        tasks[cancelled].cancel()
        await asyncio.sleep(0)
        board.go()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found.pop(cancelled), asyncio.CancelledError)
        assert found == [b"%d" % number for number in range(4) if number != cancelled]
        # What was given up while it waited is not sent.
        assert numbers(board.payloads[1]) == [n for n in (1, 2, 3) if n != cancelled]

    run(scenario)


# A board that is lost


def test_a_lost_call_is_repeated_with_the_same_bytes():
    """A call without an answer is sent again, byte by byte the same, until it is answered."""

    async def scenario():
        board = Board()
        board.failures = [BoardLostError("the process died")] * 5
        lane = Lane(board.send, LIMITS)
        first, others = await behind_a_call(lane, board, 2)
        board.go()
        assert await asyncio.gather(first, *others) == [b"0", b"1", b"2"]
        assert len(set(board.payloads[:6])) == 1
        assert list(map(numbers, board.payloads)) == [[0]] * 6 + [[1, 2]]

    run(scenario)


def test_a_repetition_waits_longer_each_time(monkeypatch):
    """Repetitions are put off twice as long each time, up to a bound."""
    waits = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    async def scenario():
        board = Board()
        board.failures = [BoardLostError("the process died")] * 8
        monkeypatch.setattr(board_client, "RETRY_SECONDS", 0.05)
        monkeypatch.setattr(board_client.asyncio, "sleep", sleep)
        assert await body_of(Lane(board.send, LIMITS), ask(1)) == b"1"
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]

    run(scenario)


def test_a_lost_call_is_repeated_only_for_those_who_wait():
    """What its callers gave up is left out of repetitions, and with the last of them they end."""

    async def scenario():
        board = Board()
        board.failures = [BoardLostError("the process died")] * 1_000_000
        lane = Lane(board.send, LIMITS)
        tasks = asking(lane, 1, 2, 3)
        for _ in range(3):
            await board.called()
        assert {tuple(numbers(payload)) for payload in board.payloads} == {(1, 2, 3)}
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.gather(tasks[0], tasks[2], return_exceptions=True)
        count = len(board.payloads)
        while len(board.payloads) < count + 3:
            await board.called()
        assert numbers(board.payloads[-1]) == [2]
        assert board.payloads[-1] == encode_list([ask(2)])
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        while lane.busy:  # noqa: ASYNC110  (the lane tells nobody that it rests)
            await asyncio.sleep(0)
        board.failures.clear()
        assert await body_of(lane, ask(4)) == b"4"

    run(scenario)


def encode_list(asks: list[Ask]) -> bytes:
    """Write a MessagePack array as lanes do, its length in four bytes."""
    return b"\xdd" + len(asks).to_bytes(4, "big") + b"".join(map(encode, asks))


# Faults


@pytest.mark.parametrize("answer", [None, b"nonsense", encode([]), encode([Reply(b"x")] * 9)])
def test_a_fault_reaches_those_who_wait_and_no_one_else(answer):
    """A call that fails, or is answered by nonsense, fails for its callers; the lane goes on."""

    async def scenario():
        board = Board()
        faulty = True

        async def send(payload: bytes) -> Answer:
            if not faulty:
                return await board.send(payload)
            if answer is None:
                raise ZeroDivisionError
            return Answer(answer, 0, 0)

        lane = Lane(send, LIMITS)
        found = await asyncio.gather(*asking(lane, 1, 2), return_exceptions=True)
        expected = (ZeroDivisionError, msgspec.DecodeError, ValueError)
        assert all(isinstance(each, expected) for each in found)
        faulty = False
        assert await body_of(lane, ask(3)) == b"3"

    run(scenario)


def test_stopping_refuses_everything():
    """A stopped lane refuses what is in flight and what waits, with the reason, and rests."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS)
        first, others = await behind_a_call(lane, board, 3)
        others[0].cancel()
        await lane.stop(Refusal("board_not_found", "the board was removed"))
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(found.pop(1), asyncio.CancelledError)
        assert [each.code for each in found] == ["board_not_found"] * 3
        assert not lane.busy
        await Lane(board.send, LIMITS).stop(Refusal("board_not_found", "nothing was asked"))

    run(scenario)
