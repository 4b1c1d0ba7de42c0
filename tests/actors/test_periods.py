"""Windows by example: long and short days, starts that jump or repeat, edges, malformed names."""

from __future__ import annotations

import doctest
import io
import struct
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import actors.periods
from actors.periods import ALL_TIME, Bounds, Calendar, load_zone
from tests.actors import zones
from tests.actors.zones import DAY, US, utc_us

HOUR = 3_600
FIRST_US = utc_us("0001-01-01T00:00:00")
LAST_US = utc_us("9999-12-31T23:59:59")


def named(calendar: Calendar, window_id: str) -> Bounds:
    bounds = calendar.window_named(*window_id.split(":"))
    assert bounds is not None
    return bounds


def length(bounds: Bounds) -> int:
    """Return a window's length in seconds."""
    assert bounds.start_us is not None
    assert bounds.end_us is not None
    return (bounds.end_us - bounds.start_us) // US


def ids(*found: Bounds | None) -> list[str | None]:
    return [bounds and bounds.id for bounds in found]


def test_days_of_new_york_last_23_and_25_hours() -> None:
    """A day is as long as the local clock makes it, and a week with it."""
    calendar = Calendar("America/New_York", "00:00", "monday")
    assert named(calendar, "daily:2026-03-08") == (
        "daily:2026-03-08",
        "daily",
        utc_us("2026-03-08T05:00:00"),
        utc_us("2026-03-09T04:00:00"),
    )
    assert length(named(calendar, "daily:2026-11-01")) == 25 * HOUR
    assert length(named(calendar, "daily:2026-11-02")) == DAY
    assert length(named(calendar, "weekly:2026-03-02")) == 7 * DAY - HOUR
    assert length(named(calendar, "weekly:2026-10-26")) == 7 * DAY + HOUR


def test_lord_howe_changes_by_half_an_hour() -> None:
    """A day can last 23.5 or 24.5 hours."""
    calendar = Calendar("Australia/Lord_Howe", "00:00", "monday")
    assert length(named(calendar, "daily:2026-04-05")) == 24 * HOUR + 1_800
    assert length(named(calendar, "daily:2026-10-04")) == 24 * HOUR - 1_800


def test_a_start_that_does_not_exist_is_the_first_instant_after_it() -> None:
    """New York jumps from 02:00 to 03:00; São Paulo did at midnight; Liberia by 44 min 30 s."""
    new_york = Calendar("America/New_York", "02:30", "monday")
    assert named(new_york, "daily:2026-03-08").start_us == utc_us("2026-03-08T07:00:00")
    assert named(new_york, "daily:2026-03-09").start_us == utc_us("2026-03-09T06:30:00")
    sao_paulo = Calendar("America/Sao_Paulo", "00:00", "monday")
    assert named(sao_paulo, "daily:2018-11-04").start_us == utc_us("2018-11-04T03:00:00")
    late = Calendar("America/Sao_Paulo", "00:30", "monday")
    assert named(late, "daily:2018-11-04").start_us == utc_us("2018-11-04T03:00:00")
    monrovia = Calendar("Africa/Monrovia", "00:30", "monday")
    assert named(monrovia, "daily:1972-01-07").start_us == utc_us("1972-01-07T00:44:30")


