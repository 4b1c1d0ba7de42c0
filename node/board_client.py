"""Natural batching: what gathers while one call is in flight goes out together as the next.

A board has two lanes, reads and writes, so that a read never waits for a commit. A lane has one
call in flight and a bounded queue; no timers, so idle load is not delayed and busy load gets big
batches. A call that fails because the board's process died is repeated, with the same content,
until every request in it has been given up by its caller, or there is no process to send it to:
keys make that safe. It must not know Ray: a lane is given a coroutine function that takes and
returns bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from actors.calls import Answer, BoardLostError
from actors.errors import Refusal
from actors.questions import (
    Around,
    Ask,
    Disputes,
    LogQuestion,
    Lookup,
    Periods,
    Question,
    Range,
    Reply,
    Top,
    decode_replies,
    encode,
)
from node.metrics import Metrics

RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0


class LaneLimits(NamedTuple):
    """Bounds of one lane: what may wait, and what goes into one call.

    call_entries_max: entries that the answers of one call may have; a longer answer goes alone.
    """

    queue_items_max: int
    queue_bytes_max: int
    call_items_max: int
    call_entries_max: int


class Answered(NamedTuple):
    """A body ready to send, and a sequence of its board that it is no older than."""

    body: bytes
    sequence: int


class _Item(NamedTuple):
    encoded: bytes
    entries: int
    reply: asyncio.Future[tuple[Reply, int]]


Send = Callable[[bytes], Awaitable[Answer]]


_PAGED = (Top, Range, Periods, Disputes, LogQuestion)


def _entries(question: Question) -> int:
    """Return how many entries the answer to a question may have."""
    if isinstance(question, Around):
        return question.above + 1 + question.below
    if isinstance(question, Lookup):
        return len(question.members)
    return question.limit if isinstance(question, _PAGED) else 1


def _as_list(items: Sequence[_Item]) -> bytes:
    """Make the MessagePack array of items that are encoded already."""
    return struct.pack(">BI", 0xDD, len(items)) + b"".join(item.encoded for item in items)


class Lane:
    """One queue to one board. calls and asked count what was sent, for whoever watches batches.

    sequence: the highest of the board's that any answer has told of.

    send: raises BoardLostError where a call got no answer, Refusal where nothing was sent.
    changes: whether asks change the board, so that the outcome of a lost one is unknown. name:
    under which `metrics` counts calls. reach: returns once something can be sent, or raises as
    send; who has given up until then is not sent.
    """

    def __init__(
        self,
        send: Send,
        limits: LaneLimits,
        *,
        changes: bool = False,
        name: str = "read",
        metrics: Metrics | None = None,
        reach: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.calls = 0
        self.asked = 0
        self.sequence = 0
        self._send = send
        self._limits = limits
        self._changes = changes
        self._name = name
        self._reach = reach
        self._metrics = metrics if metrics is not None else Metrics()
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._in_flight: list[_Item] = []
        self._sending: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether anything waits or is in flight."""
        return self._sending is not None and not self._sending.done()

    async def ask(self, ask: Ask) -> Answered:
        """Send one ask with the next call and return its answer.

        Errors: Refusal, the board's own, `overloaded` where the queue is full, `outcome_unknown`
        where a change was sent to a process that ended. Cancelling it gives the ask up; whether
        it was sent, and acted on, is then unknown.
        """
        encoded = encode(ask)
        full = (
            len(self._queue) >= self._limits.queue_items_max
            or self._queued_bytes + len(encoded) > self._limits.queue_bytes_max
        )
        if full:
            raise Refusal("overloaded", "too many requests wait for this board")
        item = _Item(encoded, _entries(ask.question), asyncio.get_running_loop().create_future())
        self._queue.append(item)
        self._queued_bytes += len(encoded)
        self.asked += 1
        if not self.busy:
            self._sending = asyncio.create_task(self._send_queued())
        reply, sequence = await item.reply
        return Answered(reply.unwrap(), sequence)

    def _take(self) -> list[_Item]:
        """Take the next call's items; what was given up meanwhile is dropped unsent."""
        items: list[_Item] = []
        entries = 0
        while self._queue and len(items) < self._limits.call_items_max:
            item = self._queue[0]
            if items and entries + item.entries > self._limits.call_entries_max:
                break
            self._queue.popleft()
            self._queued_bytes -= len(item.encoded)
            if not item.reply.done():
                items.append(item)
                entries += item.entries
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
        lost = False
        while any(not item.reply.done() for item in self._in_flight):
            try:
                if self._reach is not None:
                    await self._reach()
                items = [item for item in self._in_flight if not item.reply.done()]
                if not items:
                    return
                self.calls += 1
                self._metrics.call_sent(self._name, len(items))
                answer = await self._send(_as_list(items))
            except Refusal as refusal:
                raise self._of_sent(refusal) if lost else refusal from None
            except BoardLostError:
                lost = True
                self._metrics.call_lost(self._name)
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(2 * wait_seconds, RETRY_SECONDS_MAX)
                continue
            self.sequence = max(self.sequence, answer.until)
            replies = decode_replies(answer.payload)
            # Paired before the first is given out: of a wrong number no reply is anyone's.
            for item, reply in list(zip(items, replies, strict=True)):
                if item.reply.done():
                    continue
                if lost and reply.code:
                    refused = Refusal(reply.code, reply.detail, **reply.extra)
                    item.reply.set_exception(self._of_sent(refused))
                else:
                    item.reply.set_result((reply, answer.since))

    def _of_sent(self, refusal: Refusal) -> Refusal:
        """Make the refusal of what was sent before: a change may have been applied then."""
        if self._changes and refusal.code == "board_unavailable":
            return Refusal(
                "outcome_unknown",
                "the board's process ended before it answered; send it again with the same key",
            )
        return refusal

    async def stop(self, reason: Refusal) -> None:
        """Refuse everything that waits or is in flight."""
        for items, refusal in ((self._in_flight, self._of_sent(reason)), (self._queue, reason)):
            for item in items:
                if not item.reply.done():
                    item.reply.set_exception(refusal)
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
