"""Windows while they are open: what counts where, and when each closes, by the contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.questions import Submit, Top
from actors.submission import parse_submission
from persistence.records import EventsRecord, WindowClosedRecord
from tests.actors.board_harness import event, instant, read, replayed, settled
from tests.actors.clocked_board import ClockedBoard

NOON = "2026-11-30T12:00:00Z"  # a Monday
MIDNIGHT = "2026-12-01T00:00:00Z"
KINDS = ["all_time", "daily", "weekly", "monthly", "yearly"]
CUP = {"name": "cup", "start": "2026-11-30T00:00:00Z", "end": "2026-12-02T00:00:00Z"}
FINAL = {"name": "final", "start": "2026-12-05T00:00:00Z", "end": "2026-12-06T00:00:00Z"}
PAST = {"name": "past", "start": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z"}

Make = Callable[..., ClockedBoard]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make boards at noon; each must replay to the state that it ends with."""
    boards: list[ClockedBoard] = []

    def made(now: str = NOON, **fields: Any) -> ClockedBoard:
        directory = tmp_path / str(len(boards))
        directory.mkdir()
        fields = {"aggregation": "sum", "key_retention_days": None} | fields
        boards.append(ClockedBoard(directory, now, **fields))
        return boards[-1]

    yield made
    for board in boards:
        assert replayed(board.host.log).state_digest() == board.host.board.state_digest()
        board.close()


# Events


def test_an_event_counts_in_each_window_that_holds_it(make):
    """One event goes into every window of its instant, with a standing each, in order."""
    periods = ["weekly", CUP, "daily", "all_time", "yearly", "monthly"]
    board = make(periods=periods)
    board.send(1, member="bo")
    answer = board.send(5)
    assert answer["sequence"] == board.host.board.sequence
    assert answer["standings"] == [
        {"period": period, "score": 5, "rank": 1, "improved": True}
        for period in (
            "weekly:2026-11-30", "cup", "daily:2026-11-30", "all_time", "yearly:2026-01-01",
            "monthly:2026-11-01",
        )
    ]  # fmt: skip
    for period in ("weekly", "cup", "daily", "all_time", "yearly", "monthly", None):
        assert board.scores(period) == {"ada": 5, "bo": 1}


def test_an_event_and_its_windows_are_one_commit(make):
    """A window's first event opens it in its own record: both are on disk, or neither."""
    board = make(periods=["all_time", "daily", "weekly"])
    commits = board.host.log.stats.commits
    board.batch(board.event(1), board.event(2, member="bo"), board.event(1, "2026-11-29T12:00:00Z"))
    assert board.host.log.stats.commits == commits + 1
    *_, record = board.host.log.read()
    assert isinstance(record, EventsRecord)
    assert [opened.window for opened in record.opened] == [
        "daily:2026-11-30", "weekly:2026-11-30",
    ]  # fmt: skip
    board.send(1)
    *_, record = board.host.log.read()
    assert record.opened == ()


def test_a_commit_that_fails_opens_no_window(make, monkeypatch):
    """A refused commit leaves neither the event nor its window, in memory or in the log."""
    board = make(periods=["daily"])
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError(28, "planted")

        patch.setattr(board.host, "commit", fail)
        with pytest.raises(OSError, match="planted"):
            board.send(1, key="k")
    assert board.ids() == []
    assert board.counted(1, key="k") == ["daily:2026-11-30"]


def test_start_is_included_and_end_excluded(make):
    """The first microsecond of a day is its own, and the last one is not the next day's."""
    board = make(periods=["daily"], future_tolerance_seconds=86_400)
    last, first = "2026-11-30T23:59:59.999999Z", MIDNIGHT
    assert board.counted(1, last) == ["daily:2026-11-30"]
    assert board.counted(2, first) == ["daily:2026-12-01"]


def test_improved_is_told_for_each_window(make):
    """An event may be the member's best of the day and not of all time."""
    board = make(aggregation="best", periods=["all_time", "daily"])
    board.at("2026-11-29T12:00:00Z")
    board.send(9)
    board.at(NOON)
    standings = board.send(5)["standings"]
    assert [(s["period"], s["score"], s["improved"]) for s in standings] == [
        ("all_time", 9, False), ("daily:2026-11-30", 5, True),
    ]  # fmt: skip


