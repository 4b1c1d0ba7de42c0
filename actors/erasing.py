"""Names that are gone from a board but not yet from its log: finding them, and taking them out.

A ruling that erases a member changes the board at once; the log before it still holds the name,
and so do snapshots and archives. What is read of such a log is answered without the name
(`Forgettings`), until the log was written again (`plan_rewriting`): the name's rows get the
pseudonym, and the closings of windows that the member stood in the digest that follows from that.
So a replay of the log that was written again leads to the same board.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from actors.board import Board, rules_of
from actors.closed_window import changed_digest, entry_digest
from actors.counting import Window, count_events
from actors.definition import from_record
from actors.forgetting import Forgetting, forget, join, rows_of
from actors.members import Members
from actors.standings import Standings
from persistence.chained_log import EventLog
from persistence.records import (
    DefinitionRecord,
    Event,
    EventsRecord,
    OpenedWindow,
    Record,
    RulingRecord,
    WindowClosedRecord,
    WindowOpenedRecord,
)
from persistence.rulings import MemberErased, Row


class Forgettings(NamedTuple):
    """The names of a log that must not be shown, oldest erasure first. Empty ones cost nothing."""

    each: tuple[Forgetting, ...] = ()

    def event(self, event: Event) -> Event:
        """Return an event without any of the names."""
        for forgetting in self.each:
            event = forgetting.event(event)
        return event

    def record(self, record: Record) -> Record:
        """Return a record without any of the names; the same one where it holds none."""
        return forget(self.each, record) if self.each else record

    def names_of(self, member: bytes) -> list[bytes]:
        """List what a member may be called in the log."""
        return [member, *(each.name for each in self.each if each.pseudonym == member)]


def find_forgettings(board: Board, log: EventLog) -> Forgettings:
    """Find, in the log, the names of those whose erasure is not finished.

    Complexity: O(log n) each. Errors: DamagedError.
    """
    found = []
    for pseudonym, erasure in board.rulings.erased.items():
        if erasure.finished is not None:
            continue
        if erasure.slot >= 0:
            name: bytes | None = _name_of_events(board, log, erasure.slot, erasure.sequence)
        else:
            name = _name_of_ruling(log, erasure.sequence)
        if name is not None and name != pseudonym:
            hash_key = board.identity.hash_key
            found.append(Forgetting(name, pseudonym, erasure.sequence, hash_key))
    return Forgettings(tuple(found))


def _name_of_events(board: Board, log: EventLog, slot: int, before: int) -> bytes:
    sequence = board.members.head(slot)
    while sequence > before:  # somebody submitted an event for the pseudonym
        sequence = log.event(sequence).previous_sequence
    return log.event(sequence).member


def _name_of_ruling(log: EventLog, erased: int) -> bytes | None:
    record = log.record_at(erased)
    assert isinstance(record, RulingRecord)
    assert isinstance(record.ruling, MemberErased)
    return record.ruling.name or None


class Rewriting(NamedTuple):
    """What is to be written again of a log.

    changed: the first sequences of the records that change, rising. digests: of closings, by
    sequence.
    """

    forgettings: Forgettings
    changed: list[int]
    digests: dict[int, bytes]

    def record(self, record: Record) -> Record:
        """Return a record as it is to be; the same one where it stays."""
        if isinstance(record, WindowClosedRecord) and record.first_sequence in self.digests:
            return replace(record, digest=self.digests[record.first_sequence])
        return self.forgettings.record(record)


def plan_rewriting(records: Iterable[Record], forgettings: Forgettings) -> Rewriting:
    """Find out which records must change, and how.

    records: the log's, from the first on. Complexity: O(log), in memory of the erased members' rows
    and the open windows.
    """
    last = max((each.until for each in forgettings.each), default=0)
    shadow = _Shadow(forgettings)
    changed, digests = [], {}
    for record in records:
        if record.first_sequence > last:
            break
        if isinstance(record, EventsRecord):
            rows = rows_of(forgettings.each, record)
            shadow.count(record, rows)
            changes = bool(rows)
        else:
            digest = shadow.follow(record)
            if digest is not None:
                digests[record.first_sequence] = digest
            changes = digest is not None or forgettings.record(record) is not record
        if changes:
            changed.append(record.first_sequence)
    return Rewriting(forgettings, changed, digests)


class _Shadow:
    """The rows of the erased members alone, followed through the log, in every window."""

    def __init__(self, forgettings: Forgettings) -> None:
        self._forgettings = forgettings.each
        self._members = Members(bytes(16))
        names = [each.pseudonym for each in self._forgettings]
        ends, text = join(names)
        slots = self._members.record(ends, text, self._members.plan(ends, text, 1), 1)
        self._slots = dict(zip(names, slots, strict=True))
        self._windows: dict[str, Window] = {}

    def follow(self, record: Record) -> bytes | None:
        """Take in a record that holds no events; returns the other digest of a closing."""
        match record:
            case DefinitionRecord():
                self._rules = rules_of(from_record(record.definition))
            case WindowOpenedRecord():
                self._open(OpenedWindow(record.window, record.start_us, record.end_us))
            case RulingRecord():
                self._rule(record)
            case WindowClosedRecord():
                return self._close(record)
        return None

    def _open(self, opened: OpenedWindow) -> None:
        bounds = (opened.window, opened.start_us, opened.end_us)
        standings = Standings(self._members, **self._rules, sparse=True)
        window = Window(bounds, 0, self._members, self._rules, standings)
        self._windows[opened.window] = window

    def count(self, record: EventsRecord, rows: Sequence[tuple[int, Forgetting]]) -> None:
        """Take in a record of events, of which some rows are of erased members."""
        for opened in record.opened:
            self._open(opened)
        if not rows:
            return
        placed = [(row, self._slots[forgetting.pseudonym]) for row, forgetting in rows]
        width = record.keys_per_value
        theirs = replace(
            record,
            values=array(
                "q", [record.values[row * width + key] for row, _ in placed for key in range(width)]
            ),
            occurred_at_us=array("q", [record.occurred_at_us[row] for row, _ in placed]),
            flags=bytes(len(placed)),
        )
        slots = array("i", [slot for _, slot in placed])
        count_events(self._windows.values(), slots, theirs, frozenset())

    def _rule(self, record: RulingRecord) -> None:
        about = [s for f, s in self._pending(record) if f.name == record.ruling.member]
        for change in getattr(record.ruling, "changes", ()) if about else ():
            window = self._windows.get(change.window)
            if window is not None:
                window.put(about[0], change.after)  # of one name erased twice, the first

    def _close(self, record: WindowClosedRecord) -> bytes | None:
        window = self._windows.pop(record.window)
        change = 0
        for forgetting, slot in self._pending(record):
            row = window.row(slot)
            if row is not None:
                change += self._difference(forgetting, row)
        return changed_digest(record.digest, change) if change else None

    def _difference(self, forgetting: Forgetting, row: Row) -> int:
        after = entry_digest(self._rules, forgetting.pseudonym, row)
        return after - entry_digest(self._rules, forgetting.name, row)

    def _pending(self, record: Record) -> Iterator[tuple[Forgetting, int]]:
        for forgetting in self._forgettings:
            if record.first_sequence < forgetting.until:
                yield forgetting, self._slots[forgetting.pseudonym]
