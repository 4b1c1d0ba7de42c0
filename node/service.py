"""What the HTTP handlers ask of the boards behind them: the one seam between HTTP and actors.

A refusal is raised as `actors.errors.Refusal`; a body is returned ready to send. The handlers set
a deadline around each call, so every method must bear being cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.questions import Change, Question, Submit, Top, Verdict
from node.metrics import BoardFigures


class Boards(Protocol):
    """All boards of the node."""

    @property
    def ready(self) -> bool:
        """Say whether the boards on disk are known and can be brought up on demand."""

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        """Create a board from the body of a request as it came, durably.

        Returns whether it is new, and the description of the board, as MessagePack if `packed`.
        """

    async def list(
        self, limit: int, after: str | None, patterns: tuple[str, ...], *, packed: bool
    ) -> bytes:
        """Answer a page of the boards whose ids a pattern matches, in order of their ids."""

    async def measure(self) -> BoardFigures:
        """Tell what the boards and their processes count, of what answers in time."""

    async def ids(self, patterns: tuple[str, ...]) -> Sequence[str]:
        """List the ids that a pattern matches, also of boards that cannot be brought up."""

    async def delete(self, board: str) -> None:
        """Remove a board and its data, durably."""

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        """Answer a question that changes nothing, once the board has reached `min_sequence`."""

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        """Return the top of a window where it is at hand and right; None where it is not."""

    async def top(self, board: str, question: Top, min_sequence: int | None) -> bytes:
        """Answer the top of a window, as it was last if the board cannot be reached now."""

    async def submit(self, board: str, question: Submit | Change | Verdict) -> bytes:
        """Change a board, durably."""
