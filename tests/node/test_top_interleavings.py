"""Kept tops against a naive model: whatever comes when, none is older than what was known."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.questions import Top
from node import tops
from node.board_client import Answered
from node.tops import FRESH_SECONDS, Tops
from tests.node.top_source import WAIT_SECONDS, Clock, run, settled, top


class Stepped:
    """A board and its gateways, moved one step at a time; each answer names its sequence."""

    def __init__(self) -> None:
        self.applied = 1
        self.known = 1  # to this gateway
        self.clock = Clock()
        self.tops = Tops(self._fetch, lambda: self.known, self.clock)
        self.sent: list[asyncio.Future[Answered]] = []
        self.begun: list[tuple[asyncio.Future[Answered], int]] = []
        self.made: list[tuple[asyncio.Future[Answered], int, int, int]] = []
        self.written: list[int] = []
        self.asking: list[tuple[asyncio.Task[bytes], int]] = []

    async def _fetch(self, _: Top) -> Answered:
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.sent.append(answer)
        return await answer

    def step(self, kind: str, which: int) -> None:
        """Do one thing that may happen; which: one of several that it may happen to."""
        if kind == "ask":
            found = self.tops.find(top(), 0)
            if found is not None:
                assert int(found) >= self.known
            else:
                task = asyncio.create_task(self.tops.ask(top(), 0))
                self.asking.append((task, self.known))
        elif kind == "write":
            self.applied += 1
            self.written.append(self.applied)
        elif kind == "another writes":
            self.applied += 1
        elif kind == "acknowledge" and self.written:
            self.known = max(self.known, self.written.pop(which % len(self.written)))
        elif kind == "begin" and self.sent:
            self.begun.append((self.sent.pop(which % len(self.sent)), self.applied))
        elif kind == "answer" and self.begun:
            answer, since = self.begun.pop(which % len(self.begun))
            self.made.append((answer, self.applied, since, self.applied))
        elif kind == "receive" and self.made:
            answer, content, since, until = self.made.pop(which % len(self.made))
            self.known = max(self.known, until)
            answer.set_result(Answered(b"%d" % content, since))
        elif kind == "wait":
            self.clock.now += which * FRESH_SECONDS / 4

    async def finish(self) -> None:
        """Let all that was asked be answered, and look at what each got."""
        while self.sent or self.begun or self.made:
            for kind in ("begin", "answer", "receive"):
                self.step(kind, 0)
                await settled()
        for task, known in self.asking:
            assert int(await task) >= known, "it is older than what was known when it was asked"


KINDS = ("ask", "write", "another writes", "acknowledge", "begin", "answer", "receive", "wait")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=30, max_size=90))
def test_no_answer_is_older_than_what_was_known(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in which order, a top holds all that was known when it was asked for."""

    async def scenario() -> None:
        stepped = Stepped()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tops, "PATIENCE_SECONDS", WAIT_SECONDS)  # stale ones are said to be
            for step in steps:
                stepped.step(*step)
                await settled()
            await stepped.finish()

    run(scenario)
