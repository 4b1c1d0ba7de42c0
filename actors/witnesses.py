"""What bears witness to how far a board's log once reached: its snapshots and archives.

Each is written after what it holds was committed, and names its board and sequence. One that is
ahead of the log proves that commits were lost, also where the log and its head were put back
together and agree. It proves no more than that: what was committed after the newest of them, and
lost together with its head, cannot be seen from inside.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from persistence.archive import archive_path, list_archives, read_archive_header
from persistence.errors import DamagedError, RanknodeError
from persistence.snapshot import list_snapshots, read_snapshot_header


class Witness(NamedTuple):
    """A file of a board, and the sequence that the log had reached when it was written."""

    file: Path
    incarnation: str
    sequence: int


def find_witnesses(snapshots: Path, archives: Path) -> list[Witness]:
    """List what bears witness among a board's snapshots and archives; what is illegible does not.

    Beside a running node it must be called before the log is opened. Complexity: a small read for
    each snapshot and archive.
    """
    found = []
    for path in list_snapshots(snapshots):
        try:
            sequence, header = read_snapshot_header(path)
            found.append(Witness(path, header["identity"][1], sequence))
        except (RanknodeError, OSError, LookupError, TypeError):
            continue
    for window, revision in list_archives(archives):
        try:
            archive = read_archive_header(archives, window, revision)
        except (RanknodeError, OSError):
            continue
        path = archive_path(archives, window, revision)
        found.append(Witness(path, archive.incarnation, archive.sequence))
    return found


def require_end(found: Iterable[Witness], incarnation: str, last_sequence: int) -> None:
    """Raise DamagedError if any witness of a board is ahead of its log's last sequence."""
    for witness in found:
        if witness.incarnation == incarnation and witness.sequence > last_sequence:
            raise DamagedError(
                f"{witness.file}: is of sequence {witness.sequence}, but the log ends at"
                f" {last_sequence}; the last commits are lost"
            )
