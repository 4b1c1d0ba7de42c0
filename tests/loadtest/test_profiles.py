"""The traffic as data: who plays where, and what each call says."""

from __future__ import annotations

from collections import Counter

import pytest

from actors.exact import parse_time
from loadtest.profiles import (
    CUP,
    CUP_GRACE_SECONDS,
    DAILY_PLAYERS,
    FRIENDS,
    PROFILES,
    Call,
    Profile,
    Traffic,
    seed_event,
)
from loadtest.schedule import arrivals

BEGINS_AT = 1_800_000_000.0
EACH = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def traffic(profile: Profile, factor: float = 0.2, seconds: float = 60.0) -> Traffic:
    return Traffic(profile, factor, seconds, "run", BEGINS_AT)


def test_steady_is_a_game_of_five_million_daily_players() -> None:
    """500 events a second and 2,500 at the peak, 50 tops, and ten reads of ranks for each event."""
    profile = PROFILES["steady"]
    rates = {stream.call: stream.rate for stream in profile.streams}
    assert profile.players == DAILY_PLAYERS == 5_000_000
    assert rates[Call.EVENT] == 500
    assert max(phase.times for phase in profile.phases) * rates[Call.EVENT] == 2_500
    assert rates[Call.TOP] == 50
    read_at_once = rates[Call.EVENT]  # each event, as soon as it is acknowledged
    ranks = rates[Call.MEMBER] + rates[Call.AROUND] + rates[Call.FRIENDS] + read_at_once
    assert ranks == pytest.approx(10 * rates[Call.EVENT])


@EACH
def test_the_phases_of_a_profile_make_up_the_run(profile: Profile) -> None:
    """Their shares sum up to the whole."""
    assert sum(phase.share for phase in profile.phases) == pytest.approx(1)


@EACH
def test_who_is_asked_for_has_played(profile: Profile) -> None:
    """Whatever the factor, members and friends are players of the board that is asked."""
    for factor in (1e-6, 0.01, 1.0):
        run = traffic(profile, factor)
        for number in range(200):
            board = run.board(number)
            players = {seed_event(player)["member"] for player in range(min(board.players, 100))}
            friends = run.friends(number)
            assert len(set(friends)) == FRIENDS
            assert run.member(number) in friends
            if board.players <= 100:
                assert players.issuperset(friends)


def test_a_hot_board_takes_nearly_all_of_many_boards_traffic() -> None:
    """Of ten boards one has nineteen calls of twenty; each other has its own."""
    run = traffic(PROFILES["hot-board"])
    calls = Counter(run.board(number).name for number in range(100_000))
    (hot, most), *others = calls.most_common()
    assert hot == run.boards[0].name
    assert most == pytest.approx(95_000, rel=0.01)
    assert len(others) == 9
    assert all(count == pytest.approx(5_000 / 9, rel=0.2) for _, count in others)


@EACH
def test_an_event_says_the_same_whenever_it_is_sent(profile: Profile) -> None:
    """A number stands for one event, on one board; each run has boards of its own."""
    run, same = traffic(profile), traffic(profile)
    for number in range(100):
        assert run.event(number, 3.25) == same.event(number, 3.25)
        assert run.board(number) == same.board(number)
    other = Traffic(profile, 0.2, 60.0, "other", BEGINS_AT)
    assert {b.name for b in run.boards}.isdisjoint(b.name for b in other.boards)


def test_the_cup_ends_at_the_peak_of_the_boundary() -> None:
    """There are events before its end, late ones within the grace and after it, and later ones."""
    profile = PROFILES["boundary"]
    run = traffic(profile)
    _, cup = run.definition()["periods"]
    assert (cup["name"], parse_time(cup["end"])) == (CUP, run.cup_ends_us)
    ends_seconds = (parse_time(cup["end"]) / 1e6) - BEGINS_AT
    sides: Counter[tuple[bool, str]] = Counter()
    for due in arrivals(profile, 0.2, 60.0):
        if due.call is Call.EVENT:
            occurred_at = run.event(due.number, due.seconds)["occurred_at"]
            in_time = parse_time(occurred_at) / 1e6 - BEGINS_AT < ends_seconds
            after = due.due_seconds - ends_seconds
            side = "before" if after < 0 else "grace" if after < CUP_GRACE_SECONDS else "later"
            sides[in_time, side] += 1
    assert sides.keys() == {
        (True, "before"), (True, "grace"), (True, "later"), (False, "grace"), (False, "later"),
    }  # fmt: skip
    assert min(sides.values()) > 10
