"""The tops of a board's windows as they were asked for last, kept in the gateway.

Right by version, which is the board's sequence: an answer is given again while nothing the board
has told since is of a later one, so that whoever has had the answer to a write sees it in every top
from then on. What the clock closes and what other gateways write is told of by the next call only,
so an answer is given again for a short time at most. While the board cannot be reached the last one
is given, marked as stale and with its age.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from actors.errors import Refusal
from actors.questions import Top
from node.board_client import Answered
from node.config import MIB

FRESH_SECONDS = 0.1
STALE_SECONDS_MAX = 60.0  # an older one is neither given nor kept
PATIENCE_SECONDS = 0.5  # for a board that may be unreachable, where there is something to give
BYTES_MAX = 4 * MIB  # of one board's: some tens of the longest tops
KEPT_BYTES = 512  # what one takes besides its body: its key and its place, with a long name


class _Key(NamedTuple):
    period: str | None
    revision: int | None
    limit: int
    packed: bool


class _Kept(NamedTuple):
    body: bytes
    sequence: int
    asked_at: float


class _Fetch(NamedTuple):
    task: asyncio.Task[Answered]
    sequence: int  # that was known when it began


Fetch = Callable[[Top], Awaitable[Answered]]


class Tops:
    """The kept tops of one board.

    fetch: asks the board. sequence: tells the highest of the board's that anything has told of;
    ruled: that of a ruling, before which nothing was right.
    """

    def __init__(
        self,
        fetch: Fetch,
        sequence: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        ruled: Callable[[], int] = lambda: 0,
    ) -> None:
        self._fetch = fetch
        self._sequence = sequence
        self._ruled = ruled
        self._expiry: asyncio.TimerHandle | None = None
        self._clock = clock
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()  # the one asked for last at the end
        self._bytes = 0
        self._fetches: dict[_Key, _Fetch] = {}

    def find(self, question: Top, min_sequence: int) -> bytes | None:
        """Return an answer that is still right; None where the board has to be asked.

        Complexity: O(1).
        """
        if question.after is not None:
            return None
        key = _key(question)
        kept = self._kept.get(key)
        if (
            kept is None
            or kept.sequence < self._sequence()
            or kept.sequence < min_sequence
            or self._clock() - kept.asked_at > FRESH_SECONDS
        ):
            return None
        self._kept.move_to_end(key)
        return kept.body

    async def ask(self, question: Top, min_sequence: int) -> bytes:
        """Have the board answer, once for all who ask alike; at worst with a stale answer.

        min_sequence is one that the board is known to have reached. Errors: Refusal, the board's
        own.
        """
        assert question.after is None
        key = _key(question)
        kept = self._kept.get(key)
        fetch = self._begin(key, question)
        if kept is None or kept.sequence < max(min_sequence, self._ruled()):
            return (await asyncio.shield(fetch)).body
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return (await asyncio.shield(fetch)).body
        except TimeoutError:
            pass
        except Refusal as refusal:
            if refusal.code != "board_unavailable":
                raise
        age_seconds = self._clock() - kept.asked_at
        if kept.sequence < self._ruled() or age_seconds > STALE_SECONDS_MAX:
            return (await asyncio.shield(fetch)).body
        return _as_stale(kept.body, key.packed, age_seconds)

    def _begin(self, key: _Key, question: Top) -> asyncio.Task[Answered]:
        """Ask the board, or join who has asked since the last change that is known of."""
        sequence = self._sequence()
        under_way = self._fetches.get(key)
        if under_way is not None and under_way.sequence == sequence:
            return under_way.task
        task = asyncio.create_task(self._fetch_and_keep(key, question))
        fetch = self._fetches[key] = _Fetch(task, sequence)

        def end(ended: asyncio.Task[Answered]) -> None:
            if self._fetches.get(key) is fetch:
                del self._fetches[key]
            if not ended.cancelled():
                ended.exception()  # whoever asked has it, or has given up

        task.add_done_callback(end)
        return task

    async def _fetch_and_keep(self, key: _Key, question: Top) -> Answered:
        asked_at = self._clock()
        answered = await self._fetch(question)
        kept = self._kept.get(key)
        if kept is not None and kept.asked_at > asked_at:
            return answered  # one that was asked for after a change came first
        self._forget(key)
        if KEPT_BYTES + len(answered.body) <= BYTES_MAX:
            self._kept[key] = _Kept(answered.body, answered.sequence, asked_at)
            self._bytes += KEPT_BYTES + len(answered.body)
            self._expire_later()
        while self._bytes > BYTES_MAX:
            self._forget(next(iter(self._kept)))
        return answered

    def _expire_later(self) -> None:
        if self._expiry is None and self._kept:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(STALE_SECONDS_MAX, self._expire)

    def _expire(self) -> None:
        """Let go of what is too old to be given: it may hold names that are to be forgotten."""
        self._expiry = None
        oldest = self._clock() - STALE_SECONDS_MAX
        for key, kept in list(self._kept.items()):
            if kept.asked_at <= oldest or kept.sequence < self._ruled():
                self._forget(key)
        self._expire_later()

    def _forget(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= KEPT_BYTES + len(kept.body)


def _key(question: Top) -> _Key:
    return _Key(question.period, question.revision, question.limit, question.packed)


def _as_stale(body: bytes, packed: bool, age_seconds: float) -> bytes:
    """Say in an answer that it is stale.

    A map of up to 15 fields, which answers are, has their number in the low bits of its first byte
    in MessagePack.
    """
    fields = {"stale": True, "age_seconds": round(age_seconds, 3)}
    if not packed:
        return body[:-1] + b"," + msgspec.json.encode(fields)[1:]
    return bytes([body[0] + len(fields)]) + body[1:] + msgspec.msgpack.encode(fields)[1:]
