"""Token buckets: how often something may happen, and how long to wait when it happened too often.

Pure: the time is given by the caller, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import OrderedDict


class Bucket:
    """Up to `burst` tokens, refilled at `per_second`; full at first.

    Kept as one number, the time at which the bucket is full again, so nothing needs a timer.
    Complexity: O(1) in time and memory.
    """

    __slots__ = ("_burst", "_full_at", "_per_second")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._full_at = float("-inf")

    def wait_seconds(self, now: float) -> float:
        """Return for how long there is no token yet; 0 when there is one."""
        full_at = max(self._full_at, now)
        return max(0.0, full_at - now - (self._burst - 1) / self._per_second)

    def take(self, now: float) -> float:
        """Take a token. Returns 0, or for how many seconds there is none; then none is taken."""
        wait = self.wait_seconds(now)
        if wait == 0.0:
            self._full_at = max(self._full_at, now) + 1 / self._per_second
        return wait


class BucketTable:
    """A bucket for each of at most `buckets_max` names; the least recently used makes room.

    A name that was pushed out begins with a full bucket again: memory is bounded before accuracy.
    """

    def __init__(self, per_second: float, burst: float, buckets_max: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets_max = buckets_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """Take a token of a name, as `Bucket.take` does."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(self._per_second, self._burst)
            if len(self._buckets) > self._buckets_max:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
        return bucket.take(now)