def test_of_a_start_that_comes_twice_the_first_counts() -> None:
    """New York shows 01:30 twice: what comes between belongs to the new day already."""
    start_us = utc_us("2026-11-01T05:30:00")
    for instant_us, day in (
        (start_us - 1, "2026-10-31"),
        (start_us, "2026-11-01"),
        (start_us + HOUR * US // 2, "2026-11-01"),
        (start_us + HOUR * US - 1, "2026-11-01"),
    ):
        calendar = Calendar("America/New_York", "01:30", "monday")
        assert ids(calendar.window_at("daily", instant_us)) == [f"daily:{day}"]
        assert named(calendar, "daily:2026-11-01").start_us == start_us


@pytest.mark.parametrize("day_starts_at", ["00:00", "00:01", "02:30", "12:00", "23:59"])
@pytest.mark.parametrize(
    ("zone", "before", "skipped", "after"),
    [
        ("Pacific/Apia", "2011-12-29", "2011-12-30", "2011-12-31"),
        ("Pacific/Fakaofo", "2011-12-29", "2011-12-30", "2011-12-31"),
        ("Pacific/Kwajalein", "1993-08-20", "1993-08-21", "1993-08-22"),
        ("Pacific/Kiritimati", "1994-12-30", "1994-12-31", "1995-01-01"),
        ("Pacific/Enderbury", "1994-12-30", "1994-12-31", "1995-01-01"),
        ("Asia/Manila", "1844-12-30", "1844-12-31", "1845-01-01"),
    ],
)
def test_a_skipped_day_is_no_window(
    zone: str, before: str, skipped: str, after: str, day_starts_at: str
) -> None:
    """The day before lasts until the next, and no day is cut short or made long by the skip."""
    calendar = Calendar(zone, day_starts_at, "monday")
    assert calendar.window_named("daily", skipped) is None
    one, next_one = named(calendar, f"daily:{before}"), named(calendar, f"daily:{after}")
    assert calendar.following(one) == next_one
    assert calendar.previous(next_one) == one
    assert length(one) == length(next_one) == DAY


def test_a_week_a_month_and_a_year_begin_though_their_first_day_is_skipped() -> None:
    """Only a day can be skipped: a week that began on it begins at the jump."""
    jump = utc_us("2011-12-30T10:00:00")
    week = named(Calendar("Pacific/Apia", "02:30", "friday"), "weekly:2011-12-30")
    assert week.start_us == jump
    assert length(week) == 6 * DAY + 2 * HOUR + 1_800


def test_a_day_of_which_a_jump_leaves_nothing_is_no_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that jumps by 30 hours shows a date's morning, but no day begun at six."""
    jump = utc_us("2001-01-01T20:00:00") // US
    header = struct.pack(">5s15x6l", b"TZif", 0, 0, 0, 1, 2, 1)
    body = struct.pack(">lBlBBlBBc", jump, 1, -16 * HOUR, 0, 0, 14 * HOUR, 0, 0, b"\0")
    invented = zoneinfo.ZoneInfo.from_file(io.BytesIO(header + body))
    monkeypatch.setattr(actors.periods, "load_zone", lambda name: invented)
    calendar = Calendar("an invented zone", "06:00", "monday")
    assert calendar.window_named("daily", "2001-01-01") is None
    before, after = named(calendar, "daily:2000-12-31"), named(calendar, "daily:2001-01-02")
    assert before.end_us == after.start_us == jump * US
    assert calendar.following(before) == after
    assert calendar.previous(after) == before


@pytest.mark.parametrize(
    ("zone", "repeated", "day_starts_at"),
    [
        ("America/Sitka", "1867-10-18", "23:59"),
        ("America/Sitka", "1867-10-19", "00:00"),
        ("America/Juneau", "1867-10-18", "23:59"),
        ("Pacific/Kwajalein", "1969-09-30", "02:00"),
    ],
)
def test_a_day_that_comes_twice_is_one_window(zone: str, repeated: str, day_starts_at: str) -> None:
    """A clock set back by most of a day or more makes one day long, and none of them twice."""
    calendar = Calendar(zone, day_starts_at, "monday")
    day = named(calendar, f"daily:{repeated}")
    (change,) = (
        change for change in zones.changes(zone) if abs(change.at - day.start_us // US) < 3 * DAY
    )
    assert length(day) == DAY + change.before - change.after
    assert calendar.window_at("daily", day.start_us) == day
    assert calendar.window_at("daily", day.end_us - 1) == day


@pytest.mark.parametrize(
    ("week_starts_on", "week", "next_week"),
    [
        ("monday", "2026-12-28", "2027-01-04"),
        ("tuesday", "2026-12-29", "2027-01-05"),
        ("wednesday", "2026-12-30", "2027-01-06"),
        ("thursday", "2026-12-31", "2027-01-07"),
        ("friday", "2027-01-01", "2027-01-08"),
        ("saturday", "2026-12-26", "2027-01-02"),
        ("sunday", "2026-12-27", "2027-01-03"),
    ],
)
def test_a_week_goes_on_across_new_year(week_starts_on: str, week: str, next_week: str) -> None:
    """A week is seven days from the weekday that the board says, whatever year they are in."""
    calendar = Calendar("UTC", "00:00", week_starts_on)
    found = calendar.window_at("weekly", utc_us("2027-01-01T12:00:00"))
    assert found is not None
    assert found.id == f"weekly:{week}"
    assert length(found) == 7 * DAY
    assert ids(calendar.following(found)) == [f"weekly:{next_week}"]


def test_leap_days_are_days() -> None:
    """A leap year has February 29 and 366 days; a century only every fourth time."""
    calendar = Calendar("UTC", "00:00", "monday")
    assert ids(
        calendar.window_named("daily", "2028-02-29"),
        calendar.window_named("daily", "2027-02-29"),
        calendar.window_named("daily", "2000-02-29"),
        calendar.window_named("daily", "2100-02-29"),
    ) == ["daily:2028-02-29", None, "daily:2000-02-29", None]
    assert length(named(calendar, "monthly:2028-02-01")) == 29 * DAY
    assert length(named(calendar, "yearly:2028-01-01")) == 366 * DAY
    assert length(named(calendar, "yearly:2100-01-01")) == 365 * DAY


@pytest.mark.parametrize(
    ("kind", "date_text"),
    [
        ("daily", "2026-02-30"),
        ("daily", "2026-13-01"),
        ("daily", "0000-01-02"),
        ("daily", "20261130"),
        ("daily", "2026-W49-1"),
        ("daily", "2026-11-30T00:00"),
        ("daily", " 2026-11-30"),
        ("daily", "2026-11-3\u0660"),
        ("daily", "2026-11-3\ud800"),
        ("daily", "-026-11-30"),
        ("daily", "2026-1-1"),
        ("daily", "12026-11-30"),
        ("daily", "previous"),
        ("daily", ""),
        ("weekly", "2026-12-01"),
        ("monthly", "2026-12-02"),
        ("yearly", "2026-02-01"),
        ("yearly", "2026-01-02"),
        ("all_time", "2026-11-30"),
    ],
)
def test_a_date_that_begins_no_window_names_none(kind: str, date_text: str) -> None:
    """Only a date written YYYY-MM-DD that begins a window of the kind finds one."""
    assert Calendar("UTC", "00:00", "monday").window_named(kind, date_text) is None


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("day_starts_at", ["00:00", "23:59"])
def test_the_calendar_ends_with_the_years_1_and_9999(zone: str, day_starts_at: str) -> None:
    """At the edges there is no window instead of a wrong one, and ids keep four digits."""
    calendar = Calendar(zone, day_starts_at, "monday")
    for kind, days in (("daily", 4), ("weekly", 15), ("monthly", 63), ("yearly", 732)):
        first = calendar.window_at(kind, FIRST_US + days * DAY * US)
        last = calendar.window_at(kind, LAST_US - days * DAY * US)
        for found, step in ((first, calendar.previous), (last, calendar.following)):
            assert found is not None
            edge = found
            while (further := step(edge)) is not None:
                assert named(calendar, further.id) == further
                assert calendar.window_at(kind, further.start_us) == further
                edge = further
            beyond = edge.start_us - 1 if found is first else edge.end_us
            assert calendar.window_at(kind, beyond) is None
        assert first.id.startswith(f"{kind}:000")
        assert last.id.startswith(f"{kind}:999")
        for far_us in (FIRST_US, LAST_US, 1 << 62, -(1 << 62)):
            assert calendar.window_at(kind, far_us) is None
        for text in ("0001-01-01", "9999-12-31"):
            assert calendar.window_named(kind, text) is None


def test_all_time_is_one_window_without_bounds() -> None:
    """It contains every instant, however far, and has no neighbours."""
    calendar = Calendar("UTC", "00:00", "monday")
    assert Bounds("all_time", "all_time", None, None) == ALL_TIME
    for instant_us in (0, -(1 << 62), 1 << 62):
        assert calendar.window_at("all_time", instant_us) == ALL_TIME
    assert calendar.previous(ALL_TIME) is None
    assert calendar.following(ALL_TIME) is None


@pytest.fixture
def false_system_zones(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Give a machine whose own zone data calls Tokyo's clock New York's."""
    (tmp_path / "America").mkdir()
    (tmp_path / "America/New_York").write_bytes(zones.zone_bytes("Asia/Tokyo"))
    zoneinfo.reset_tzpath(to=[tmp_path])
    load_zone.cache_clear()
    yield SimpleNamespace(zone=zoneinfo.ZoneInfo.no_cache("America/New_York"))
    zoneinfo.reset_tzpath()
    load_zone.cache_clear()


def test_the_zone_data_of_the_machine_does_not_matter(
    false_system_zones: SimpleNamespace,
) -> None:
    """Zones come from the tzdata package alone, so every machine agrees."""
    noon = datetime(2026, 7, 1, 12, tzinfo=false_system_zones.zone)
    assert noon.utcoffset() == timedelta(hours=9)
    day = named(Calendar("America/New_York", "00:00", "monday"), "daily:2026-07-01")
    assert day.start_us == utc_us("2026-07-01T04:00:00")


def test_the_examples_in_the_docstrings_hold() -> None:
    """What the module shows is what it does."""
    assert doctest.testmod(actors.periods).failed == 0
