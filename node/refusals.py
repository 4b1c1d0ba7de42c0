"""Refusals of requests that found no place or had no good key: a few in each turn of the loop.

A client that is refused may ask again at once, and a loop reads whatever has come before it does
anything else. Were refusals written while reading, thousands of such clients would keep it reading,
and those who have a place would wait for ever. A client asks again only when it has its answer, so
writing few of them a turn slows down exactly those who ask too much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

WRITTEN_AT_ONCE = 64  # some milliseconds of work, between which all else has its turn

Write = Callable[[], None]


class Refusals:
    """The refusals still to be written, at most one of each connection."""

    def __init__(self) -> None:
        self._waiting: deque[Write] = deque()
        self._writing = False

    def add(self, write: Write) -> None:
        """Have `write` called soon. Complexity: O(1)."""
        self._waiting.append(write)
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write_some)

    async def turn(self) -> None:
        """Wait until one more refusal may be written, for one that is written in the usual way."""
        turn = asyncio.Event()
        self.add(turn.set)
        await turn.wait()

    def _write_some(self) -> None:
        for _ in range(min(WRITTEN_AT_ONCE, len(self._waiting))):
            self._waiting.popleft()()
        self._writing = bool(self._waiting)
        if self._writing:
            asyncio.get_running_loop().call_soon(self._write_some)
