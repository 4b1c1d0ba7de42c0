"""Natural batching: what gathers while one call is in flight goes out together as the next.

A board has two lanes, reads and writes, so that a read never waits for a commit. A lane has one
call in flight and a bounded queue; no timers, so idle load is not delayed and busy load gets big
batches. A call that fails because the board's process died is repeated, with the same content,
until every request in it has been given up by its caller: keys make that safe. It must not know
Ray: a lane is given a coroutine function that takes and returns bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from actors.errors import Refusal
from actors.questions import Ask, Reply, decode_replies, encode
from persistence.errors import RanknodeError

RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0


class BoardLostError(RanknodeError):
    """Raised when a call got no answer: the board's process died, it may or may not have acted."""


class LaneLimits(NamedTuple):
    """Bounds of one lane: what may wait, and what goes into one call."""

    queue_items_max: int
    queue_bytes_max: int
    call_items_max: int


class _Item(NamedTuple):
    encoded: bytes
    reply: asyncio.Future[Reply]


Send = Callable[[bytes], Awaitable[bytes]]


def _as_list(items: Sequence[_Item]) -> bytes:
    """Make the MessagePack array of items that are encoded already."""
    return struct.pack(">BI", 0xDD, len(items)) + b"".join(item.encoded for item in items)


class Lane:
    """One queue to one board. calls and asked count what was sent, for whoever watches batches."""

    def __init__(self, send: Send, limits: LaneLimits) -> None:
        self.calls = 0
        self.asked = 0
        self._send = send
        self._limits = limits
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._in_flight: list[_Item] = []
        self._sending: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether anything waits or is in flight."""
        return self._sending is not None and not self._sending.done()

    async def ask(self, ask: Ask) -> bytes:
        """Send one ask with the next call and return its answer.

        Errors: Refusal, the board's own or `overloaded` where the queue is full. Cancelling it
        gives the ask up; whether it was sent, and acted on, is then unknown.
        """
        encoded = encode(ask)
        full = (
            len(self._queue) >= self._limits.queue_items_max
            or self._queued_bytes + len(encoded) > self._limits.queue_bytes_max
        )
        if full:
            raise Refusal("overloaded", "too many requests wait for this board")
        item = _Item(encoded, asyncio.get_running_loop().create_future())
        self._queue.append(item)
        self._queued_bytes += len(encoded)
        self.asked += 1
        if not self.busy:
            self._sending = asyncio.create_task(self._send_queued())
        reply = await item.reply
        return reply.unwrap()

    def _take(self) -> list[_Item]:
        """Take the next call's items; what was given up meanwhile is dropped unsent."""
        items: list[_Item] = []
        while self._queue and len(items) < self._limits.call_items_max:
            item = self._queue.popleft()
            self._queued_bytes -= len(item.encoded)
            if not item.reply.done():
                items.append(item)
        return items

    async def _send_queued(self) -> None:
        while self._queue:
            self._in_flight = self._take()
            try:
                await self._call()
            except Exception as error:  # noqa: BLE001  the lane has no caller: those who wait must hear of it
                for item in self._in_flight:
                    if not item.reply.done():
                        item.reply.set_exception(error)

    async def _call(self) -> None:
        wait_seconds = RETRY_SECONDS
        while items := [item for item in self._in_flight if not item.reply.done()]:
            self.calls += 1
            try:
                replies = decode_replies(await self._send(_as_list(items)))
            except BoardLostError:
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(2 * wait_seconds, RETRY_SECONDS_MAX)
                continue
            # Paired before the first is given out: of a wrong number no reply is anyone's.
            for item, reply in list(zip(items, replies, strict=True)):
                if not item.reply.done():
                    item.reply.set_result(reply)

    async def stop(self, reason: Refusal) -> None:
        """Refuse everything that waits or is in flight."""
        items = [*self._in_flight, *self._queue]
        for item in items:
            if not item.reply.done():
                item.reply.set_exception(reason)
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
