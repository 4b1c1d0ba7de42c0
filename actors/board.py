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

from actors.counting import Window, count_events
from actors.definition import Definition, from_record
from actors.keyset import KeySet
from actors.members import Members
from actors.periods import ALL_TIME, Calendar
from actors.standings import Standings
from persistence.records import (
    DefinitionRecord,
    EventsRecord,
    Record,
    SequencesLostRecord,
    WindowClosedRecord,
    WindowOpenedRecord,
)
from persistence.snapshot import Column

DAY_US = 86_400 * 1_000_000


class Identity(NamedTuple):
    """What a board is born with. incarnation tells it from earlier boards of the same name."""

    board: str
    incarnation: str
    hash_key: bytes
    created_at_us: int


class ClosedWindow(NamedTuple):
    """What the board remembers of a window that closed; its standings are in an archive.

    closes_at_us: when it was due. sequence: of the record that closed it. digest: of its standings
    then, free of their order.
    """

    id: str
    kind: str
    start_us: int | None
    end_us: int
    closes_at_us: int
    closed_at_us: int
    sequence: int
    members: int
    digest: bytes
    revision: int

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant lies in the window."""
        return (
            self.start_us is None or self.start_us <= occurred_at_us
        ) and occurred_at_us < self.end_us


class Board:
    """A board between its first record and its last.

    Changing it: `apply`. Asking it: `windows`, `closed`, `members`, `keys`, `definition`,
    `calendar`, `due`, `state_digest`; which windows an instant counts for is in `actors.windows`,
    the contract's queries in `actors.queries`, its rules for new events in `actors.intake`.
    Keeping it: `dump`, `load`.

    windows: the open ones, by id. closed: those kept, by id, in the order of their closing.
    expired_until_us: by kind, the end of the last closed window that is kept no longer.
    unsealed: closed windows whose standings nobody has written to an archive yet. They are no part
    of the state: whoever applies records takes them out.

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
                self._open_window(record.window, record.start_us, record.end_us)
            case WindowClosedRecord():
                self._close_window(record)
            case EventsRecord():
                improved = self._count_events(record)
            case SequencesLostRecord():
                pass  # nothing is known of what they were, but that none of them is to come
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
        definition = self.definition
        return {
            "aggregation": definition.aggregation,
            "directions": definition.directions,
            "tie_rule": definition.tie_rule,
            "distinct": definition.rank_method == "dense",
            "decimals": definition.decimals,
        }

    def _open_window(self, window: str, start_us: int | None, end_us: int | None) -> None:
        if window in self.windows or window in self.closed:
            raise ValueError(f"the window {window} was opened before")
        standings = Standings(self.members, **self.rules(), sparse=window != ALL_TIME.id)
        self.windows[window] = Window(
            window, kind_of(window), start_us, end_us, self.members, standings
        )

    def _close_window(self, record: WindowClosedRecord) -> None:
        window = self.windows.pop(record.window, None)
        if window is None or window.end_us is None:
            raise ValueError(f"the window {record.window} is not open, or never ends")
        members, digest = len(window.standings), window.standings.digest
        if (members, digest) != (record.members, record.digest):
            raise ValueError(f"the window {window.id} closed with other standings than these")
        self.closed[window.id] = ClosedWindow(
            window.id, window.kind, window.start_us, window.end_us,
            window.end_us + self._grace_us, record.recorded_at_us, record.first_sequence,
            members, digest, revision=1,
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
            self._open_window(opened.window, opened.start_us, opened.end_us)
        slots = self.members.record(
            record.member_ends, record.members, record.previous_sequences, record.first_sequence
        )
        day = record.recorded_at_us // DAY_US
        self.keys.add(record.key_ends, record.keys, record.first_sequence, day)
        self._forget_keys(day)
        return count_events(self.windows.values(), slots, record)

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
        windows = sum(window.standings.nbytes for window in self.windows.values())
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
            digest.update(f"{name} {window.start_us} {window.end_us} ".encode())
            digest.update(window.standings.digest)
        for closed in self.closed.values():
            digest.update(repr(closed).encode())
        digest.update(repr(sorted(self.expired_until_us.items())).encode())
        return digest.hexdigest()

    def dump(self) -> tuple[dict[str, Any], list[Column]]:
        """Copy the state: a header of plain values and named binary columns.

        Complexity: O(members + keys), at the speed of memory.
        """
        header = {
            "sequence": self.sequence,
            "keys_floor_us": self.keys_floor_us,
            "identity": list(self.identity),
            "definition": self.definition.to_record(),
            "windows": [[w.id, w.start_us, w.end_us] for w in self.windows.values()],
            "closed": [list(closed) for closed in self.closed.values()],
            "expired_until_us": dict(self.expired_until_us),
            "state_digest": self.state_digest(),
        }
        columns = _prefixed("members", self.members.dump())
        columns += _prefixed("keys", self.keys.dump())
        for window in self.windows.values():
            columns += _prefixed(f"window {window.id}", window.standings.dump())
        return header, columns

    @classmethod
    def load(cls, header: dict[str, Any], columns: dict[str, memoryview]) -> Self:
        """Make the board that `dump` copied.

        Errors: ValueError or KeyError where the parts contradict each other or their digest.
        """
        board = cls()
        board.sequence = header["sequence"]
        board.keys_floor_us = header["keys_floor_us"]
        board.identity = Identity(*header["identity"])
        board._follow(from_record(header["definition"]))
        board.closed = {row[0]: ClosedWindow(*row) for row in header["closed"]}
        board.expired_until_us = header["expired_until_us"]
        hash_key = board.identity.hash_key
        board.members = Members.load(_under("members", columns), hash_key)
        board.keys = KeySet.load(_under("keys", columns), hash_key)
        for window, start_us, end_us in header["windows"]:
            parts = _under(f"window {window}", columns)
            standings = Standings.load(
                parts, board.members, **board.rules(), sparse=window != ALL_TIME.id
            )
            board.windows[window] = Window(
                window, kind_of(window), start_us, end_us, board.members, standings
            )
        if board.state_digest() != header["state_digest"]:
            raise ValueError("the loaded state has another digest than the dumped one")
        return board


def kind_of(window: str) -> str:
    """Name the kind of a window by its id: the part before the date, or all of it."""
    return window.partition(":")[0]


def _prefixed(prefix: str, columns: Sequence[Column]) -> list[Column]:
    return [(f"{prefix}/{name}", buffer) for name, buffer in columns]


def _under(prefix: str, columns: dict[str, memoryview]) -> dict[str, memoryview]:
    start = f"{prefix}/"
    return {
        name.removeprefix(start): column
        for name, column in columns.items()
        if name.startswith(start)
    }
