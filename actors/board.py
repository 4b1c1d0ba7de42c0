"""What a board is: a state machine over the records of its log.

Owns the state and the one way to change it, `apply(record)`, which serving, recovery, rebuild and
verification share. Its state is a pure function of the records, in order: no clock, no chance, no
disk. Invariants: `sequence` is that of the last record applied; every member that stands in a
window is interned in `members`; a window, once opened, keeps its bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from actors.closed_window import ClosedWindow, Revision
from actors.counting import Window, count_events
from actors.definition import Definition, from_record
from actors.keyset import KeySet
from actors.members import Members
from actors.periods import ALL_TIME, Calendar
from actors.ruling_effects import apply_ruling
from actors.rulings import Rulings
from actors.standings import Standings
from persistence.errors import FormatTooNewError, OutdatedError
from persistence.records import (
    DefinitionRecord,
    EventsRecord,
    Record,
    RulingRecord,
    SequencesLostRecord,
    WindowClosedRecord,
    WindowOpenedRecord,
)
from persistence.snapshot import Column

DAY_US = 86_400 * 1_000_000
DUMP_FORM = 2  # what `dump` copies; one of another form is not loaded


class Identity(NamedTuple):
    """What a board is born with. incarnation tells it from earlier boards of the same name."""

    board: str
    incarnation: str
    hash_key: bytes
    created_at_us: int


class Board:
    """A board between its first record and its last.

    Changing it: `apply`. Asking it: `windows`, `closed`, `members`, `keys`, `definition`,
    `calendar`, `due`, `state_digest`; which windows an instant counts for is in `actors.windows`,
    the contract's queries in `actors.queries`, its rules for new events in `actors.judge`.
    Keeping it: `dump`, `load`.

    windows: the open ones, by id. closed: those kept, by id, in the order of their closing.
    expired_until_us: by kind, the end of the last closed window that is kept no longer.
    unsealed: closed windows whose newest standings, hidden members among them, nobody has written
    to an archive yet. They are no part of the state: whoever applies records takes them out.
    rulings: what moderators decided. hidden_slots: of the hidden members that ever had an event.

    keys_floor_us: no key received before this instant is remembered any more (less a margin of a
    day, so that an event dated into the future by the tolerance is covered too); None while none
    was forgotten.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.keys_floor_us: int | None = None
        self.windows: dict[str, Window] = {}
        self.closed: dict[str, ClosedWindow] = {}
        self.expired_until_us: dict[str, int] = {}
        self.unsealed: dict[str, Window] = {}
        self.rulings = Rulings()
        self.hidden_slots: set[int] = set()
        self.calendar: Calendar
        self.identity: Identity
        self.definition: Definition
        self.members: Members
        self.keys: KeySet

    def apply(self, record: Record) -> dict[str, bytes]:
        """Apply the next record of the log.

        Returns, for events, one byte per event and window: 1 where the member's score is now
        better than before. Complexity: O(events x windows x log members). Errors: ValueError where
        the record does not continue the board, which a verified log cannot hold.
        """
        if record.first_sequence != self.sequence + 1:
            raise ValueError(f"record {record.first_sequence} does not follow {self.sequence}")
        improved: dict[str, bytes] = {}
        match record:
            case DefinitionRecord():
                self._define(record)
            case WindowOpenedRecord():
                bounds = (record.window, record.start_us, record.end_us)
                self._open_window(bounds, record.first_sequence)
            case WindowClosedRecord():
                self._close_window(record)
            case EventsRecord():
                improved = self._count_events(record)
            case SequencesLostRecord():
                pass  # nothing is known of what they were, but that none of them is to come
            case RulingRecord():
                apply_ruling(self, record)
        self.sequence += record.count
        return improved

    def _define(self, record: DefinitionRecord) -> None:
        identity = Identity(record.board, record.incarnation, record.hash_key, record.created_at_us)
        if self.sequence == 0:
            self.identity = identity
            self.members = Members(record.hash_key)
            self.keys = KeySet(record.hash_key)
        elif identity != self.identity:
            raise ValueError(f"record {record.first_sequence} defines another board")
        self._follow(from_record(record.definition))
        self._expire()

    def _follow(self, definition: Definition) -> None:
        """Take a definition as the one that holds from here on."""
        self.definition = definition
        self.calendar = Calendar(
            definition.timezone, definition.day_starts_at, definition.week_starts_on
        )

    def rules(self) -> dict[str, Any]:
        """Name what the definition says of a window's standings."""
        return rules_of(self.definition)

    def _open_window(
        self, bounds: tuple[str, int | None, int | None], opened_sequence: int
    ) -> None:
        name = bounds[0]
        if name in self.windows or name in self.closed:
            raise ValueError(f"the window {name} was opened before")
        rules = self.rules()
        standings = Standings(self.members, **rules, sparse=name != ALL_TIME.id)
        self.windows[name] = Window(bounds, opened_sequence, self.members, rules, standings)

    def _close_window(self, record: WindowClosedRecord) -> None:
        window = self.windows.pop(record.window, None)
        if window is None or window.end_us is None:
            raise ValueError(f"the window {record.window} is not open, or never ends")
        members, digest = window.size, window.digest
        if (members, digest) != (record.members, record.digest):
            raise ValueError(f"the window {window.id} closed with other standings than these")
        hidden = window.hidden_names()
        for name in hidden:
            window.show(self.members.find(name))  # an archive holds all, hiding lies over it
        self.closed[window.id] = ClosedWindow(
            window.id, window.kind, window.start_us, window.end_us, window.opened_sequence,
            window.end_us + self._grace_us, record.recorded_at_us,
            (Revision(record.first_sequence, members, digest),), tuple(hidden),
        )  # fmt: skip
        self.unsealed[window.id] = window
        self._expire()

    def _expire(self) -> None:
        """Forget the oldest closed windows of each kind beyond those that are kept."""
        kept = self.definition.keep_closed_periods
        if kept is None:
            return
        ends: dict[str, list[tuple[int, str]]] = {}
        for window in self.closed.values():
            ends.setdefault(window.kind, []).append((window.end_us, window.id))
        for kind, closed in ends.items():
            for end_us, window_id in sorted(closed)[: max(len(closed) - kept, 0)]:
                del self.closed[window_id]
                self.unsealed.pop(window_id, None)
                self.expired_until_us[kind] = max(end_us, self.expired_until_us.get(kind, end_us))

    def due(self, now_us: int) -> list[Window]:
        """List the open windows whose end and grace have passed, the earliest first."""
        if self.definition.mode == "backfill":
            return []
        latest_end_us = now_us - self._grace_us
        due = [
            w for w in self.windows.values() if w.end_us is not None and w.end_us <= latest_end_us
        ]
        return sorted(due, key=lambda window: (window.end_us, window.id))

    @property
    def _grace_us(self) -> int:
        return self.definition.grace_seconds * 1_000_000

    def closes_at_us(self, end_us: int | None) -> int | None:
        """Tell when an open window that ends then is due to close; None where none ever is."""
        if end_us is None or self.definition.mode == "backfill":
            return None
        return end_us + self._grace_us

    @property
    def next_due_us(self) -> int | None:
        """When the next window is due to close, as far as is known now."""
        ends = [w.end_us for w in self.windows.values() if w.end_us is not None]
        return self.closes_at_us(min(ends)) if ends else None

    def _count_events(self, record: EventsRecord) -> dict[str, bytes]:
        for opened in record.opened:
            bounds = (opened.window, opened.start_us, opened.end_us)
            self._open_window(bounds, record.first_sequence)
        slots = self.members.record(
            record.member_ends, record.members, record.previous_sequences, record.first_sequence
        )
        day = record.recorded_at_us // DAY_US
        self.keys.add(record.key_ends, record.keys, record.first_sequence, day, record.flags)
        self._forget_keys(day)
        if len(self.hidden_slots) < len(self.rulings.hidden):
            self._find_hidden()  # names that were hidden before they ever played
        return count_events(self.windows.values(), slots, record, self.hidden_slots)

    def _find_hidden(self) -> None:
        slots = map(self.members.find, self.rulings.hidden)
        self.hidden_slots = {slot for slot in slots if slot >= 0}

    def _forget_keys(self, today: int) -> None:
        """Give up the keys of days that no accepted event can come back from.

        A key must outlive every retry that the age check still lets through. That check looks at
        occurred_at, which may lie after receipt by the tolerance, at most a day: hence one more
        day than the retention.
        """
        retention_days = self.definition.key_retention_days
        if retention_days is None or self.definition.mode == "backfill":
            return
        first_kept = today - retention_days - 1
        forgotten = [day for day in self.keys.days if day < first_kept]
        if forgotten:
            self.keys.forget(first_kept)
            self.keys_floor_us = (forgotten[-1] + 2) * DAY_US

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the structures hold."""
        windows = sum(window.nbytes for window in self.windows.values())
        return self.members.nbytes + self.keys.nbytes + windows

    def state_digest(self) -> str:
        """Digest everything that records can change: equal states have equal texts.

        Complexity: O(windows + days of keys); the rest is kept up to date by every change.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.sequence} {self.keys_floor_us} ".encode())
        digest.update(repr(self.definition).encode())
        digest.update(self.members.digest + self.keys.digest)
        # The keys' digest knows which there are; their days decide when they are forgotten.
        digest.update(repr(self.keys.days).encode())
        for name in sorted(self.windows):
            window = self.windows[name]
            place = f"{name} {window.start_us} {window.end_us} {window.opened_sequence} "
            digest.update(place.encode())
            digest.update(window.digest)
        for closed in self.closed.values():
            digest.update(repr(closed).encode())
        digest.update(repr(sorted(self.expired_until_us.items())).encode())
        digest.update(self.rulings.digest)
        return digest.hexdigest()

    def dump(self) -> tuple[dict[str, Any], list[Column]]:
        """Copy the state: a header of plain values and named binary columns.

        Complexity: O(members + keys), at the speed of memory.
        """
        header = {
            "form": DUMP_FORM,
            "sequence": self.sequence,
            "keys_floor_us": self.keys_floor_us,
            "identity": list(self.identity),
            "definition": self.definition.to_record(),
            "windows": [
                [w.id, w.start_us, w.end_us, w.opened_sequence] for w in self.windows.values()
            ],
            "closed": [list(closed) for closed in self.closed.values()],
            "expired_until_us": dict(self.expired_until_us),
            "state_digest": self.state_digest(),
        }
        columns = _prefixed("members", self.members.dump())
        columns += _prefixed("keys", self.keys.dump())
        columns += [("rulings", self.rulings.dump())]
        for window in self.windows.values():
            columns += _prefixed(f"window {window.id}", window.standings.dump())
            if window.hidden is not None:
                columns += _prefixed(f"hidden {window.id}", window.hidden.dump())
        return header, columns

    @classmethod
    def load(cls, header: dict[str, Any], columns: dict[str, memoryview]) -> Self:
        """Make the board that `dump` copied.

        Errors: ValueError or KeyError where the parts contradict each other or their digest,
        OutdatedError, FormatTooNewError.
        """
        form = header.get("form", 1)
        if form < DUMP_FORM:
            raise OutdatedError("is of an earlier form")
        if form > DUMP_FORM:
            raise FormatTooNewError(f"a state of form {form}, unknown to this version")
        board = cls()
        board.sequence = header["sequence"]
        board.keys_floor_us = header["keys_floor_us"]
        board.identity = Identity(*header["identity"])
        board._follow(from_record(header["definition"]))
        board.closed = {row[0]: ClosedWindow.from_header(row) for row in header["closed"]}
        board.expired_until_us = header["expired_until_us"]
        hash_key = board.identity.hash_key
        board.members = Members.load(_under("members", columns), hash_key)
        board.keys = KeySet.load(_under("keys", columns), hash_key)
        board.rulings = Rulings.load(columns["rulings"])
        board._find_hidden()
        for window, start_us, end_us, opened_sequence in header["windows"]:
            board._load_window((window, start_us, end_us), opened_sequence, columns)
        if board.state_digest() != header["state_digest"]:
            raise ValueError("the loaded state has another digest than the dumped one")
        return board

    def _load_window(
        self,
        bounds: tuple[str, int | None, int | None],
        opened_sequence: int,
        columns: dict[str, memoryview],
    ) -> None:
        name, rules = bounds[0], self.rules()
        parts = _under(f"window {name}", columns)
        standings = Standings.load(parts, self.members, **rules, sparse=name != ALL_TIME.id)
        window = Window(bounds, opened_sequence, self.members, rules, standings)
        aside = _under(f"hidden {name}", columns)
        if aside:
            window.hidden = Standings.load(aside, self.members, **rules, sparse=True)
        self.windows[name] = window


def rules_of(definition: Definition) -> dict[str, Any]:
    """Name what a definition says of a window's standings, as `Standings` takes it."""
    return {
        "aggregation": definition.aggregation,
        "directions": definition.directions,
        "tie_rule": definition.tie_rule,
        "distinct": definition.rank_method == "dense",
        "decimals": definition.decimals,
    }


def _prefixed(prefix: str, columns: Sequence[Column]) -> list[Column]:
    return [(f"{prefix}/{name}", buffer) for name, buffer in columns]


def _under(prefix: str, columns: dict[str, memoryview]) -> dict[str, memoryview]:
    start = f"{prefix}/"
    return {
        name.removeprefix(start): column
        for name, column in columns.items()
        if name.startswith(start)
    }