def test_too_late_for_one_window_but_not_for_the_other(make):
    """An event of a closed day still counts in its week and for all time."""
    board = make(periods=KINDS, grace_seconds=60)
    board.send(1)
    board.at("2026-12-01T00:01:00Z")
    assert board.counted(2, NOON) == ["all_time", "weekly:2026-11-30", "yearly:2026-01-01"]
    assert board.scores("daily:2026-11-30") == {"ada": 1}
    assert board.scores("monthly:2026-11-01") == {"ada": 1}
    assert board.scores("weekly") == {"ada": 3}


@pytest.mark.parametrize("first", [True, False])
def test_late_events_count_until_end_and_grace(first, make):
    """One microsecond before end + grace a late event counts; then never, first or not."""
    board = make(periods=["daily"], grace_seconds=300)
    if first:
        board.send(1)
    board.at("2026-12-01T00:04:59.999999Z")
    assert board.counted(2, NOON) == ["daily:2026-11-30"]
    board.at("2026-12-01T00:05:00Z")
    assert board.send(4, NOON)["code"] == "period_closed"
    assert board.scores("daily:2026-11-30") == {"ada": 3 if first else 2}
    assert board.top("daily:2026-11-30")["period"]["closed"]


def test_a_window_without_events_is_too_late_all_the_same(make):
    """A day that never had an event takes none once its end and grace have passed."""
    board = make(periods=["daily"], grace_seconds=0)
    assert board.send(1, "2026-11-29T23:59:59Z")["code"] == "period_closed"
    assert board.ids() == []


def test_period_closed_leaves_no_trace(make):
    """A refused event takes no place in the log and does not use up its key."""
    board = make(periods=["daily"], grace_seconds=0)
    sequence = board.host.board.sequence
    assert board.send(1, "2026-11-01T00:00:00Z", key="k")["code"] == "period_closed"
    assert board.host.board.sequence == sequence
    answer = board.send(2, key="k")
    assert (answer["status"], answer["sequence"]) == ("applied", sequence + 1)


def test_a_retry_after_its_window_closed_is_a_duplicate(make):
    """A key outlives its window: the retry has the first one's sequence and no effect."""
    board = make(periods=["daily"], grace_seconds=0)
    first = board.send(1, key="undated")
    dated = board.send(1, NOON, key="dated")
    board.at("2026-12-02T00:00:00Z")
    board.seal()
    for key, occurred_at, sequence in (
        ("undated", None, first["sequence"]),
        ("dated", NOON, dated["sequence"]),
        ("dated", None, dated["sequence"]),
    ):
        again = board.send(1, occurred_at, key=key)
        assert (again["status"], again["sequence"]) == ("duplicate", sequence)
    assert board.send(2, key="undated")["code"] == "idempotency_conflict"
    assert board.ids() == ["daily:2026-11-30"]


def test_a_window_that_has_not_begun_counts_within_the_tolerance(make):
    """An event from the next day is taken within the tolerance, opens that day and counts there."""
    board = make("2026-11-30T23:59:30Z", periods=["daily", "weekly"], future_tolerance_seconds=60)
    assert board.counted(1, "2026-12-01T00:00:30Z") == ["daily:2026-12-01", "weekly:2026-11-30"]
    assert board.send(1, "2026-12-01T00:00:31Z")["code"] == "occurred_in_future"
    assert board.scores("daily") == {}
    board.at(MIDNIGHT)
    assert board.scores("daily") == {"ada": 1}


# Fixed windows


def test_a_fixed_window_ahead_takes_events_when_it_begins(make):
    """A fixed window ahead is empty and listed; events count in it from its start on."""
    board = make(periods=["all_time", FINAL], grace_seconds=0)
    assert board.scores("final") == {}
    assert board.counted(1) == ["all_time"]
    assert board.ids() == ["final", "all_time"]
    board.at("2026-12-04T23:59:59.999999Z")
    assert board.counted(1) == ["all_time"]
    board.at("2026-12-05T00:00:00Z")
    assert board.counted(2) == ["all_time", "final"]
    board.at("2026-12-06T00:00:00Z")
    assert board.counted(4) == ["all_time"]
    assert board.scores("final") == {"ada": 2}
    assert board.top("final")["period"]["closed"]


