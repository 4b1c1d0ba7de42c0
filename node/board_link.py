"""A gateway's way to one board in memory: its lanes, its kept tops, and what goes past both.

Where the board's process is, and what becomes of it, is for the subclasses to know.
"""

from __future__ import annotations

import time

from actors.calls import Answer, BoardLostError, Calls
from actors.errors import Refusal
from actors.questions import NOT_AT_HAND, Ask, Top, decode_replies, encode
from node.board_client import Answered, Lane, LaneLimits, Send
from node.metrics import Metrics
from node.tops import Tops


class BoardLink:
    """A way to a board.

    used_at: when anything was last asked, by time.monotonic. sequence, ruled: the highest sequence
    of the board, and of a ruling on it, that any answer has told of.
    """

    def __init__(self, limits: LaneLimits, metrics: Metrics | None = None) -> None:
        self.used_at = time.monotonic()
        self.sequence = 0
        self.ruled = 0
        self.reads = self._lane("read", limits, metrics)
        self.writes = self._lane("write", limits, metrics)
        # Of their own: a ruling may read much of the log before it takes its turn.
        self.rulings = self._lane("ruling", limits, metrics)
        self.tops = Tops(self._ask_top, lambda: self.sequence, ruled=lambda: self.ruled)

    async def reach(self) -> Calls:
        """Return the connection to the board's process, once there is one.

        Errors: Refusal board_unavailable where no process is up, and will not be soon.
        """
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether any request waits for this board."""
        return self.reads.busy or self.writes.busy or self.rulings.busy

    def _lane(self, name: str, limits: LaneLimits, metrics: Metrics | None) -> Lane:
        changes = name != "read"
        send = self._sender("write" if changes else "read")
        return Lane(send, limits, changes=changes, name=name, metrics=metrics, reach=self.reach)

    def _sender(self, method: str) -> Send:
        async def send(payload: bytes) -> Answer:
            self.used_at = time.monotonic()
            return await self.call(method, payload)

        return send

    async def call(self, method: str, payload: bytes) -> Answer:
        """Call the process, once it can be.

        Errors: BoardLostError where it ended before it answered; Refusal board_unavailable where
        none is up: nothing was sent; CallFailedError.
        """
        answer = await (await self.reach()).call(method, payload)
        self.sequence = max(self.sequence, answer.until)
        self.ruled = max(self.ruled, answer.ruled)
        return answer

    async def measure(self) -> bytes:
        """Have the process tell what it counts. Errors: as of a call."""
        return (await self.call("measure", b"")).payload

    async def wait_for(self, sequence: int, seconds: float) -> None:
        """Return when the board has reached `sequence`, or after `seconds`."""
        self.used_at = time.monotonic()
        try:
            await self.call("wait_for", encode((sequence, seconds)))
        except BoardLostError:
            return

    async def _ask_top(self, question: Top) -> Answered:
        ask = Ask(0, question)
        try:
            return await self.reads.ask(ask)
        except Refusal as refusal:
            if refusal.code != NOT_AT_HAND:
                raise
        return await self.read_slowly(ask)

    async def read_slowly(self, ask: Ask) -> Answered:
        """Have an answer made that must be fetched from disk first. Errors: Refusal."""
        self.used_at = time.monotonic()
        try:
            answer = await self.call("read_slowly", encode([ask]))
        except BoardLostError:
            raise Refusal("board_unavailable", "the board is being brought up again") from None
        return Answered(decode_replies(answer.payload)[0].unwrap(), answer.since)

    async def stop(self, reason: Refusal) -> None:
        """Refuse whoever waits."""
        for lane in (self.reads, self.writes, self.rulings):
            await lane.stop(reason)
