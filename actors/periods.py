"""Window arithmetic: which day, week, month or year of a board holds an instant, and its bounds.

Owns zones, local starts and ids. Instants are integers of microseconds since the epoch, in UTC. It
must not know boards, events or what time it is. The rules, of which all else follows:

    nominal start   local `day_starts_at` on a date: each day, each weekday that begins weeks, each
                    first of a month, each January 1
    id              kind:YYYY-MM-DD, the date of the nominal start
    start           the first instant at which the local clock shows the nominal start or, where it
                    jumps over that, anything later: the jump itself
    end             the start of the next window
    no window       a day whose date the local clock never shows, or of which a jump leaves nothing;
                    the day before lasts until the next one begins. A week, month or year with such
                    a first date begins at the jump

Starts never decrease as dates grow, whatever the clocks did, so the windows of a kind tile time
without gap or overlap.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import NamedTuple, ParamSpec
from zoneinfo import ZoneInfo

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

# So many days after the first of its days, a window is over and its successor is not.
_SPAN_DAYS = {"daily": 1, "weekly": 7, "monthly": 31, "yearly": 366}

# What a calendar keeps at hand of each kind. Live events fall into one window or, around its end,
# into two; imported history into a few neighbours.
_RECENT_MAX = 8
# Starts that are kept for all calendars: some years of days, at about 250 bytes each.
_STARTS_MAX = 2_048

_EPOCH_DAY = date(1970, 1, 1)
_ONE_DAY = timedelta(days=1)
_ONE_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000
_DAY_START = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")

_Asked = ParamSpec("_Asked")


class Bounds(NamedTuple):
    """A window: its start is included, its end excluded; all_time has neither."""

    id: str
    kind: str
    start_us: int | None
    end_us: int | None


ALL_TIME = Bounds("all_time", "all_time", None, None)


class _Window(NamedTuple):
    """A window's bounds as plain numbers, for arithmetic, and as they are given out."""

    start_us: int
    end_us: int
    bounds: Bounds


class _Start(NamedTuple):
    """When a nominal start comes, and what the local clock shows then: it, or something later."""

    instant_us: int
    shown_us: int


@functools.cache
def load_zone(name: str) -> ZoneInfo:
    """Load a zone from the tzdata package, never the system's, so that every machine agrees.

    Errors: FileNotFoundError for a name that the package's list of zones lacks.
    """
    file = importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with file.open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def _offset_us(zone: ZoneInfo, instant_us: int) -> int:
    """Return how far the local clock is ahead of UTC. Errors: OverflowError outside 1..9999."""
    # Both sides carry the zone, so the difference is that of what they show. Asking the local time
    # for its offset instead would depend on how it tells the two passes of a fold apart.
    moment = datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=instant_us)
    return (zone.fromutc(moment) - moment) // _ONE_MICROSECOND


@functools.lru_cache(maxsize=_STARTS_MAX)
def _first_reached(zone: ZoneInfo, wall_us: int) -> _Start:
    """Find the first instant at which the local clock shows `wall_us` or later.

    wall_us: the local time, counted as if it were UTC. An offset is less than a day, so the instant
    lies within a day of it; no zone of the database changes its offset twice within two days, so
    there is at most one change to look at. Errors: OverflowError outside 1..9999.
    """
    low, high = wall_us - _DAY_US, wall_us + _DAY_US
    before, after = _offset_us(zone, low), _offset_us(zone, high)
    if before == after:
        return _Start(wall_us - before, wall_us)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_us(zone, middle) == before:
            low = middle
        else:
            high = middle
    if wall_us - before < high:
        return _Start(wall_us - before, wall_us)
    instant_us = max(high, wall_us - after)
    return _Start(instant_us, instant_us + after)


def _midnight_us(day: date) -> int:
    """Return a date's local 00:00, counted as if it were UTC."""
    return (day - _EPOCH_DAY).days * _DAY_US


def _where_it_reaches(
    search: Callable[_Asked, _Window | None],
) -> Callable[_Asked, _Window | None]:
    """Make a search answer None where its arithmetic leaves the years 1 to 9999."""

    @functools.wraps(search)
    def searched(*args: _Asked.args, **kwargs: _Asked.kwargs) -> _Window | None:
        try:
            return search(*args, **kwargs)
        except OverflowError:
            return None

    return searched


