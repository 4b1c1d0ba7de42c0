"""What a query may need of a board's closed windows, and how it says that it is not at hand.

Pure: the shell that hosts a board keeps archives and brings to memory what a query asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.counting import Window
from persistence.errors import RanknodeError


class NotAtHandError(RanknodeError):
    """Raised when an answer needs what is on disk only.

    revisions: of which windows the standings, or only the digests, must be read before the
    question is asked again; each as a window's id and the number of its revision.
    """

    def __init__(self, revisions: Sequence[tuple[str, int]], *, standings: bool) -> None:
        super().__init__(", ".join(f"{window} revision {number}" for window, number in revisions))
        self.revisions = revisions
        self.standings = standings


class Sealed(Protocol):
    """The closed windows of one board, as far as they are in memory."""

    def standings(self, window: str, revision: int) -> Window | None:
        """Give the standings of a revision, with those who are hidden now aside."""

    def is_missing(self, window: str, revision: int) -> bool:
        """Tell whether a revision's archive must be made again before it can be asked."""

    def digest(self, window: str, revision: int) -> str | None:
        """Give the published digest of a revision."""
