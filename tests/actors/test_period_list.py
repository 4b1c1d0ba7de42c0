"""The list of a board's windows and its next boundaries, by the contract."""

from __future__ import annotations

import pytest

from actors.errors import Refusal
from tests.actors.board_harness import DAY_US
from tests.actors.test_closed_windows import CUP, FINAL, NEXT_NOON, days, make

__all__ = ["make"]


def test_the_list_is_complete_and_newest_first(make):
    """Every window that ever held an event and every fixed one is listed, with its dates."""
    board = make(periods=["all_time", "daily", CUP, FINAL], grace_seconds=300)
    days(board, "2026-11-28", "2026-11-30", "2026-12-01")
    board.at(NEXT_NOON)
    items = board.periods()["periods"]
    assert [item["id"] for item in items] == [
        "final", "daily:2026-12-01", "daily:2026-11-30", "cup", "daily:2026-11-28", "all_time",
    ]  # fmt: skip
    assert items[2] == {
        "id": "daily:2026-11-30",
        "start": "2026-11-30T00:00:00Z",
        "end": "2026-12-01T00:00:00Z",
        "closes_at": "2026-12-01T00:05:00Z",
        "closed": True,
        "closed_at": NEXT_NOON,
        "members": 1,
        "digest": board.digest("daily:2026-11-30"),
        "revision": 1,
    }
    assert items[-1] == {
        "id": "all_time", "start": None, "end": None, "closes_at": None, "closed": False,
        "closed_at": None, "members": 1, "digest": None, "revision": None,
    }  # fmt: skip
    assert len(items[2]["digest"]) == 64


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_the_list_comes_in_pages(limit, make):
    """Pages neither repeat nor skip a window, also when windows open and close meanwhile."""
    board = make(periods=["all_time", "daily", "weekly"])
    days(board, "2026-11-28", "2026-11-29", "2026-11-30")
    whole, found, after = board.ids(), [], None
    while after or not found:
        page = board.periods(limit=limit, after=after)
        found += [item["id"] for item in page["periods"]]
        after = page["next"]
        board.now_us += DAY_US
        board.send(1)
    assert found == whole
    with pytest.raises(Refusal, match="no cursor"):
        board.periods("daily", after=board.periods(limit=1)["next"])


def test_the_list_of_one_kind(make):
    """With a kind only its windows are listed; one that the board lacks is not found."""
    board = make(periods=["all_time", "daily", CUP])
    days(board, "2026-11-29", "2026-11-30")
    assert board.ids("daily") == ["daily:2026-11-30", "daily:2026-11-29"]
    assert board.ids("cup") == ["cup"]
    with pytest.raises(Refusal) as refused:
        board.periods("weekly")
    assert refused.value.code == "period_not_found"


def test_upcoming_boundaries(make):
    """The next boundary of each period is told: a window's end, or a fixed one's start."""
    board = make(
        periods=["all_time", "daily", "weekly", "monthly", "yearly", CUP, FINAL],
        timezone="America/New_York",
    )
    upcoming = {
        "daily": "2026-12-01T05:00:00Z",
        "weekly": "2026-12-07T05:00:00Z",
        "monthly": "2026-12-01T05:00:00Z",
        "yearly": "2027-01-01T05:00:00Z",
        "cup": "2026-12-02T00:00:00Z",
        "final": "2026-12-05T00:00:00Z",
    }
    assert board.periods()["upcoming"] == upcoming
    assert board.periods(limit=1)["upcoming"] == upcoming
    board.at("2026-12-05T00:00:00Z")
    later = board.periods()["upcoming"]
    assert (later.get("cup"), later["final"]) == (None, "2026-12-06T00:00:00Z")
