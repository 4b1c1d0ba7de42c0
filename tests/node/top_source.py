"""A board that is asked for tops, as what keeps them sees it, and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from actors.questions import Top
from node.board_client import Answered
from node.tops import Tops

WAIT_SECONDS = 60  # for what must come about at all


def top(
    period: str | None = None,
    revision: int | None = None,
    limit: int = 10,
    *,
    packed: bool = False,
    after: str | None = None,
    now_us: int = 0,
) -> Top:
    return Top(packed, now_us, period, revision, limit, after)


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def settled() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A board that is asked for tops. Its answers name its sequence; while it is held they wait.

    known: what the gateway knows of the sequence. failure: is raised in the place of an answer.
    size: bytes that an answer is padded to.
    """

    def __init__(self) -> None:
        self.sequence = self.known = 1
        self.asked: list[Top] = []
        self.failure: Exception | None = None
        self.size = 0
        self.clock = Clock()
        self.tops = Tops(self._fetch, lambda: self.known, self.clock)
        self._going = asyncio.Event()
        self._going.set()

    async def _fetch(self, question: Top) -> Answered:
        self.asked.append(question)
        since = self.sequence
        body = msgspec.json.encode({"sequence": since}).ljust(self.size)
        await self._going.wait()
        if self.failure is not None:
            raise self.failure
        self.known = max(self.known, self.sequence)
        return Answered(body, since)

    def hold(self) -> None:
        self._going = asyncio.Event()

    def go(self) -> None:
        self._going.set()

    def write(self) -> None:
        """Apply an event that this gateway was told of."""
        self.sequence += 1
        self.known = self.sequence

    async def ask(self, question: Top, min_sequence: int = 0) -> bytes:
        """Ask as a gateway does: for what is kept first."""
        found = self.tops.find(question, min_sequence)
        return found if found is not None else await self.tops.ask(question, min_sequence)