def test_a_board_of_one_fixed_window_refuses_all_else(make):
    """Where no window of the board holds the instant, the event is period_closed."""
    board = make(periods=[FINAL])
    assert board.send(1)["code"] == "period_closed"


def test_a_fixed_window_that_is_over_closes_at_once(make):
    """A window that was over when the board was made closes empty, and takes nothing."""
    board = make(periods=[PAST], grace_seconds=0)
    assert board.send(1, "2026-11-01T12:00:00Z")["code"] == "period_closed"
    (item,) = board.periods()["periods"]
    assert (item["id"], item["members"], item["closed"]) == ("past", 0, True)


def test_a_fixed_window_in_its_grace_still_counts(make):
    """A window that ended within the grace before the board was made takes late events."""
    board = make("2026-11-02T00:04:00Z", periods=[PAST])
    assert board.counted(1, "2026-11-01T12:00:00Z") == ["past"]
    board.at("2026-11-02T00:05:00Z")
    assert board.scores("past") == {"ada": 1}
    assert board.send(1, "2026-11-01T12:00:00Z")["code"] == "period_closed"


# Closing


def test_closing_is_one_record_each_in_order(make):
    """Whatever is due after a long gap closes once, earliest end first, in a single commit."""
    board = make(periods=KINDS, grace_seconds=0)
    for day in ("2026-11-30T12:00:00Z", "2026-12-01T12:00:00Z", "2026-12-02T12:00:00Z"):
        board.at(day)
        board.send(1)
    commits = board.host.log.stats.commits
    board.at("2027-02-01T00:00:00Z")
    assert board.host.log.stats.commits == commits + 1
    closings = [r for r in board.host.log.read() if isinstance(r, WindowClosedRecord)]
    assert [record.window for record in closings] == [
        "daily:2026-11-30", "monthly:2026-11-01", "daily:2026-12-01",
        "daily:2026-12-02", "weekly:2026-11-30", "monthly:2026-12-01", "yearly:2026-01-01",
    ]  # fmt: skip
    sequence = board.host.board.sequence
    board.close_due()
    assert board.host.board.sequence == sequence


def test_a_clock_that_steps_back_opens_nothing_again(make):
    """What closed stays closed when the clock goes back over its end."""
    board = make(periods=["daily"], grace_seconds=0)
    board.send(1)
    board.at("2026-12-01T00:00:01Z")
    board.at(NOON)
    assert board.send(2)["code"] == "period_closed"
    assert board.top("daily")["period"] == {
        "id": "daily:2026-11-30", "start": "2026-11-30T00:00:00Z", "end": MIDNIGHT,
        "closed": True, "revision": 1,
    }  # fmt: skip


def test_the_log_decides_on_which_side_of_a_close_an_event_falls(make):
    """Before the record of the closing an event counts, whatever its instants; after, none does."""
    board = make(periods=["daily"], grace_seconds=0)
    board.send(1)
    board.now_us += 86_400_000_000  # nobody closed anything yet
    assert _unclosed(board, board.event(2, NOON)) == "applied"
    board.close_due()
    assert _unclosed(board, board.event(4, NOON)) == "period_closed"
    assert board.scores("daily:2026-11-30") == {"ada": 3}


