"""The way of each request to its board, the same in every gateway of a node."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from actors.errors import Refusal
from actors.questions import NOT_AT_HAND, Ask, Change, Question, Submit, Top, Verdict
from node.board_link import BoardLink

WAITING_READS_MAX = 1_024


class BoardRequests(ABC):
    """Asking and changing boards that are brought up on demand.

    wait_seconds: how long a read waits for its `min_sequence`.
    """

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._waiting_reads = 0

    @abstractmethod
    def link(self, board: str) -> BoardLink | None:
        """Return the way to a board that is known to be up."""

    @abstractmethod
    async def ready_link(self, board: str) -> BoardLink:
        """Return the way to a board that is up; nothing may be awaited between this and using it.

        Errors: Refusal, board_unavailable where it is not up in time: nothing was sent then.
        """

    @abstractmethod
    async def changed(self, board: str) -> None:
        """Learn what a change has made of a board's definition."""

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        """Answer a question, once the board has reached `min_sequence`. Errors: Refusal."""
        ask = Ask(min_sequence or 0, question)  # type: ignore[arg-type]
        try:
            return (await (await self.ready_link(board)).reads.ask(ask)).body
        except Refusal as refusal:
            if refusal.code not in ("not_yet", NOT_AT_HAND):
                raise
            if self._waiting_reads >= WAITING_READS_MAX:
                raise Refusal("overloaded", "too many reads wait for this node") from None
            slow = refusal.code == NOT_AT_HAND
        self._waiting_reads += 1
        try:
            link = await self.ready_link(board)
            if not slow:
                await link.wait_for(ask.min_sequence, self._wait_seconds)
            return (await (await self.ready_link(board)).read_slowly(ask)).body
        finally:
            self._waiting_reads -= 1

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        """Return the top of a window where it is kept and right; None where it is not."""
        link = self.link(board)
        return None if link is None else link.tops.find(question, min_sequence or 0)

    async def top(self, board: str, question: Top, min_sequence: int | None) -> bytes:
        """Answer the top of a window, at worst as it was. Errors: Refusal."""
        link = await self.ready_link(board)
        if question.after is not None or (min_sequence or 0) > link.sequence:
            return await self.ask(board, question, min_sequence)
        link.used_at = time.monotonic()
        found = link.tops.find(question, min_sequence or 0)
        return found if found is not None else await link.tops.ask(question, min_sequence or 0)

    async def submit(self, board: str, question: Submit | Change | Verdict) -> bytes:
        """Change a board; what it answers is on disk. Errors: Refusal."""
        link = await self.ready_link(board)
        lane = link.rulings if isinstance(question, Verdict) else link.writes
        body = (await lane.ask(Ask(0, question))).body  # type: ignore[arg-type]
        if isinstance(question, Change):
            await self.changed(board)
        return body
