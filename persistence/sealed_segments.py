"""The sealed segments of a log, a few of them open at once.

Owns which are open, and what walking each of them has found: that is done once, before it is first
read, and takes long. Not safe by itself: whoever calls holds the log's lock, so that none is closed
while it is read.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from persistence.errors import DamagedError
from persistence.sealing import open_checked
from persistence.segments import Seal, Segment

SEALED_OPEN_MAX = 16  # mapped at once; one more closes the least recently used


class SealedSegments:
    """The sealed segments of one log. strict: whether each must be what its seal says."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._open: OrderedDict[Path, Segment] = OrderedDict()
        self._checked: set[Path] = set()
        self._damaged: dict[Path, str] = {}

    def get(self, directory: Path, seal: Seal) -> Segment:
        """Return the open segment in `directory`. Errors: DamagedError, as it was found once."""
        segment = self._open.get(directory)
        if segment is None:
            segment = self._opened(directory, seal)
            self._checked.add(directory)
            self._open[directory] = segment
            if len(self._open) > SEALED_OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(directory)
        return segment

    def _opened(self, directory: Path, seal: Seal) -> Segment:
        checked = directory in self._checked
        if checked or not self._strict:
            return Segment.open_sealed(directory, checked=checked)
        damage = self._damaged.get(directory)
        if damage is not None:
            raise DamagedError(damage)
        try:
            return open_checked(directory, seal)
        except DamagedError as error:
            self._damaged[directory] = str(error)
            raise

    @property
    def open(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def close(self) -> None:
        """Close all; they may be opened again."""
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def forget(self) -> None:
        """Close all, and forget what was found: other segments may be in their places."""
        self.close()
        self._checked.clear()
        self._damaged.clear()
