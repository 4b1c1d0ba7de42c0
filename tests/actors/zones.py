"""What window arithmetic must equal: local clocks as lists of offsets, windows by enumeration.

Nothing here uses actors.periods, and the offsets of the past are read from the database's bytes.
"""

from __future__ import annotations

import functools
import importlib.resources
import io
import struct
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

DATABASE = importlib.resources.files("tzdata")
NAMES = tuple(DATABASE.joinpath("zones").read_text("utf-8").split())
DAY = 86_400
US = 1_000_000
LAST_YEAR = 2040
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class Change(NamedTuple):
    """An instant, in seconds since the epoch, at which a zone's offset changes."""

    at: int
    before: int
    after: int


class Rules(NamedTuple):
    """A board's zone, start of day and start of week."""

    zone: str
    day_starts_at: str
    week_starts_on: str = "monday"


class Naive(NamedTuple):
    """A window: its id and bounds in seconds."""

    id: str
    start: int
    end: int


def zone_bytes(name: str) -> bytes:
    return DATABASE.joinpath("zoneinfo", *name.split("/")).read_bytes()


def python_zone(name: str) -> ZoneInfo:
    """Load a zone for datetime."""
    return ZoneInfo.from_file(io.BytesIO(zone_bytes(name)), key=name)


def one_name_per_clock() -> list[str]:
    """Return the zones without those that are other names for the same data."""
    return sorted({zone_bytes(name): name for name in reversed(NAMES)}.values())


def utc_us(text: str) -> int:
    """Return the instant of a UTC time written as in RFC 3339, without the Z."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def _written_changes(data: bytes) -> list[Change]:
    """Read the changes that a TZif file (RFC 9636) spells out, from its 64-bit part."""

    def counts(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", data[at + 20 : at + 44])

    in_utc, standard, leaps, times, kinds, letters = counts(0)
    at = 44 + times * 5 + kinds * 6 + letters + leaps * 8 + standard + in_utc
    times, kinds = counts(at)[3:5]
    at += 44
    instants = struct.unpack(f">{times}q", data[at : at + 8 * times])
    indexes = data[at + 8 * times : at + 9 * times]
    at += 9 * times
    offsets = [struct.unpack(">l", data[at + 6 * i : at + 6 * i + 4])[0] for i in range(kinds)]
    row = [offsets[0], *(offsets[i] for i in indexes)]
    return [
        Change(instant, before, after)
        for instant, (before, after) in zip(instants, pairwise(row), strict=True)
        if before != after
    ]


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _scanned_changes(zone: ZoneInfo, since: int) -> Iterator[Change]:
    """Find the changes that follow from a zone's rule for the future, by looking."""
    step = 3 * DAY
    before = _offset(zone, since)
    for begin in range(since, midnight(date(LAST_YEAR, 1, 1)), step):
        after = _offset(zone, begin + step)
        if after != before:
            low, high = begin, begin + step
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _offset(zone, middle) == after else (middle, high)
            yield Change(high, before, after)
        before = after


@functools.cache
def changes(name: str) -> tuple[Change, ...]:
    """Return every change of a zone's offset before LAST_YEAR."""
    data = zone_bytes(name)
    written = _written_changes(data)
    rule_for_later = data.splitlines()[-1]
    if b"," not in rule_for_later:
        return tuple(written)
    since = written[-1].at if written else midnight(date(2000, 1, 1))
    return (*written, *_scanned_changes(python_zone(name), since))


class LocalClock:
    """A zone as stretches of time with one offset each."""

    def __init__(self, name: str) -> None:
        known = changes(name)
        self.ends = [*(change.at for change in known), 1 << 60]
        first = known[0].before if known else _offset(python_zone(name), 0)
        self.offsets = [first, *(change.after for change in known)]

    def near(self, wall: int) -> Iterator[tuple[int, int, int]]:
        """Yield begin, end and offset of what may show a local time."""
        for i in range(bisect_right(self.ends, wall - 2 * DAY), len(self.ends)):
            begin = self.ends[i - 1] if i else -(1 << 60)
            if begin > wall + 2 * DAY:
                return
            yield begin, self.ends[i], self.offsets[i]

    def start(self, wall: int) -> int:
        """Return when a local time first comes or, if it never does, when it is jumped over."""
        stretches = list(self.near(wall))
        shown = [wall - offset for begin, end, offset in stretches if begin <= wall - offset < end]
        if shown:
            return min(shown)
        (jump,) = (
            end
            for (_, end, before), (_, _, after) in pairwise(stretches)
            if end + before <= wall < end + after
        )
        return jump

    def shows(self, day: date) -> bool:
        """Tell whether a date ever comes."""
        wall = midnight(day)
        return any(
            begin + offset < wall + DAY and end + offset > wall
            for begin, end, offset in self.near(wall)
        )


@functools.cache
def clock(name: str) -> LocalClock:
    return LocalClock(name)


def begins(kind: str, day: date, week_starts_on: str) -> bool:
    """Tell whether a date is one on which windows of a kind nominally begin."""
    return {
        "daily": True,
        "weekly": WEEKDAYS[day.weekday()] == week_starts_on,
        "monthly": day.day == 1,
        "yearly": (day.month, day.day) == (1, 1),
    }[kind]


def windows(rules: Rules, kind: str, first: date, last: date) -> list[Naive]:
    """List the windows that begin from one date to another, by looking at each date.

    The last one's end is the next start after it, so the dates must go on for one window more.
    """
    local = clock(rules.zone)
    hours, minutes = map(int, rules.day_starts_at.split(":"))
    starts = []
    for ordinal in range(first.toordinal(), last.toordinal() + 1):
        day = date.fromordinal(ordinal)
        if begins(kind, day, rules.week_starts_on) and (kind != "daily" or local.shows(day)):
            starts.append((day, local.start(midnight(day) + hours * 3_600 + minutes * 60)))
    return [
        Naive(f"{kind}:{day.isoformat()}", start, end)
        for (day, start), (_, end) in pairwise(starts)
        if start < end
    ]


def local_date(change: Change) -> date:
    """Return the date that the local clock shows just before a change."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=change.at + change.before)).date()