class Calendar:
    """The windows of a board: a zone, when its days start and on which day its weeks do.

    timezone: a name of the IANA database. day_starts_at: HH:MM. week_starts_on: one of WEEKDAYS.
    A kind is all_time, daily, weekly, monthly or yearly.

    `window_at` and `window_named` find a window, `previous` and `following` its neighbours. All of
    them answer None where the calendar does not reach: outside the years 1 to 9999 and for windows
    that come near their edges.

    >>> calendar = Calendar("America/New_York", "00:00", "monday")
    >>> window = calendar.window_named("daily", "2026-03-08")
    >>> (window.end_us - window.start_us) / 3_600_000_000
    23.0
    >>> calendar.window_at("daily", window.end_us).id
    'daily:2026-03-09'
    >>> calendar.previous(window).id
    'daily:2026-03-07'
    """

    def __init__(self, timezone: str, day_starts_at: str, week_starts_on: str) -> None:
        start = _DAY_START.fullmatch(day_starts_at)
        assert start is not None, "day_starts_at is checked with the definition"
        self._zone = load_zone(timezone)
        self._day_start_us = (int(start[1]) * 60 + int(start[2])) * _MINUTE_US
        self._week_start = WEEKDAYS.index(week_starts_on)
        self._recent: dict[str, list[_Window]] = {kind: [] for kind in _SPAN_DAYS}

    def window_at(self, kind: str, instant_us: int) -> Bounds | None:
        """Find the window of a kind that contains an instant.

        O(1); a fraction of a microsecond for a window that was among the last few asked for.
        """
        if kind == "all_time":
            return ALL_TIME
        recent = self._recent[kind]
        for start_us, end_us, bounds in recent:
            if start_us <= instant_us < end_us:
                return bounds
        window = self._search(kind, instant_us)
        if window is None:
            return None
        recent.insert(0, window)
        del recent[_RECENT_MAX:]
        return window.bounds

    def window_named(self, kind: str, date_text: str) -> Bounds | None:
        """Find the window with the id kind:date_text.

        None, too, where the text is no date written YYYY-MM-DD, or one that begins no window.
        """
        if kind == "all_time":
            return None
        try:
            day = date.fromisoformat(date_text)
        except ValueError:
            return None
        if day.isoformat() != date_text:
            return None
        window = self._named(kind, day)
        return window and window.bounds

    def previous(self, bounds: Bounds) -> Bounds | None:
        """Find the window that ends where this one starts; None, too, for all_time."""
        return self._neighbour(bounds, self._before)

    def following(self, bounds: Bounds) -> Bounds | None:
        """Find the window that starts where this one ends; None, too, for all_time."""
        return self._neighbour(bounds, self._after)

    def _neighbour(self, bounds: Bounds, step: Callable[[str, date], date]) -> Bounds | None:
        if bounds.kind == "all_time":
            return None
        window = self._next_window(bounds.kind, _first_day_of(bounds), step)
        return window and window.bounds

    @_where_it_reaches
    def _next_window(
        self, kind: str, first: date, step: Callable[[str, date], date]
    ) -> _Window | None:
        """Step from a first day to the nearest one that begins a window."""
        first = step(kind, first)
        while (window := self._window(kind, first)) is None:
            first = step(kind, first)
        return window

    @_where_it_reaches
    def _named(self, kind: str, day: date) -> _Window | None:
        return self._window(kind, day) if self._first_day(kind, day) == day else None

    @_where_it_reaches
    def _search(self, kind: str, instant_us: int) -> _Window | None:
        shown_us = instant_us + _offset_us(self._zone, instant_us) - self._day_start_us
        first = self._first_day(kind, _EPOCH_DAY + timedelta(days=shown_us // _DAY_US))
        # The local clock shows that this window has started, if it is one. After it was set back,
        # a later one may have started, too.
        window = self._window(kind, first) or self._next_window(kind, first, self._before)
        while window is not None and window.end_us <= instant_us:
            window = self._next_window(kind, _first_day_of(window.bounds), self._after)
        return window

    def _window(self, kind: str, first: date) -> _Window | None:
        """Make the window that begins on a first day of its kind; None where none does."""
        start_us = self._start_us(kind, first)
        if start_us is None:
            return None
        later = self._after(kind, first)
        while (end_us := self._start_us(kind, later)) is None:
            later = self._after(kind, later)
        if start_us == end_us:  # the clock jumped by more than a day, from one's midst
            return None
        return _Window(start_us, end_us, Bounds(f"{kind}:{first}", kind, start_us, end_us))

    def _start_us(self, kind: str, first: date) -> int | None:
        """Find when a window starts; None for a day that the zone skips."""
        midnight_us = _midnight_us(first)
        start = _first_reached(self._zone, midnight_us + self._day_start_us)
        next_us = midnight_us + _DAY_US
        if (
            kind == "daily"
            and start.shown_us >= next_us
            and _first_reached(self._zone, midnight_us).shown_us >= next_us
        ):
            return None
        return start.instant_us

    def _first_day(self, kind: str, day: date) -> date:
        """Return the first day of the window with that day."""
        if kind == "daily":
            return day
        if kind == "weekly":
            return day - timedelta(days=(day.weekday() - self._week_start) % 7)
        return day.replace(day=1) if kind == "monthly" else day.replace(month=1, day=1)

    def _before(self, kind: str, first: date) -> date:
        return self._first_day(kind, first - _ONE_DAY)

    def _after(self, kind: str, first: date) -> date:
        return self._first_day(kind, first + timedelta(days=_SPAN_DAYS[kind]))


def _first_day_of(bounds: Bounds) -> date:
    return date.fromisoformat(bounds.id.rpartition(":")[2])
