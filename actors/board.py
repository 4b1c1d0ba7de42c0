"""What a board is: a state machine over the records of its log.

Owns the state and the one way to change it, `apply(record)`, which serving, recovery, rebuild and
verification share. Its state is a pure function of the records, in order: no clock, no chance, no
disk. Invariants: `sequence` is that of the last record applied; every member that stands in a
window is interned in `members`; a window, once opened, keeps its bounds.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from actors.definition import Definition, from_record
from actors.keyset import KeySet
from actors.members import Members
from actors.standings import Standings
from persistence.records import (
    DefinitionRecord,
    EventsRecord,
    Record,
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


class Window(NamedTuple):
    """One open window. Bounds in microseconds, start included, end excluded; None is unbounded."""

    id: str
    start_us: int | None
    end_us: int | None
    standings: Standings

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant lies in the window."""
        return (self.start_us is None or self.start_us <= occurred_at_us) and (
            self.end_us is None or occurred_at_us < self.end_us
        )


class Board:
    """A board between its first record and its last.

    Changing it: `apply`. Asking it: `windows`, `members`, `keys`, `definition`, `state_digest`;
    the contract's queries are in `actors.queries`, its rules for new events in `actors.intake`.
    Keeping it: `dump`, `load`.

    keys_floor_us: no key received before this instant is remembered any more (less a margin of a
    day, so that an event dated into the future by the tolerance is covered too); None while none
    was forgotten.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.keys_floor_us: int | None = None
        self.windows: dict[str, Window] = {}
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
            case EventsRecord():
                improved = self._count_events(record)
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
        self.definition = from_record(record.definition)

    def _rules(self) -> dict[str, Any]:
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
        if window in self.windows:
            raise ValueError(f"the window {window} is open already")
        standings = Standings(self.members, **self._rules())
        self.windows[window] = Window(window, start_us, end_us, standings)

    def _count_events(self, record: EventsRecord) -> dict[str, bytes]:
        slots = self.members.record(
            record.member_ends, record.members, record.previous_sequences, record.first_sequence
        )
        day = record.recorded_at_us // DAY_US
        self.keys.add(record.key_ends, record.keys, record.first_sequence, day)
        self._forget_keys(day)
        return {window.id: _count_in(window, slots, record) for window in self.windows.values()}

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
        board.definition = from_record(header["definition"])
        hash_key = board.identity.hash_key
        board.members = Members.load(_under("members", columns), hash_key)
        board.keys = KeySet.load(_under("keys", columns), hash_key)
        for window, start_us, end_us in header["windows"]:
            parts = _under(f"window {window}", columns)
            standings = Standings.load(parts, board.members, **board._rules())
            board.windows[window] = Window(window, start_us, end_us, standings)
        if board.state_digest() != header["state_digest"]:
            raise ValueError("the loaded state has another digest than the dumped one")
        return board


def _count_in(window: Window, slots: array[int], record: EventsRecord) -> bytes:
    """Apply the events that the window holds; returns one byte per event of the record."""
    occurred_at_us, values = record.occurred_at_us, record.values
    if window.start_us is None and window.end_us is None:
        return window.standings.apply(slots, values, occurred_at_us)
    rows = [row for row, instant in enumerate(occurred_at_us) if window.holds(instant)]
    width = record.keys_per_value
    improved = bytearray(record.count)
    better = window.standings.apply(
        array("i", [slots[row] for row in rows]),
        array("q", [values[row * width + key] for row in rows for key in range(width)]),
        array("q", [occurred_at_us[row] for row in rows]),
    )
    for row, flag in zip(rows, better, strict=True):
        improved[row] = flag
    return bytes(improved)


def _prefixed(prefix: str, columns: Sequence[Column]) -> list[Column]:
    return [(f"{prefix}/{name}", buffer) for name, buffer in columns]


def _under(prefix: str, columns: dict[str, memoryview]) -> dict[str, memoryview]:
    start = f"{prefix}/"
    return {
        name.removeprefix(start): column
        for name, column in columns.items()
        if name.startswith(start)
    }
