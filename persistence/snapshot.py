"""Snapshots: a board's state at one sequence, in one file, whole or not at all.

Owns the files `<sequence>.snapshot` of a directory: how they are named, written, verified, listed
and pruned. What the header and the columns mean is the board's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persistence.column_file import Column, Columns, read_columns, read_header, write_columns
from persistence.errors import DamagedError
from persistence.files import TEMPORARY_SUFFIX, make_directory, sync_directory

__all__ = [
    "Column",
    "Snapshot",
    "list_snapshots",
    "prune_snapshots",
    "read_snapshot",
    "read_snapshot_header",
    "snapshot_sequence",
    "write_snapshot",
]

SUFFIX = ".snapshot"

_MAGIC = b"RNKSNAP\0"
_NAME = re.compile(r"[0-9]{20}\.snapshot")
_SEQUENCE = "snapshot_sequence"


@dataclass(frozen=True)
class Snapshot:
    """A verified snapshot; each column is a view of bytes that begins on a 64-byte boundary."""

    sequence: int
    header: dict[str, Any]
    columns: Columns


def write_snapshot(
    directory: Path, sequence: int, header: dict[str, Any], columns: Sequence[Column]
) -> Path:
    """Write the snapshot of `sequence` into `directory` and return its path; durable on return.

    The columns are contiguous buffers that nobody changes meanwhile. A thread may do it while the
    event loop runs. One that exists is replaced. Errors: OSError.
    """
    make_directory(directory)
    path = directory / f"{sequence:020d}{SUFFIX}"
    write_columns(path, _MAGIC, {**header, _SEQUENCE: sequence}, columns)
    return path


def read_snapshot(path: Path) -> Snapshot:
    """Read and verify the snapshot at `path`.

    Raises DamagedError when a byte of it is not as written, FormatTooNewError when a later
    version wrote it, OSError when it cannot be read.
    """
    header, columns = read_columns(path, _MAGIC)
    return Snapshot(_checked_sequence(path, header), header, columns)


def read_snapshot_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Read a snapshot's sequence and header, and nothing else of it.

    Raises DamagedError, FormatTooNewError, OSError.
    """
    header = read_header(path, _MAGIC)
    return _checked_sequence(path, header), header


def _checked_sequence(path: Path, header: dict[str, Any]) -> int:
    sequence = header.pop(_SEQUENCE, None)
    if not isinstance(sequence, int) or path.name != f"{sequence:020d}{SUFFIX}":
        raise DamagedError(f"{path}: holds the snapshot of sequence {sequence}")
    return sequence


def list_snapshots(directory: Path) -> list[Path]:
    """Return the paths of the snapshots in `directory`, newest first; none if it is missing."""
    if not directory.is_dir():
        return []
    paths = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(paths, reverse=True)


def snapshot_sequence(path: Path) -> int:
    """Return the sequence that a snapshot's name says."""
    return int(path.name.removesuffix(SUFFIX))


def prune_snapshots(directory: Path, keep: int = 2) -> None:
    """Remove all but the `keep` newest snapshots, and what interrupted writes left behind.

    Only for the one writer of the directory, and not while it writes.
    """
    if keep < 1:
        raise AssertionError("the newest snapshot is never pruned")
    doomed = [*list_snapshots(directory)[keep:], *directory.glob(f"*{SUFFIX}{TEMPORARY_SUFFIX}")]
    for path in doomed:
        path.unlink()
    if doomed:
        sync_directory(directory)


def remove_snapshots(directory: Path) -> None:
    """Remove all snapshots, durably, which leaves the log alone to recover from."""
    for path in list_snapshots(directory):
        path.unlink()
    if directory.is_dir():
        sync_directory(directory)
