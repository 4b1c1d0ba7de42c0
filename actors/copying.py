"""A board's whole directory copied beside its owner, each board consistent in itself.

Owns which files a board has and in what order they are copied. Snapshots and archives only refer
back into the log, so they come before it, and the log is as long as it is when its turn comes; the
owner's mark and the listing are made from what was copied. Read only; it must not know Ray.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from actors.listing import LOG, listing_of_record, write_listing
from actors.logged_board import ARCHIVES, SNAPSHOTS
from persistence import archive, snapshot
from persistence.backup import (
    LogEnd,
    Show,
    check_log,
    copy_column_files,
    copy_log,
    file_bytes,
    held,
    require_room,
    require_sound,
)
from persistence.errors import DamagedError
from persistence.files import make_directory, sync_directory
from persistence.ownership import last_epoch, leave_epoch
from persistence.records import DefinitionRecord
from persistence.verify import Progress


class BoardCopy(NamedTuple):
    """What was copied of a board: up to which sequence, and why files were left out."""

    last_sequence: int
    bytes: int
    left_out: list[str]


def copy_board(source: Path, target: Path, copied: Show, checked: Progress) -> BoardCopy:
    """Copy the board in `source` to `target`, which must not exist, and verify the copy.

    copied: called with each number of bytes that was copied. checked: with the sequences of the
    copy that were verified, and their total. Complexity: O(bytes), in memory of a few records.
    Everything acknowledged before the call is in the copy, which is durable on return.

    Raises BoardGoneError, DamagedError with the record, FormatTooNewError, StorageFullError before
    anything is written, CommitFailedError and OSError where the target cannot be written.
    """
    with held(source):
        require_room(target.parent, file_bytes(source))
        make_directory(target)
        left_out = [
            *copy_column_files(source / SNAPSHOTS, target / SNAPSHOTS, snapshot.SUFFIX, copied),
            *copy_column_files(source / ARCHIVES, target / ARCHIVES, archive.SUFFIX, copied),
        ]
        epoch = last_epoch(source)
        end = copy_log(source / LOG, target / LOG, epoch, copied)
        leave_epoch(target, epoch)
        try:
            _check(target, end, checked)
        except DamagedError:
            require_sound(source / LOG)
            raise
        sync_directory(target)
    return BoardCopy(end[0], file_bytes(target), left_out)


def _check(directory: Path, end: LogEnd, checked: Progress) -> None:
    """Verify a copied log, and make the listing from it."""
    newest = None
    for record in check_log(directory / LOG, end):
        if isinstance(record, DefinitionRecord):
            newest = record
        checked(record.last_sequence, end[0])
    # A node visits every board with windows when it starts, whatever listings say is due.
    write_listing(directory, listing_of_record(newest, directory))
