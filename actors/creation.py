"""Creating a board: its directory with its first records, whole or not at all.

Owns what a board begins with: its definition, and the windows that it opens itself.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path

import msgspec

from actors.board import Board
from actors.definition import Definition, FixedWindow
from actors.exact import parse_time
from actors.listing import LOG, keep_listing
from actors.logged_board import SNAPSHOTS, BoardOptions
from actors.periods import ALL_TIME
from persistence.errors import StorageFullError
from persistence.event_log import LmdbEventLog
from persistence.files import free_bytes, sync_directory
from persistence.records import DefinitionRecord, OpenedWindow, Record, WindowOpenedRecord

CREATION_BYTES = 1 << 20  # what a new board's files take, and more


def create_board(
    directory: Path, board: str, definition: Definition, now_us: int, options: BoardOptions
) -> Board:
    """Create a board's directory, durably and at once: after a crash it is whole or not there.

    directory: must not exist; its parent must. Errors: FileExistsError, StorageFullError,
    CommitFailedError, OSError.
    """
    if directory.exists():
        raise FileExistsError(str(directory))
    # LMDB maps its lock file; on a full disk its pages are no error but the end of the process.
    if free_bytes(directory.parent) < options.log.reserved_free_bytes + CREATION_BYTES:
        raise StorageFullError("there is no room for another board")
    building = directory.with_name(f".{board}.{secrets.token_hex(8)}")
    building.mkdir()
    try:
        created = Board()
        log = LmdbEventLog(building / LOG, options.log, epoch=1, create=True)
        records = _first_records(board, definition, now_us)
        log.append(records)
        log.close()
        for record in records:
            created.apply(record)
        keep_listing(building, created)
        (building / SNAPSHOTS).mkdir()
        sync_directory(building)
        building.rename(directory)
        sync_directory(directory.parent)
    except BaseException:
        # Under its own name it would be taken for created, although the name may not be durable.
        with contextlib.suppress(OSError):
            directory.rename(building)
        shutil.rmtree(building, ignore_errors=True)
        raise
    return created


def _first_records(board: str, definition: Definition, now_us: int) -> list[Record]:
    """Make what a board begins with: its definition, and the windows that it opens itself."""
    records: list[Record] = [
        DefinitionRecord(
            first_sequence=1,
            recorded_at_us=now_us,
            board=board,
            incarnation=secrets.token_hex(8),
            hash_key=secrets.token_bytes(16),
            created_at_us=now_us,
            definition=definition.to_record(),
        ),
    ]
    return [*records, *first_windows(definition, 2, now_us)]


def first_windows(
    definition: Definition, first_sequence: int, now_us: int
) -> list[WindowOpenedRecord]:
    """Make the records of the windows that a board opens itself; events open the others."""
    windows = []
    for period in definition.periods:
        if isinstance(period, FixedWindow):
            start_us, end_us = parse_time(period.start), parse_time(period.end)
            windows.append(OpenedWindow(period.name, start_us, end_us))
        elif period == ALL_TIME.id:
            windows.append(OpenedWindow(ALL_TIME.id, None, None))
    return [
        WindowOpenedRecord(
            first_sequence=first_sequence + place,
            recorded_at_us=now_us,
            **msgspec.structs.asdict(window),
        )
        for place, window in enumerate(windows)
    ]
