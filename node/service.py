"""What the HTTP handlers ask of the boards behind them: the one seam between HTTP and actors.

A refusal is raised as `actors.errors.Refusal`; a body is returned ready to send. The handlers set
a deadline around each call, so every method must bear being cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from actors.questions import Change, Question, Submit, Verdict


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
        self, limit: int, after: str | None, covers: Callable[[str], bool], *, packed: bool
    ) -> bytes:
        """Answer a page of the boards whose ids are covered, in order of their ids."""

    def ids(self, covers: Callable[[str], bool]) -> Sequence[str]:
        """List the ids of all boards that are covered, also of those that cannot be brought up."""

    async def delete(self, board: str) -> None:
        """Remove a board and its data, durably."""

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        """Answer a question that changes nothing, once the board has reached `min_sequence`."""

    async def submit(self, board: str, question: Submit | Change | Verdict) -> bytes:
        """Change a board, durably."""
