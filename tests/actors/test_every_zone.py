"""Windows over every zone of the database, against local clocks that are read another way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.periods import WEEKDAYS, Bounds, Calendar
from tests.actors import zones
from tests.actors.zones import DAY, NAMES, US, Naive, Rules, utc_us, windows

KINDS = ("daily", "weekly", "monthly", "yearly")
STARTS = ("00:00", "02:30", "23:59", "02:00", "04:00", "12:00", "00:01", "01:59")
CLOCKS = zones.one_name_per_clock()
HOUR = 3_600


def calendar_of(rules: Rules) -> Calendar:
    return Calendar(rules.zone, rules.day_starts_at, rules.week_starts_on)


def as_bounds(window: Naive) -> Bounds:
    return Bounds(window.id, window.id.partition(":")[0], window.start * US, window.end * US)


def check(rules: Rules, kind: str, expected: list[Naive]) -> None:
    """Compare windows in a row with the naive ones: by name, by instant and as neighbours."""
    calendar = calendar_of(rules)
    found = [as_bounds(window) for window in expected]
    for bounds in found:
        start, end = bounds.start_us, bounds.end_us
        assert calendar.window_named(*bounds.id.split(":")) == bounds, rules
        for instant in (start, (start + end) // 2, end - 1):
            # Asked of a new calendar, which has nothing at hand.
            assert calendar_of(rules).window_at(kind, instant) == bounds, (rules, instant)
    for one, next_one in pairwise(found):
        assert one.end_us == next_one.start_us, rules
        assert calendar.following(one) == next_one, rules
        assert calendar.previous(next_one) == one, rules


def check_change(change: zones.Change, rules: Rules) -> None:
    """Check the windows of every kind around a change of a zone's offset."""
    day = zones.local_date(change)
    near = {
        "daily": (day - timedelta(days=3), day + timedelta(days=4)),
        "weekly": (day - timedelta(days=15), day + timedelta(days=15)),
        "monthly": (day - timedelta(days=33), day + timedelta(days=63)),
        "yearly": (date(day.year - 1, 1, 1), date(day.year + 2, 1, 1)),
    }
    daily = windows(rules, "daily", *near["daily"])
    check(rules, "daily", daily)
    jump = abs(change.after - change.before)
    for instant in (change.at - 1, change.at, change.at + jump // 2, change.at + jump):
        (day_of,) = (window for window in daily if window.start <= instant < window.end)
        assert calendar_of(rules).window_at("daily", instant * US) == as_bounds(day_of), rules
    for kind in KINDS[1:]:
        # Most changes fall far from a week's, month's or year's start; the others are met here.
        if any(
            zones.begins(kind, day + timedelta(days=days), rules.week_starts_on)
            for days in (-1, 0, 1, 2)
        ):
            check(rules, kind, windows(rules, kind, *near[kind]))


def turns(count: int) -> Iterator[tuple[str, str]]:
    """Deal out starts of day and of week, so that every pair has its turn."""
    for turn in range(count):
        yield STARTS[turn % len(STARTS)], WEEKDAYS[turn // len(STARTS) % len(WEEKDAYS)]


def test_windows_around_every_change_of_any_clock_are_those_of_the_rules() -> None:
    """Gaps, folds, skipped and repeated days: bounds are local starts, first or at the jump."""
    # What happens around a change depends on its instant and offsets alone: changes are a week
    # apart. So one zone of those that share a change stands for all.
    shared = {change: name for name in CLOCKS for change in zones.changes(name)}
    dealt = turns(len(shared))
    for (change, name), (day_start, week_start) in zip(shared.items(), dealt, strict=True):
        check_change(change, Rules(name, day_start, week_start))


@pytest.mark.parametrize("day_starts_at", STARTS)
def test_windows_around_great_jumps_are_those_of_the_rules(day_starts_at: str) -> None:
    """A zone that changes its side of the date line, or its offset by hours, has whole windows."""
    great = {
        change: name
        for name in CLOCKS
        for change in zones.changes(name)
        if abs(change.after - change.before) > 2 * HOUR
    }
    assert len(great) > 40
    for change, name in great.items():
        for week_start in WEEKDAYS:
            check_change(change, Rules(name, day_starts_at, week_start))


@pytest.mark.parametrize("turn", range(4))
def test_every_zone_tiles_the_years_around_now(turn: int) -> None:
    """Over every clock of the database, windows of a kind follow one another as the rules say."""
    for i, name in enumerate(CLOCKS):
        rules = Rules(name, STARTS[(i + turn) % len(STARTS)], WEEKDAYS[(i + turn) % len(WEEKDAYS)])
        kind, years = KINDS[(i + turn) % len(KINDS)], (2024, 2029)
        if kind == "daily":
            years = (2025, 2027)
        first, last = date(years[0], 1, 1), date(years[1], 1, 1)
        calendar = calendar_of(rules)
        expected = windows(rules, kind, first, last)
        walked = calendar.window_named(*expected[0].id.split(":"))
        for window in expected:
            assert walked == as_bounds(window), rules
            walked = calendar.following(walked)


def test_every_name_of_the_database_has_its_windows() -> None:
    """A name that shares another's data is a zone like any other."""
    now = utc_us("2026-11-30T10:00:00")
    for name in NAMES:
        rules = Rules(name, "02:30")
        (today,) = (
            window
            for window in windows(rules, "daily", date(2026, 11, 28), date(2026, 12, 3))
            if window.start * US <= now < window.end * US
        )
        assert calendar_of(rules).window_at("daily", now) == as_bounds(today), rules


def test_changes_are_further_apart_than_the_arithmetic_needs() -> None:
    """No zone of the database changes its offset twice within two days."""
    for name in CLOCKS:
        for one, next_one in pairwise(zones.changes(name)):
            assert next_one.at - one.at > 2 * DAY, name


@pytest.mark.parametrize(
    ("zone", "around"),
    [
        ("America/New_York", "2026-03-08T07:00:00"),
        ("America/New_York", "2026-11-01T06:00:00"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00"),
        ("Pacific/Apia", "2011-12-30T10:00:00"),
        ("Pacific/Kwajalein", "1993-08-21T12:00:00"),
        ("America/Sitka", "1867-10-19T00:31:13"),
        ("Asia/Manila", "1844-12-31T15:56:08"),
        ("Africa/Monrovia", "1972-01-07T00:44:30"),
        ("Europe/Amsterdam", "1937-07-01T00:00:00"),
        ("America/Sao_Paulo", "2018-11-04T03:00:00"),
    ],
)
@pytest.mark.parametrize("day_starts_at", ["00:00", "00:30", "02:30", "23:59"])
def test_a_start_is_when_a_watched_clock_first_shows_it(
    zone: str, around: str, day_starts_at: str
) -> None:
    """Read off datetime minute by minute, and second by second where the clock jumps."""
    clock = zones.python_zone(zone)
    calendar = Calendar(zone, day_starts_at, "monday")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def shown(second: int) -> datetime:
        return (epoch + timedelta(seconds=second)).astimezone(clock).replace(tzinfo=None)

    middle = utc_us(around) // US // 60 * 60
    starts: dict[date, int] = {}
    dates = set()
    due = datetime.combine(shown(middle - 3 * DAY).date(), datetime.min.time()) + timedelta(
        hours=int(day_starts_at[:2]), minutes=int(day_starts_at[3:])
    )
    for minute in range(middle - 3 * DAY, middle + 3 * DAY, 60):
        dates.add(shown(minute).date())
        steady = shown(minute + 60) - shown(minute) == timedelta(minutes=1)
        if steady and shown(minute + 60) < due:
            continue
        for second in range(minute, minute + 60):
            while shown(second) >= due:
                starts[due.date()] = second
                due += timedelta(days=1)
    lived = {day: start for day, start in starts.items() if day in dates}
    assert len(lived) >= 4
    # The watch began in the midst of the first day, whose start may lie before.
    for (day, start), (_, end) in list(pairwise(lived.items()))[1:]:
        bounds = calendar.window_named("daily", day.isoformat())
        assert bounds == (f"daily:{day}", "daily", start * US, end * US)
    for day in starts.keys() - lived.keys():
        assert calendar.window_named("daily", day.isoformat()) is None


INSTANTS = st.integers(utc_us("1800-01-01T00:00:00"), utc_us("2039-01-01T00:00:00"))
RULES = st.builds(
    Rules,
    st.sampled_from(NAMES),
    st.times().map(lambda time: f"{time:%H:%M}"),
    st.sampled_from(WEEKDAYS),
)


@given(rules=RULES, kind=st.sampled_from(KINDS), instant_us=INSTANTS)
@settings(max_examples=600, deadline=None)
@example(Rules("Pacific/Apia", "02:30"), "daily", utc_us("2011-12-30T11:00:00"))
@example(Rules("America/Sitka", "00:00"), "daily", utc_us("1867-10-19T01:00:00"))
def test_each_instant_lies_in_exactly_one_window(rules: Rules, kind: str, instant_us: int) -> None:
    """For any zone, start, kind and instant: one window, found again by its id."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us)
    days = {"daily": 4, "weekly": 16, "monthly": 64, "yearly": 740}[kind]
    reach = timedelta(days=days)
    around = windows(rules, kind, moment.date() - reach, moment.date() + reach)
    (expected,) = (window for window in around if window.start * US <= instant_us < window.end * US)
    calendar = calendar_of(rules)
    found = calendar.window_at(kind, instant_us)
    assert found == as_bounds(expected)
    assert calendar.window_named(*found.id.split(":")) == found
    before, after = calendar.previous(found), calendar.following(found)
    assert before is not None
    assert after is not None
    assert (before.end_us, after.start_us) == (found.start_us, found.end_us)
    assert calendar.following(before) == found == calendar.previous(after)


@given(
    rules=RULES,
    asked=st.lists(st.tuples(st.sampled_from(("all_time", *KINDS)), INSTANTS), max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_an_answer_does_not_depend_on_what_was_asked_before(
    rules: Rules, asked: list[tuple[str, int]]
) -> None:
    """What a calendar keeps at hand never changes what it answers."""
    used = calendar_of(rules)
    for kind, instant_us in asked * 2:
        assert used.window_at(kind, instant_us) == calendar_of(rules).window_at(kind, instant_us)
