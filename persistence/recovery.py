"""From disk to a live state: the newest snapshot that holds, and the records after it.

Owns the order of attempts: snapshots from the newest to the oldest, then a replay of the whole log.
A snapshot is a shortcut, never a source: one that is damaged, ahead of the log or of another
history is passed over. Generic over what the state is; see `Machine`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from persistence.chained_log import EventLog
from persistence.errors import DamagedError, FormatTooNewError, OutdatedError, RanknodeError
from persistence.records import EventsRecord, Record
from persistence.snapshot import Column, list_snapshots, read_snapshot

LOG_HASH = "log_hash"  # in a snapshot's header: the log's hash at the snapshot's sequence

# How a state may refuse a snapshot's content: it contradicts itself, or a part is missing.
LOAD_ERRORS = (
    DamagedError, FormatTooNewError, OutdatedError, OSError, ValueError, LookupError, TypeError,
)  # fmt: skip


class Machine(Protocol):
    """A state that is a pure function of the records applied to it, in order."""

    @property
    def sequence(self) -> int:
        """Return the last sequence applied, 0 when fresh."""

    def apply(self, record: Record) -> object:
        """Go on by one record."""

    def state_digest(self) -> str:
        """Return a text that depends on the whole state and on nothing else."""

    def dump(self) -> tuple[dict[str, Any], Sequence[Column]]:
        """Copy the state out, as `load` takes it."""


MachineT = TypeVar("MachineT", bound=Machine)
Load = Callable[[dict[str, Any], dict[str, memoryview]], MachineT]
Join = Callable[[Iterator[Record]], Iterator[Record]]


@dataclass(frozen=True)
class RecoveryReport:
    """How a state came back.

    snapshot_sequence: that of the snapshot begun from, 0 for none; snapshots_skipped: file name
    and reason of each that was passed over; *_seconds: how long loading and replaying took.
    """

    snapshot_sequence: int
    snapshots_skipped: tuple[tuple[str, str], ...]
    records_replayed: int
    events_replayed: int
    load_seconds: float
    replay_seconds: float
    last_sequence: int


def recover(
    log: EventLog,
    snapshots_directory: Path,
    fresh: Callable[[], MachineT],
    load: Load[MachineT],
    clock: Callable[[], float] = time.monotonic,
    joined: Join = iter,
) -> tuple[MachineT, RecoveryReport]:
    """Return the state at the end of `log`, and how it was reached.

    joined: makes fewer records of the log's that come to the same. Complexity: O(snapshot +
    records after it). Raises DamagedError for a log that is not what was written, or that no longer
    begins at 1 while no snapshot holds.
    """
    begun = clock()
    skipped: list[tuple[str, str]] = []
    machine = _load_newest(log, snapshots_directory, load, skipped)
    if machine is None:
        if log.first_sequence != 1:
            raise DamagedError(
                f"no snapshot holds, and the log begins at sequence {log.first_sequence}"
            )
        machine = fresh()
    snapshot_sequence = machine.sequence
    loaded = clock()
    records = events = 0

    def counted() -> Iterator[Record]:
        nonlocal records, events
        for record in log.read(snapshot_sequence):
            records += 1
            events += record.count if isinstance(record, EventsRecord) else 0
            yield record

    for record in joined(counted()):
        machine.apply(record)
    return machine, RecoveryReport(
        snapshot_sequence=snapshot_sequence,
        snapshots_skipped=tuple(skipped),
        records_replayed=records,
        events_replayed=events,
        load_seconds=loaded - begun,
        replay_seconds=clock() - loaded,
        last_sequence=machine.sequence,
    )


def _load_newest(
    log: EventLog, directory: Path, load: Load[MachineT], skipped: list[tuple[str, str]]
) -> MachineT | None:
    """Return the state of the newest snapshot that holds, noting those that do not."""
    for path in list_snapshots(directory):
        try:
            return load_snapshot(path, log, load)
        except LOAD_ERRORS as error:
            skipped.append((path.name, reason(error)))
    return None


def reason(error: Exception) -> str:
    """Say why something was refused; the text of a foreign error needs its type to be read."""
    return str(error) if isinstance(error, RanknodeError) else repr(error)


def load_snapshot(path: Path, log: EventLog, load: Load[MachineT]) -> MachineT:
    """Return the state of one snapshot, if it is of this log's history.

    Raises one of LOAD_ERRORS otherwise, with the reason.
    """
    snapshot = read_snapshot(path)
    if snapshot.sequence > log.last_sequence:
        raise DamagedError(f"is ahead of the log, which ends at {log.last_sequence}")
    if snapshot.header.get(LOG_HASH) != log.hash_at(snapshot.sequence):
        raise DamagedError("is of another history than the log")
    machine = load(snapshot.header, snapshot.columns)
    if machine.sequence != snapshot.sequence:
        raise DamagedError(f"holds the state of sequence {machine.sequence}")
    return machine
