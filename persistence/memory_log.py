"""The log's in-memory twin: the same contract, for tests, with faults on demand.

Owns nothing durable. Faults stand for what a disk can do: refuse room, fail a commit before it
took effect, or after it did, when only the acknowledgement is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from persistence.chained_log import ChainedLog, LogOptions, LogStats
from persistence.errors import CommitFailedError, DamagedError, StorageFullError


class Fault(Enum):
    """What may go wrong at a commit."""

    NO_ROOM = auto()
    LOST_COMMIT = auto()
    LOST_ACKNOWLEDGEMENT = auto()


class MemoryEventLog(ChainedLog):
    """An EventLog in memory.

    fault: asked once per append, before it; what it returns happens. `reopened` is what a process
    that opens the log after a failed commit finds.
    """

    def __init__(
        self, options: LogOptions | None = None, *, fault: Callable[[], Fault | None] | None = None
    ) -> None:
        super().__init__(options or LogOptions())
        self._fault = fault
        self._first_sequences: list[int] = []
        self._records: list[bytes] = []
        self._stored_end = self._end

    @property
    def first_sequence(self) -> int:
        """Return the first sequence that is kept, or would be next in an empty log."""
        return 1

    @property
    def stats(self) -> LogStats:
        """Return what the log occupies."""
        return LogStats(segments=1, bytes=sum(map(len, self._records)), commits=self._commits)

    def check_room(self, bytes_needed: int) -> None:
        """Raise StorageFullError when a segment could never take `bytes_needed`."""
        if bytes_needed > self.options.segment_bytes_max:
            raise StorageFullError(f"no segment has room for {bytes_needed} bytes")

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def reopened(self) -> MemoryEventLog:
        """Return a log, without faults, of what was committed, acknowledged or not."""
        log = MemoryEventLog(self.options)
        log._first_sequences = list(self._first_sequences)
        log._records = list(self._records)
        log._end = log._stored_end = self._stored_end
        return log

    def _store(self, items: Sequence[tuple[int, bytes]], end: tuple[int, bytes]) -> None:
        fault = self._fault() if self._fault else None
        if fault is Fault.NO_ROOM:
            raise StorageFullError("the disk is full")
        if fault is not Fault.LOST_COMMIT:
            for first_sequence, data in items:
                self._first_sequences.append(first_sequence)
                self._records.append(data)
            self._stored_end = end
        if fault is not None:
            raise CommitFailedError("the disk failed")

    def _file_of(self, sequence: int) -> str:  # noqa: ARG002  (there is only one)
        return "memory"

    def _locate(self, sequence: int) -> int:
        return self._first_sequences[bisect_right(self._first_sequences, sequence) - 1]

    def _fetch(self, first_sequence: int) -> bytes:
        index = bisect_right(self._first_sequences, first_sequence) - 1
        if index < 0 or self._first_sequences[index] != first_sequence:
            raise DamagedError(f"no record begins at sequence {first_sequence}")
        return self._records[index]

    def _scan(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        index = bisect_right(self._first_sequences, from_sequence - 1)
        while index < len(self._records):
            yield self._first_sequences[index], self._records[index]
            index += 1
