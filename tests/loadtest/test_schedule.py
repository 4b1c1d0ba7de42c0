"""The schedule of a run: what is due when, fixed in advance and handed out once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from loadtest.profiles import PROFILES, Call, Profile
from loadtest.schedule import Arrival, Schedule, arrivals

FACTOR = 0.2
SECONDS = 50.0


def due_between(due: list[Arrival], begins: float, ends: float) -> Counter[Call]:
    return Counter(each.call for each in due if begins <= each.due_seconds < ends)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_calls_are_due_in_order_within_the_run(profile: Profile) -> None:
    """Times rise from the begin of the run, and the same run is offered again to whoever asks."""
    due = arrivals(profile, 0.02, 5.0)
    times = [each.due_seconds for each in due]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 5.0 + max(profile.sent_after_seconds)
    assert arrivals(profile, 0.02, 5.0) == due
    assert {each.call for each in due} == {stream.call for stream in profile.streams}


def test_rates_are_those_of_the_phase() -> None:
    """Events come at their rate, five times it at the peak; what does not surge stays as it is."""
    due = arrivals(PROFILES["steady"], FACTOR, SECONDS)
    ordinary, peak = due_between(due, 0, 20), due_between(due, 20, 30)
    assert ordinary[Call.EVENT] == pytest.approx(20 * FACTOR * 500, rel=0.1)
    assert peak[Call.EVENT] == pytest.approx(10 * FACTOR * 2_500, rel=0.1)
    assert ordinary[Call.TOP] == pytest.approx(20 * FACTOR * 50, rel=0.3)
    assert peak[Call.TOP] == pytest.approx(10 * FACTOR * 50, rel=0.4)


def test_gaps_are_those_of_players_who_know_nothing_of_each_other() -> None:
    """Gaps between calls of a kind vary by as much as they last, as chance has it."""
    due = arrivals(PROFILES["hot-board"], FACTOR, SECONDS)
    times = [each.due_seconds for each in due if each.call is Call.EVENT]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(mean, rel=0.1)


def test_each_event_of_a_retry_storm_is_due_three_times() -> None:
    """Two of them come at one time and the third later, all as the event was at first."""
    due = arrivals(PROFILES["retry-storm"], 0.02, 5.0)
    sent: dict[int, list[Arrival]] = {}
    for each in due:
        if each.call is Call.EVENT:
            sent.setdefault(each.number, []).append(each)
    assert len(sent) > 100
    for copies in sent.values():
        first = copies[0].due_seconds
        assert [each.due_seconds for each in copies] == [first, first, first + 0.25]
        assert {each.seconds for each in copies} == {first}


def test_reads_and_events_have_numbers_of_their_own() -> None:
    """No two calls share a number, so no two events share a key."""
    due = arrivals(PROFILES["steady"], 0.05, 5.0)
    assert len({each.number for each in due}) == len(due)


def test_processes_share_the_calls() -> None:
    """Together several processes make each call once, and each its part of every kind."""
    due = arrivals(PROFILES["steady"], 0.02, 5.0)
    schedules = [Schedule(due, index, 3) for index in range(3)]
    offered = sum((schedule.offered for schedule in schedules), Counter())
    taken: list[Arrival] = []
    for schedule in schedules:
        mine = list(iter(schedule.take, None))
        assert Counter(each.call for each in mine) == schedule.offered
        assert mine[-1].due_seconds == schedule.due_seconds
        assert schedule.take() is None
        taken += mine
    assert sorted(taken) == due
    assert offered == Counter(each.call for each in due)
