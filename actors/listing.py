"""What is known of a board without waking it: a small file beside its log.

Owns `board.msgpack`, a copy of what the log says: whoever can read the log can make it anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from actors.board import Board
from actors.definition import Definition, from_record
from persistence.errors import DamagedError, RanknodeError
from persistence.event_log import LmdbEventLog
from persistence.records import DefinitionRecord
from persistence.value_file import VERSION, decode_value, pack_value, read_value, write_value

_LOG = logging.getLogger("ranknode.board")

LISTING = "board.msgpack"
LOG = "log"


def log_place(directory: Path) -> int | None:
    """Tell which log a board has by now: another number once one took its place. None for none."""
    try:
        return (directory / LOG).stat().st_ino
    except FileNotFoundError:
        return None


@contextmanager
def in_place(directory: Path, place: int | None) -> Iterator[None]:
    """Tell a damaged log from one that a node wrote again meanwhile, which fits no earlier seal."""
    try:
        yield
    except DamagedError as error:
        if log_place(directory) != place:
            raise RanknodeError(
                f"{directory / LOG}: was written again meanwhile, since a member was erased; run"
                " this again"
            ) from error
        raise


class Listing(msgspec.Struct, frozen=True):
    """What a listing shows of a board without waking it.

    next_due_us: when its next window is due to close, as far as was known; no promise after a
    crash, since a window may have been opened in between. erasing: whether a name has to leave the
    board's disk.
    """

    board: str
    incarnation: str
    created_at_us: int
    definition: Definition
    next_due_us: int | None = None
    erasing: bool = False
    version: int = VERSION


def keep_listing(directory: Path, board: Board) -> None:
    """Write what a listing shows, where that is not what is there: a full disk must not matter."""
    path, listing = directory / LISTING, listing_of(board)
    if not path.exists() or path.read_bytes() != pack_value(listing):
        write_value(path, listing)


def show_listing(directory: Path, board: Board) -> None:
    """Write what a listing shows, if that can be: it is a copy, and must not stop its board."""
    try:
        keep_listing(directory, board)
    except OSError as error:
        _LOG.warning("%s: its listing could not be written: %s", directory, error)


def promise_erasing(directory: Path, board: Board) -> None:
    """Let the listing say that a name has to leave the disk, before that is so. Errors: OSError.

    Whoever finds that it has not, as after a crash in between, writes the listing anew.
    """
    write_value(directory / LISTING, msgspec.structs.replace(listing_of(board), erasing=True))


def listing_of(board: Board) -> Listing:
    """Make the listing of a board as it is."""
    identity = board.identity
    return Listing(
        identity.board,
        identity.incarnation,
        identity.created_at_us,
        board.definition,
        board.next_due_us,
        bool(board.rulings.erasing),
    )


def read_listing(directory: Path) -> Listing:
    """Read what a listing shows. Errors: DamagedError, FormatTooNewError, OSError.

    The first versions wrote it without a checksum, and a node writes it anew when it opens a board.
    """
    path = directory / LISTING
    try:
        return read_value(path, Listing)
    except DamagedError as damage:
        try:
            return decode_value(path, path.read_bytes(), Listing)
        except DamagedError:
            raise damage from None


def refuse_newer_listing(directory: Path) -> None:
    """Raise FormatTooNewError if a newer version wrote the listing, before it is written over."""
    with suppress(DamagedError, OSError):
        read_listing(directory)


def listing_of_log(log: LmdbEventLog, directory: Path) -> Listing:
    """Make a board's listing from its log. Complexity: O(log). Errors: DamagedError."""
    newest = None
    for record in log.read():
        if isinstance(record, DefinitionRecord):
            newest = record
    return listing_of_record(newest, directory)


def listing_of_record(newest: DefinitionRecord | None, directory: Path) -> Listing:
    """Make a board's listing from the last definition of its log. Errors: DamagedError."""
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
    write_listing(directory, listing)
    return listing


def write_listing(directory: Path, listing: Listing) -> None:
    """Write what a listing shows; durable on return. Errors: OSError."""
    write_value(directory / LISTING, listing)
