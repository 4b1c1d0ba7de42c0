"""Which events of a record go into which open windows, and their counting there.

Owns the open window. The windows of one kind never overlap, so an event's window of a kind is found
by its start: history of many years goes into thousands of open windows at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from actors.members import Members
from actors.standings import Standings
from persistence.records import EventsRecord

_UNBOUNDED = -(2**63)  # no instant of the years 1 to 9999 is as early as this


class Window(NamedTuple):
    """A window's standings, and the members that its slots are of.

    Bounds in microseconds, start included, end excluded; None is unbounded. kind is one of the
    definition's periods: all_time, daily, weekly, monthly, yearly, or a fixed window's name.
    """

    id: str
    kind: str
    start_us: int | None
    end_us: int | None
    members: Members
    standings: Standings

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant lies in the window."""
        return (self.start_us is None or self.start_us <= occurred_at_us) and (
            self.end_us is None or occurred_at_us < self.end_us
        )


def count_events(
    windows: Iterable[Window], slots: array[int], record: EventsRecord
) -> dict[str, bytes]:
    """Count a record's events in every open window that holds them.

    slots: of the events' members. Returns, for each window that counted any, one byte per event of
    the record: 1 where the member's score is now better than before. Complexity: O(windows +
    events x kinds x log(windows x members)).
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
            improved[window.id] = _count(window, rows, slots, record)
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
    window: Window, rows: Sequence[int] | None, slots: array[int], record: EventsRecord
) -> bytes:
    if rows is None:
        return window.standings.apply(slots, record.values, record.occurred_at_us)
    width = record.keys_per_value
    better = window.standings.apply(
        array("i", [slots[row] for row in rows]),
        array("q", [record.values[row * width + key] for row in rows for key in range(width)]),
        array("q", [record.occurred_at_us[row] for row in rows]),
    )
    improved = bytearray(record.count)
    for row, flag in zip(rows, better, strict=True):
        improved[row] = flag
    return bytes(improved)