def _unclosed(board: ClockedBoard, event: Any) -> str:
    """Submit an event without closing what is due."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board, "close_due", lambda: None)
        (status,) = board.batch(event)
        return status


def test_a_longer_grace_keeps_open_and_a_shorter_one_closes(make):
    """A PATCH of the grace holds for windows that are open; closed ones stay closed."""
    board = make(periods=["daily"], grace_seconds=0)
    board.send(1)
    board.at("2026-11-30T23:59:00Z")
    board.patch(grace_seconds=3_600)
    board.at("2026-12-01T00:59:59Z")
    assert board.counted(2, NOON) == ["daily:2026-11-30"]
    board.patch(grace_seconds=60)
    assert board.top("daily:2026-11-30")["period"]["closed"]
    board.patch(grace_seconds=86_400)
    assert board.send(4, NOON)["code"] == "period_closed"


def test_history_is_imported_and_then_closed(make):
    """In backfill any past instant counts and nothing closes; live closes all that is due."""
    board = make(periods=["all_time", "daily", "yearly", PAST], mode="backfill", grace_seconds=0)
    instants = ["1999-12-31T23:59:59Z", "2000-01-01T00:00:00Z", "2026-11-01T12:00:00Z", NOON]
    for occurred_at in instants:
        board.send(1, occurred_at)
    board.at("2026-12-01T00:00:00Z")
    assert not any(item["closed"] for item in board.periods()["periods"])
    board.patch(mode="live")
    assert {item["id"]: item["closed"] for item in board.periods()["periods"]} == {
        "daily:2026-11-30": True,
        "past": True,
        "daily:2026-11-01": True,
        "yearly:2026-01-01": False,
        "yearly:2000-01-01": True,
        "daily:2000-01-01": True,
        "daily:1999-12-31": True,
        "yearly:1999-01-01": True,
        "all_time": False,
    }
    assert board.scores() == {"ada": 4}


def test_what_is_closed_stays_closed_in_backfill(make):
    """Back in backfill a closed window takes nothing more; one that never was, does."""
    board = make(periods=["daily"], grace_seconds=0)
    board.send(1)
    board.at(MIDNIGHT)
    board.patch(mode="backfill")
    assert board.send(2, NOON)["code"] == "period_closed"
    assert board.counted(2, "2026-11-29T12:00:00Z") == ["daily:2026-11-29"]
    board.patch(mode="live")
    assert board.send(4, "2026-11-29T12:00:00Z")["code"] == "period_closed"
    assert board.scores("daily:2026-11-30") == {"ada": 1}
    assert board.scores("daily:2026-11-29") == {"ada": 2}


def test_all_time_never_closes(make):
    """A window without an end is open whatever the clock says."""
    board = make(grace_seconds=0)
    board.send(1)
    board.at("9999-01-01T00:00:00Z")
    assert board.counted(1) == ["all_time"]
    assert board.refusal(Top, "all_time:2026-11-30", 1, None) == "period_not_found"


def test_a_commit_counts_as_it_was_planned(make):
    """Events of one commit see the windows that it opens: in counting, and at the exact range."""
    midnight_us = instant(MIDNIGHT)
    early = (midnight_us - 1_000, [event("ada", 1, "a", occurred_at=midnight_us - 1_000)])
    late = (midnight_us + 1_000, [event("bo", 1, "b", occurred_at=midnight_us - 500)])
    board = make(periods=["all_time", "daily"], grace_seconds=0)
    replies = together(board, early, late)
    assert [reply["applied"] for reply in replies] == [1, 1]
    assert board.scores("daily:2026-11-30") == {"ada": 1, "bo": 1}
    highest = 2**53 - 1
    board = make(periods=["all_time", "daily"], grace_seconds=0)
    board.send(-highest, "2026-11-30T11:00:00Z")
    board.at(MIDNIGHT)
    board.at("2026-12-01T12:00:00Z")
    next_us = instant("2026-12-02T00:00:00Z")
    most = (next_us - 1_000, [event("ada", highest, "most", occurred_at=next_us - 1_000)])
    more = (next_us + 1_000, [event("ada", 5, "more", occurred_at=next_us - 500)])
    replies = together(board, most, more)
    assert replies[0]["applied"] == 1
    assert replies[1]["results"][0]["code"] == "value_out_of_range"
    assert board.scores("daily:2026-12-01") == {"ada": highest}


def together(board, *submissions):
    """Submit batches of several times of receipt in one plan."""
    parsed = [
        parse_submission(Submit(False, now_us, json.dumps({"events": events}).encode(), False))
        for now_us, events in submissions
    ]
    return list(map(read, settled(board.host, parsed, submissions[-1][0])))


def test_a_duplicate_is_answered_by_the_windows_of_the_first(make):
    """A retry without its time shows where the event counted, not where the retry would."""
    board = make(periods=["daily", "all_time"], grace_seconds=0)
    board.send(3, key="a")
    board.at("2026-12-01T12:00:00Z")
    board.send(4, key="b")
    again = board.send(3, key="a")
    assert again["status"] == "duplicate"
    assert [standing["period"] for standing in again["standings"]] == ["all_time"]
