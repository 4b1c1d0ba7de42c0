"""When a board's process may be started again after it ended.

One that ends once is followed at once: whoever waits hardly notices. One that ends again and again,
as on a disk that refuses every commit, would otherwise be started without end, so each further end
in quick succession makes the next start wait twice as long. A process that lives for a while
makes up for all ends before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_WAIT_SECONDS = 1.0
WAIT_SECONDS_MAX = 60.0
CALM_SECONDS = 60.0  # at least the longest wait, or a life as long would be held back


class Restarts:
    """The starts and ends of one board's process.

    ends: those in quick succession so far; ends_in_all: since the node began.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ends = self.ends_in_all = 0
        self._clock = clock
        self._started_at = self._due_at = clock()

    @property
    def wait_seconds(self) -> float:
        """How long the next start has to wait, 0 where it may be now."""
        return max(self._due_at - self._clock(), 0.0)

    def started(self) -> None:
        """Note that a process was started."""
        self._started_at = self._clock()

    def ended(self) -> None:
        """Note that the process ended without being told to."""
        now = self._clock()
        if now - self._started_at >= CALM_SECONDS:
            self.ends = 0
        self.ends += 1
        self.ends_in_all += 1
        waits = 0.0 if self.ends == 1 else FIRST_WAIT_SECONDS * 2.0 ** min(self.ends - 2, 32)
        self._due_at = now + min(waits, WAIT_SECONDS_MAX)
