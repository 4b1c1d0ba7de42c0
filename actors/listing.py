"""What is known of a board without waking it: a small file beside its log.

Owns `board.msgpack`, a copy of what the log says: whoever can read the log can make it anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from actors.board import Board
from actors.definition import Definition, from_record
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.files import write_atomically
from persistence.records import DefinitionRecord

_LOG = logging.getLogger("ranknode.board")

LISTING = "board.msgpack"
LOG = "log"


class Listing(msgspec.Struct, frozen=True):
    """What a listing shows of a board without waking it.

    next_due_us: when its next window is due to close, as far as was known; no promise after a
    crash, since a window may have been opened in between.
    """

    board: str
    incarnation: str
    created_at_us: int
    definition: Definition
    next_due_us: int | None = None


def keep_listing(directory: Path, board: Board) -> None:
    """Write what a listing shows, where that is not what is there: a full disk must not matter."""
    path, encoded = directory / LISTING, msgspec.msgpack.encode(listing_of(board))
    if not path.exists() or path.read_bytes() != encoded:
        write_atomically(path, [encoded])


def show_listing(directory: Path, board: Board) -> None:
    """Write what a listing shows, if that can be: it is a copy, and must not stop its board."""
    try:
        keep_listing(directory, board)
    except OSError as error:
        _LOG.warning("%s: its listing could not be written: %s", directory, error)


def listing_of(board: Board) -> Listing:
    """Make the listing of a board as it is."""
    identity = board.identity
    return Listing(
        identity.board,
        identity.incarnation,
        identity.created_at_us,
        board.definition,
        board.next_due_us,
    )


def read_listing(directory: Path) -> Listing:
    """Read what a listing shows. Errors: OSError, msgspec.MsgspecError."""
    return msgspec.msgpack.decode((directory / LISTING).read_bytes(), type=Listing)


def listing_of_log(log: LmdbEventLog, directory: Path) -> Listing:
    """Make a board's listing from its log. Complexity: O(log). Errors: DamagedError."""
    newest = None
    for record in log.read():
        if isinstance(record, DefinitionRecord):
            newest = record
    if newest is None or newest.board != directory.name:
        raise DamagedError(f"{directory}: holds no log of a board of that name")
    return Listing(
        newest.board, newest.incarnation, newest.created_at_us, from_record(newest.definition)
    )


def rebuild_listing(directory: Path) -> Listing:
    """Make a listing that cannot be read again, from the log, and keep it.

    Errors: DamagedError, FormatTooNewError, OSError.
    """
    log = LmdbEventLog.open_readonly(directory / LOG)
    try:
        listing = listing_of_log(log, directory)
    finally:
        log.close()
    write_atomically(directory / LISTING, [msgspec.msgpack.encode(listing)])
    return listing
