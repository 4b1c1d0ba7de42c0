"""A board's whole directory copied beside its owner, each board consistent in itself.

Owns which files a board has and in what order they are copied. Snapshots and archives only refer
back into the log, so they come before it, and the log is as long as it is when its turn comes; the
owner's mark and the listing are made from what was copied. Read only; it must not know Ray.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from actors.listing import LOG, listing_of_record, log_place, write_listing
from actors.logged_board import ARCHIVES, SNAPSHOTS
from actors.witnesses import find_witnesses, require_end
from persistence import archive, snapshot
from persistence.archive import archive_path, list_archives, read_archive_header
from persistence.backup import (
    LogEnd,
    Show,
    TargetError,
    check_log,
    copy_column_files,
    copy_log,
    file_bytes,
    held,
    require_room,
    require_sound,
    writing,
)
from persistence.errors import DamagedError, FormatTooNewError
from persistence.event_log import LmdbEventLog
from persistence.files import make_directory, sync_directory
from persistence.ownership import last_epoch, leave_epoch
from persistence.records import DefinitionRecord
from persistence.recovery import LOG_HASH
from persistence.snapshot import list_snapshots, read_snapshot_header
from persistence.verify import Progress

COPIES_MAX = 3  # of a board whose log is exchanged while it is copied


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

    A board whose log is written again meanwhile, to erase a name, is copied anew.

    Raises BoardGoneError, DamagedError with the record, FormatTooNewError and OSError for the
    source; StorageFullError before anything is written, and TargetError for the target.
    """
    for _ in range(COPIES_MAX):
        place = log_place(source)
        try:
            copy = _copy(source, target, copied, checked)
        except (DamagedError, TargetError):
            if log_place(source) == place:
                raise
        else:
            # Segments of two logs may go on from each other, and are no log of either time.
            if log_place(source) == place:
                return copy
        with writing():
            shutil.rmtree(target)
    raise TargetError(f"{source}: its log was replaced {COPIES_MAX} times while it was copied")


def _copy(source: Path, target: Path, copied: Show, checked: Progress) -> BoardCopy:
    with held(source):
        source_bytes = file_bytes(source)
        with writing():
            require_room(target.parent, source_bytes)
            make_directory(target)
        left_out = [
            *copy_column_files(source / SNAPSHOTS, target / SNAPSHOTS, snapshot.SUFFIX, copied),
            *copy_column_files(source / ARCHIVES, target / ARCHIVES, archive.SUFFIX, copied),
        ]
        epoch = last_epoch(source)
        end = copy_log(source / LOG, target / LOG, epoch, copied)
        newest = _checked(source, target, end, checked)
        # A node visits every board with windows when it starts, whatever listings say is due.
        listing = listing_of_record(newest, source)
        with writing():
            left_out += _leave_out_others(source, target, listing.incarnation)
            witnesses = find_witnesses(target / SNAPSHOTS, target / ARCHIVES)
            leave_epoch(target, epoch)
            write_listing(target, listing)
            sync_directory(target)
            target_bytes = file_bytes(target)
        require_end(witnesses, listing.incarnation, end[0])
    return BoardCopy(end[0], target_bytes, left_out)


def _checked(source: Path, target: Path, end: LogEnd, checked: Progress) -> DefinitionRecord | None:
    """Verify a copied log and return its last definition; tell whether source or copy is bad."""
    newest = None
    try:
        for record in check_log(target / LOG, end):
            if isinstance(record, DefinitionRecord):
                newest = record
            checked(record.last_sequence, end[0])
    except (DamagedError, OSError) as error:
        require_sound(source / LOG)
        raise TargetError(f"the copy is not what was copied: {error}") from error
    return newest


def _leave_out_others(source: Path, target: Path, incarnation: str) -> list[str]:
    """Remove from a copy whole snapshots and archives that are of another board, window or history.

    Returns why, naming them at the source, like those that were never copied.
    """
    left_out = []

    def leave_out(path: Path, why: str) -> None:
        path.unlink()
        sync_directory(path.parent)
        left_out.append(why.replace(str(target), str(source)))

    log = LmdbEventLog.open_readonly(target / LOG)
    try:
        for path in list_snapshots(target / SNAPSHOTS):
            try:
                _require_snapshot(path, log, incarnation)
            except (DamagedError, FormatTooNewError) as error:
                leave_out(path, str(error))
    finally:
        log.close()
    for window, revision in sorted(list_archives(target / ARCHIVES)):
        path = archive_path(target / ARCHIVES, window, revision)
        try:
            header = read_archive_header(target / ARCHIVES, window, revision)
            if header.incarnation != incarnation:
                leave_out(path, f"{path}: is another board's")
        except (DamagedError, FormatTooNewError) as error:
            leave_out(path, str(error))
    return left_out


def _require_snapshot(path: Path, log: LmdbEventLog, incarnation: str) -> None:
    """Raise DamagedError unless a snapshot is of the log, or ahead of it, which is no fault of it.

    Raises FormatTooNewError.
    """
    sequence, header = read_snapshot_header(path)
    try:
        if header["identity"][1] != incarnation:
            raise DamagedError(f"{path}: is another board's")
        is_of_log = sequence > log.last_sequence or header[LOG_HASH] == log.hash_at(sequence)
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{path}: {error}") from error
    if not is_of_log:
        raise DamagedError(f"{path}: is of another history than the log")
