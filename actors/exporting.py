"""What an export shows of a board's log: its events and rulings, in order, without erased names.

Owns what is read for an export and how names are kept out of it. A name whose erasure is not
finished is still in the log; it is replaced as in a node's answers. Read only, also beside a
running node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from actors.board import Board
from actors.definition import Definition
from actors.erasing import Forgettings, find_forgettings
from actors.listing import LOG, in_place, listing_of_record, log_place
from actors.logged_board import ARCHIVES, SNAPSHOTS
from actors.witnesses import find_witnesses, require_end
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.records import DefinitionRecord, Event, EventsRecord, RulingRecord
from persistence.recovery import reason
from persistence.rulings import (
    AnyRuling,
    DisputeOpened,
    DisputeSettled,
    ErasureFinished,
    EventVoided,
    MemberErased,
)
from persistence.verify import APPLY_ERRORS


class Ruled(NamedTuple):
    """A ruling of the log, and the event that it is about; None where it is about a member."""

    record: RulingRecord
    event: Event | None

    @property
    def sequence(self) -> int:
        """Return the ruling's place in the log."""
        return self.record.first_sequence


class Export(NamedTuple):
    """What an export shows of a board.

    definition: the current one. items: events and rulings, in order of their sequences, read as
    they are asked for. last_sequence: the log's; no item is beyond it.
    """

    definition: Definition
    items: Iterator[Event | Ruled]
    last_sequence: int


def read_export(directory: Path) -> Export:
    """Read a board's events and rulings from its log, beside a running node.

    Complexity: O(log), twice; three times, and in memory of the board, where a name has not left
    the disk yet. Errors: DamagedError, FormatTooNewError, OSError, RanknodeError where the log was
    exchanged meanwhile; `items` raises them too.
    """
    witnesses = find_witnesses(directory / SNAPSHOTS, directory / ARCHIVES)
    path = directory / LOG
    place = log_place(directory)
    log = LmdbEventLog.open_readonly(path)
    try:
        with in_place(directory, place):
            newest, names_left = _survey(log)
            listing = listing_of_record(newest, directory)
            require_end(witnesses, listing.incarnation, log.last_sequence)
            forgettings = _find_names(log, directory) if names_left else Forgettings()
    except BaseException:
        log.close()
        raise

    def items() -> Iterator[Event | Ruled]:
        try:
            with in_place(directory, place):
                yield from _items(log, forgettings)
        finally:
            log.close()

    return Export(listing.definition, items(), log.last_sequence)


def _survey(log: LmdbEventLog) -> tuple[DefinitionRecord | None, bool]:
    """Find the last definition, and whether there is a name that has not left the disk."""
    newest = None
    erasing = set()
    for record in log.read():
        if isinstance(record, DefinitionRecord):
            newest = record
        elif isinstance(record, RulingRecord):
            if isinstance(record.ruling, MemberErased):
                erasing.add(record.ruling.member)
            elif isinstance(record.ruling, ErasureFinished):
                erasing.discard(record.ruling.member)
    return newest, bool(erasing)


def _find_names(log: LmdbEventLog, directory: Path) -> Forgettings:
    """Replay the log to find the names in it that nobody may see. Errors: DamagedError."""
    board = Board()
    for record in log.read():
        try:
            board.apply(record)
        except APPLY_ERRORS as error:
            raise DamagedError(
                f"{directory}: the record at sequence {record.first_sequence} cannot be applied:"
                f" {reason(error)}"
            ) from error
        board.unsealed.clear()
    return find_forgettings(board, log)


def _items(log: LmdbEventLog, forgettings: Forgettings) -> Iterator[Event | Ruled]:
    for logged in log.read():
        record = forgettings.record(logged)
        if isinstance(record, EventsRecord):
            yield from map(record.row, range(record.count))
        elif isinstance(record, RulingRecord):
            try:
                event = _event_of(log, record.ruling)
            except LookupError as error:
                # A ruling is made of what is there, and of what was before it.
                raise DamagedError(
                    f"{log.directory}: the ruling at sequence {record.first_sequence}: {error}"
                ) from error
            yield Ruled(record, None if event is None else forgettings.event(event))


def _event_of(log: LmdbEventLog, ruling: AnyRuling) -> Event | None:
    """Find the event that a ruling is about. Errors: LookupError, the log's."""
    match ruling:
        case EventVoided() | DisputeOpened():
            return log.event(ruling.sequence)
        case DisputeSettled():
            opened = log.record_at(ruling.dispute)
            assert isinstance(opened, RulingRecord)
            return _event_of(log, opened.ruling)
        case _:
            return None
