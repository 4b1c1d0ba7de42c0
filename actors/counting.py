"""Which events of a record go into which open windows, and their counting there.

Owns the open window: the standings of those who are shown, and aside those of hidden members, who
go on earning. The windows of one kind never overlap, so an event's window of a kind is found by its
start: history of many years goes into thousands of open windows at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from actors.members import Members
from actors.standings import Standings
from persistence.records import EventsRecord
from persistence.rulings import Row

_UNBOUNDED = -(2**63)  # no instant of the years 1 to 9999 is as early as this
_DIGEST_MODULUS = 1 << 128


class Window:
    """A window's standings, and the members that its slots are of.

    Bounds in microseconds, start included, end excluded; None is unbounded. kind is one of the
    definition's periods: all_time, daily, weekly, monthly, yearly, or a fixed window's name.
    opened_sequence: of the record that opened it; no event before counts in it.

    standings: of the members who are shown; hidden: of the others, None while there are none.
    Every member stands in one of them. rules: what `Standings` takes besides the members.
    """

    __slots__ = (
        "_rules", "end_us", "hidden", "id", "kind", "members", "opened_sequence", "standings",
        "start_us",
    )  # fmt: skip

    def __init__(
        self,
        bounds: tuple[str, int | None, int | None],
        opened_sequence: int,
        members: Members,
        rules: dict[str, Any],
        standings: Standings,
    ) -> None:
        self.id, self.start_us, self.end_us = bounds
        self.kind = kind_of(self.id)
        self.opened_sequence = opened_sequence
        self.members = members
        self.standings = standings
        self.hidden: Standings | None = None
        self._rules = rules

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant lies in the window."""
        return (self.start_us is None or self.start_us <= occurred_at_us) and (
            self.end_us is None or occurred_at_us < self.end_us
        )

    @property
    def size(self) -> int:
        """How many members stand in it, hidden ones included."""
        return len(self.standings) + (0 if self.hidden is None else len(self.hidden))

    @property
    def digest(self) -> bytes:
        """The 16 bytes of the sum of hashes of all entries, hidden ones included."""
        if self.hidden is None:
            return self.standings.digest
        parts = (self.standings.digest, self.hidden.digest)
        total = sum(int.from_bytes(part, "little") for part in parts) % _DIGEST_MODULUS
        return total.to_bytes(16, "little")

    @property
    def magnitude(self) -> int:
        """An upper bound of the size of any key of any score."""
        hidden = 0 if self.hidden is None else self.hidden.magnitude
        return max(self.standings.magnitude, hidden)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the standings hold, the members apart."""
        return self.standings.nbytes + (0 if self.hidden is None else self.hidden.nbytes)

    def row(self, slot: int) -> Row | None:
        """Return all that is kept of a member, shown or hidden; None if it does not stand."""
        row = self.standings.row(slot)
        if row is None and self.hidden is not None:
            row = self.hidden.row(slot)
        return None if row is None else Row(*row)

    def put(self, slot: int, row: Row | None) -> None:
        """Give a member another row, where it stands now, or none."""
        side = self.standings
        if self.hidden is not None and slot in self.hidden:
            side = self.hidden
        if row is None:
            side.remove(slot)
        else:
            side.put(slot, row.score, row.achieved_at_us, row.flags)

    def hide(self, slot: int) -> None:
        """Take a member aside, if it stands."""
        row = self.standings.row(slot)
        if row is None:
            return
        self.aside().put(slot, *row)
        self.standings.remove(slot)

    def show(self, slot: int) -> None:
        """Bring a hidden member back, if it stands."""
        row = None if self.hidden is None else self.hidden.row(slot)
        if self.hidden is None or row is None:
            return
        self.standings.put(slot, *row)
        self.hidden.remove(slot)
        if not len(self.hidden):
            self.hidden = None

    @property
    def sides(self) -> list[Standings]:
        """The standings of those who are shown and, where there are any, of those who are not."""
        return [self.standings] if self.hidden is None else [self.standings, self.hidden]

    def aside(self) -> Standings:
        """Return the standings of hidden members, for more of them to stand in."""
        if self.hidden is None:
            self.hidden = Standings(self.members, **self._rules, sparse=True)
        return self.hidden

    def hidden_names(self) -> list[bytes]:
        """List the hidden members that stand in it."""
        if self.hidden is None:
            return []
        return [name for name, _, _ in self.hidden.page(0, len(self.hidden))]


def kind_of(window: str) -> str:
    """Name the kind of a window by its id: the part before the date, or all of it."""
    return window.partition(":")[0]


def count_events(
    windows: Iterable[Window], slots: array[int], record: EventsRecord, hidden: AbstractSet[int]
) -> dict[str, bytes]:
    """Count a record's events in every open window that holds them.

    slots: of the events' members; hidden: those of hidden members. Returns, for each window that
    counted any, one byte per event of the record: 1 where the member's score is now better than
    before. Complexity: O(windows + events x kinds x log(windows x members)).
    """
    earliest, latest = min(record.occurred_at_us), max(record.occurred_at_us)
    by_kind: dict[str, list[Window]] = {}
    for window in windows:
        begins_in_time = window.start_us is None or window.start_us <= latest
        if begins_in_time and (window.end_us is None or earliest < window.end_us):
            by_kind.setdefault(window.kind, []).append(window)
    improved: dict[str, bytes] = {}
    for kind in by_kind.values():
        for window, rows in _divided(kind, record.occurred_at_us, earliest, latest):
            improved[window.id] = _count(window, rows, slots, record, hidden)
    return improved


def _divided(
    windows: list[Window], occurred_at_us: Sequence[int], earliest: int, latest: int
) -> list[tuple[Window, Sequence[int] | None]]:
    """Divide the rows of a record among the windows of a kind; None stands for all of them."""
    if len(windows) == 1 and windows[0].holds(earliest) and windows[0].holds(latest):
        return [(windows[0], None)]
    windows.sort(key=_start)
    starts = list(map(_start, windows))
    rows: list[list[int]] = [[] for _ in windows]
    for row, instant in enumerate(occurred_at_us):
        place = bisect_right(starts, instant) - 1
        if place >= 0 and windows[place].holds(instant):
            rows[place].append(row)
    return [(window, held) for window, held in zip(windows, rows, strict=True) if held]


def _start(window: Window) -> int:
    return _UNBOUNDED if window.start_us is None else window.start_us


def _count(
    window: Window,
    rows: Sequence[int] | None,
    slots: array[int],
    record: EventsRecord,
    hidden: AbstractSet[int],
) -> bytes:
    if rows is None:
        if not hidden or hidden.isdisjoint(slots):
            return window.standings.apply(slots, record.values, record.occurred_at_us)
        rows = range(record.count)
    improved = bytearray(record.count)
    shown = [row for row in rows if slots[row] not in hidden]
    _count_rows(window.standings, shown, slots, record, improved)
    if len(shown) < len(rows):
        aside = [row for row in rows if slots[row] in hidden]
        _count_rows(window.aside(), aside, slots, record, improved)
    return bytes(improved)


def _count_rows(
    standings: Standings,
    rows: Sequence[int],
    slots: array[int],
    record: EventsRecord,
    improved: bytearray,
) -> None:
    if not rows:
        return
    width = record.keys_per_value
    better = standings.apply(
        array("i", [slots[row] for row in rows]),
        array("q", [record.values[row * width + key] for row in rows for key in range(width)]),
        array("q", [record.occurred_at_us[row] for row in rows]),
    )
    for row, flag in zip(rows, better, strict=True):
        improved[row] = flag
