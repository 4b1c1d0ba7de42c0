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

    windows: whose standings, or only whose digests, must be read before the question is asked
    again.
    """

    def __init__(self, windows: Sequence[str], *, standings: bool) -> None:
        super().__init__(", ".join(windows))
        self.windows = windows
        self.standings = standings


class Sealed(Protocol):
    """The closed windows of one board, as far as they are in memory."""

    def standings(self, window: str) -> Window | None:
        """Give a closed window's standings."""

    def is_missing(self, window: str) -> bool:
        """Tell whether a closed window's archive must be made again before it can be asked."""

    def digest(self, window: str) -> str | None:
        """Give a closed window's published digest."""
