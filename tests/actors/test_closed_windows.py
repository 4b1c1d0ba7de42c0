"""Windows after they closed: what is asked of them, listed, kept and forgotten, by the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import Refusal
from actors.questions import Around, Digest, Member, Question, Rank, Top
from actors.sealed import NotAtHandError
from tests.actors.board_harness import SMALL, MemoryBoard, ask, define, event, statuses
from tests.actors.clocked_board import ClockedBoard

NOON = "2026-11-30T12:00:00Z"  # a Monday
NEXT_NOON = "2026-12-01T12:00:00Z"
CUP = {"name": "cup", "start": "2026-11-30T00:00:00Z", "end": "2026-12-02T00:00:00Z"}
FINAL = {"name": "final", "start": "2026-12-05T00:00:00Z", "end": "2026-12-06T00:00:00Z"}

Make = Callable[..., ClockedBoard]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make boards at noon."""
    boards: list[ClockedBoard] = []

    def made(now: str = NOON, **fields: Any) -> ClockedBoard:
        directory = tmp_path / str(len(boards))
        directory.mkdir()
        fields = {"aggregation": "sum", "key_retention_days": None, "grace_seconds": 0} | fields
        boards.append(ClockedBoard(directory, now, **fields))
        return boards[-1]

    yield made
    for board in boards:
        board.close()


def days(board: ClockedBoard, *dates: str, value: int = 1) -> None:
    """Play at noon of each date."""
    for date in dates:
        board.at(f"{date}T12:00:00Z")
        board.send(value)


# Which window a query means


def test_period_names_a_window(make):
    """A kind means the window of now, :previous the one before it, a date that which it begins."""
    board = make(periods=["daily", "weekly", CUP])
    days(board, "2026-11-29", "2026-11-30")
    for period, window in (
        (None, "daily:2026-11-30"),
        ("daily", "daily:2026-11-30"),
        ("daily:previous", "daily:2026-11-29"),
        ("daily:2026-11-29", "daily:2026-11-29"),
        ("weekly", "weekly:2026-11-30"),
        ("weekly:previous", "weekly:2026-11-23"),
        ("cup", "cup"),
    ):
        assert board.top(period)["period"]["id"] == window
        assert board.scores(period) == {"ada": 1}


@pytest.mark.parametrize(
    "period",
    ["monthly", "monthly:2026-11-01", "weekly:2026-12-01", "daily:2026-02-29", "daily:2026-1-01",
     "daily:", "daily:current", "daily:next", "daily:20261130", "cup:previous", "cup:2026-11-30",
     "final", "all_time", "nonsense", ""],
)  # fmt: skip
def test_a_window_that_no_board_has_is_not_found(period, make):
    """A kind the board lacks, a date that begins no window, and any other text are not found."""
    board = make(periods=["daily", "weekly", CUP])
    assert board.refusal(Top, period, 1, None) == "period_not_found"
    assert board.refusal(Digest, period) == "period_not_found"


@pytest.mark.parametrize("closed", [True, False])
def test_a_window_without_events_is_empty(closed, make):
    """A day nobody played in answers with no entries, its bounds, and whether it is over.

    No record closed it, so it has no revision that a prize could be settled on.
    """
    board = make(periods=["daily"])
    date, end = ("2026-11-09", "2026-11-10") if closed else ("2026-12-09", "2026-12-10")
    period = f"daily:{date}"
    about = {
        "board": "b",
        "period": {
            "id": period, "start": f"{date}T00:00:00Z", "end": f"{end}T00:00:00Z",
            "closed": closed, "revision": None,
        },
        "members": 0,
        "sequence": 1,
    }  # fmt: skip
    assert board.top(period) == about | {"entries": [], "next": None}
    rank = board.ask(Rank(False, board.now_us, period, None, "5"))
    assert rank == about | {"rank": 1, "position": 1}
    around = Around(False, board.now_us, period, None, None, 1, None, 2, 2)
    assert board.ask(around) == about | {"entries": []}
    assert board.refusal(Member, period, "ada") == "member_not_found"
    assert board.digest(period) == board.digest("daily")
    assert board.ids() == []


def test_a_revision_is_that_of_a_closed_window(make):
    """Revision 1 answers once the window closed; before that, and for others, there is none."""
    board = make(periods=["daily"])
    days(board, "2026-11-30")

    def revised(revision: int) -> Question:
        return Top(False, board.now_us, "daily:2026-11-30", revision, 9, None)

    with pytest.raises(Refusal, match="no revision"):
        board.ask(revised(1))
    board.at(NEXT_NOON)
    assert board.ask(revised(1)) == board.top("daily:2026-11-30")
    with pytest.raises(Refusal, match="no revision"):
        board.ask(revised(2))


@pytest.mark.parametrize("period", ["daily", "daily:previous", "daily:2026-11-30", None])
def test_paging_goes_on_after_midnight(period, make):
    """A cursor continues the window that it began in, when the kind already means the next one."""
    board = make(periods=["daily"])
    for number in range(5):
        board.send(10 - number, member=f"m{number}")
    if period == "daily:previous":
        board.at(NEXT_NOON)
    first = board.top(period, limit=2)
    board.at("2026-12-02T12:00:00Z" if period == "daily:previous" else NEXT_NOON)
    board.send(99, member="late")
    second = board.top(period, limit=2, after=first["next"])
    assert second["period"]["id"] == first["period"]["id"] == "daily:2026-11-30"
    board.seal()
    board.reopen()
    third = board.top(period, limit=2, after=second["next"])
    found = [e["member"] for page in (first, second, third) for e in page["entries"]]
    assert found == [f"m{number}" for number in range(5)]
    assert third["next"] is None


def test_a_cursor_is_its_windows(make):
    """A cursor of another window is refused, also of another one of the same kind."""
    board = make(periods=["daily", "weekly"])
    for number in range(3):
        board.send(number, member=f"m{number}")
    after = board.top("daily", limit=1)["next"]
    assert board.refusal(Top, "weekly", 1, after) == "invalid_cursor"
    assert board.refusal(Top, "daily:2026-11-29", 1, after) == "invalid_cursor"


# Forgetting


def test_the_oldest_closed_windows_are_forgotten(make):
    """keep_closed_periods keeps that many of each kind; the others are period_expired."""
    board = make(periods=["daily", "monthly"], keep_closed_periods=2)
    dates = [f"2026-11-{day}" for day in range(20, 25)]
    days(board, *dates)
    board.at("2026-12-10T00:00:00Z")
    board.seal()
    assert board.ids() == ["daily:2026-11-24", "daily:2026-11-23", "monthly:2026-11-01"]
    assert board.archives == {
        "daily:2026-11-24.1.archive", "daily:2026-11-23.1.archive", "monthly:2026-11-01.1.archive",
    }  # fmt: skip
    for date in (*dates[:3], "2026-11-01", "1999-01-01"):
        for make_question, rest in ((Top, (1, None)), (Member, ("ada",)), (Digest, ())):
            assert board.refusal(make_question, f"daily:{date}", *rest) == "period_expired"
    assert board.scores("daily:2026-11-23") == {"ada": 1}
    assert board.scores("daily:2026-11-25") == {}


@pytest.mark.parametrize("kept", range(8))
def test_as_many_are_kept_as_the_definition_says(kept, make):
    """None is forgotten before there are more than keep_closed_periods, one by one or at once."""
    dates = [f"2026-11-{day}" for day in range(20, 26)]
    board = make("2026-11-20T12:00:00Z", periods=["daily"], keep_closed_periods=kept)
    for count in range(len(dates)):
        days(board, dates[count])
        newest = [f"daily:{date}" for date in dates[max(0, count - kept) : count + 1]]
        assert board.ids() == newest[::-1]


def test_fewer_are_kept_after_a_change_and_none_comes_back(make):
    """Lowering keep_closed_periods forgets at once, files too; raising it brings nothing back."""
    board = make(periods=["daily", CUP])
    days(board, "2026-11-28", "2026-11-29", "2026-11-30", "2026-12-01")
    board.at("2026-12-03T00:00:00Z")
    board.seal()
    assert len(board.archives) == 5
    board.patch(keep_closed_periods=1)
    assert board.archives == {"daily:2026-12-01.1.archive", "cup.1.archive"}
    board.patch(keep_closed_periods=0)
    assert board.archives == set()
    assert board.ids() == []
    assert board.refusal(Top, "cup", 1, None) == "period_expired"
    board.patch(keep_closed_periods=None)
    for lost in ((), ("snapshots",), ("archives", "snapshots")):
        board.reopen(*lost)
        assert board.refusal(Top, "daily:2026-12-01", 1, None) == "period_expired"
        assert board.host.archives.missing == set()


def test_a_forgotten_window_takes_nothing_in_backfill(make):
    """What expired is closed for ever: history before it is period_closed."""
    board = make(periods=["daily"], keep_closed_periods=0)
    days(board, "2026-11-29", "2026-11-30")
    board.at(NEXT_NOON)
    board.patch(mode="backfill")
    assert board.send(1, NOON)["code"] == "period_closed"
    assert board.send(1, "2026-11-01T12:00:00Z")["code"] == "period_closed"


def test_forgotten_files_go_when_the_board_is_opened(make):
    """An archive whose removal a crash prevented, and half-written ones, are gone after opening."""
    board = make(periods=["daily"], keep_closed_periods=1)
    days(board, "2026-11-29", "2026-11-30")
    board.at(NEXT_NOON)
    board.seal()
    (kept,) = board.archives
    archives = board.directory / "archives"
    (archives / "daily:2026-11-01.1.archive").write_bytes((archives / kept).read_bytes())
    (archives / "daily:2026-11-02.1.archive.tmp").write_bytes(b"half")
    board.reopen()
    assert board.archives == {kept}


# A closed window answers as it did


def everything(board: ClockedBoard, period: str) -> list[Any]:
    """Ask a window every query, for every place in it, leaving out whether it is closed."""
    now_us = board.now_us
    rank_scores = ["-1,0", "1,0.5", "2,1", "3,2.25", "9,9"]
    questions: list[Question] = [
        Top(False, now_us, period, None, 100, None),
        *(Member(False, now_us, period, None, f"m{n}") for n in range(8)),
        *(Around(False, now_us, period, None, f"m{n}", None, None, 1, 2) for n in range(8)),
        *(Around(False, now_us, period, None, None, n, None, 2, 1) for n in range(1, 12)),
        *(Around(False, now_us, period, None, None, None, s, 1, 1) for s in rank_scores),
        *(Rank(False, now_us, period, None, score) for score in rank_scores),
    ]
    answers = []
    for question in questions:
        answer = board.ask(question)
        del answer["period"], answer["sequence"]
        answers.append(answer)
    page = board.top(period, limit=3)
    while page["next"]:
        page = board.top(period, 3, page["next"])
        answers.append(page["entries"])
    return answers


@pytest.mark.parametrize("aggregation", ["best", "sum", "latest"])
@pytest.mark.parametrize(
    ("tie_rule", "rank_method"),
    [("earliest", "ordinal"), ("latest", "competition"), ("member", "dense")],
)
def test_a_closed_window_answers_as_it_did_open(aggregation, tie_rule, rank_method, make):
    """Closing, sealing, restarts, lost archives and lost snapshots change no answer."""
    score = [{"name": "a"}, {"name": "b", "direction": "asc", "decimals": 2}]
    board = make(
        aggregation=aggregation, tie_rule=tie_rule, rank_method=rank_method, score=score,
        periods=["daily"],
    )  # fmt: skip
    for number in range(24):
        value = [number % 3, (number % 4) / 4]
        board.send(value, f"2026-11-30T11:00:{number % 7:02}Z", member=f"m{number % 8}")
    before = everything(board, "daily:2026-11-30")
    board.at(NEXT_NOON)
    board.send([9, 9], member="late")
    assert everything(board, "daily:2026-11-30") == before  # from memory
    board.seal()
    digest = board.digest("daily:2026-11-30")
    for lost in ((), ("archives",), ("snapshots",), ("archives", "snapshots")):
        board.snapshot()
        board.reopen(*lost)
        assert everything(board, "daily:2026-11-30") == before
        assert board.digest("daily:2026-11-30") == digest
        assert board.archives == {"daily:2026-11-30.1.archive"}


def test_a_crash_between_closing_and_sealing_loses_nothing(make):
    """A window that closed without an archive is sealed after the restart, with or without help."""
    board = make(periods=["daily"])
    days(board, "2026-11-29", "2026-11-30")
    board.at(NEXT_NOON)
    assert board.archives == set()
    board.reopen()
    assert set(board.host.board.unsealed) == {"daily:2026-11-29", "daily:2026-11-30"}
    assert board.scores("daily:2026-11-30") == {"ada": 1}
    assert not board.host.snapshot_due
    board.snapshot()
    board.reopen()
    assert board.host.archives.missing == {("daily:2026-11-29", 1), ("daily:2026-11-30", 1)}
    board.rebuild()
    assert board.host.archives.missing == set()
    assert board.scores("daily:2026-11-29") == {"ada": 1}


def test_closed_windows_take_bounded_memory(make):
    """Of closed windows only the last ones asked for stay in memory, within the bound."""
    one = msgspec.structs.replace(SMALL, archive_cache_bytes_max=1)
    board = make(periods=["daily"], options=one)
    dates = [f"2026-11-{day}" for day in range(10, 30)]
    days(board, *dates)
    board.at(NOON)
    board.seal()
    assert board.host.board.unsealed == {}
    for date in dates:
        assert board.scores(f"daily:{date}") == {"ada": 1}
    held = [date for date in dates if board.host.archives.standings(f"daily:{date}", 1)]
    assert held == dates[-1:]
    with pytest.raises(NotAtHandError):
        ask(board.host, Top(False, board.now_us, f"daily:{dates[0]}", None, 1, None))


# Digests

played = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(-3, 3), st.integers(0, 5)),
    min_size=1,
    max_size=10,
    unique_by=lambda each: (each[0], each[2]),
)


@given(played.flatmap(lambda each: st.tuples(st.just(each), st.permutations(each))), st.data())
@settings(max_examples=40, deadline=None)
def test_a_published_digest_depends_on_standings_alone(orders, data):
    """Names, scores and instants make the digest: no order of arrival, batch, board or secret."""
    digests = set()
    tie_rule = data.draw(st.sampled_from(["earliest", "latest", "member"]))
    for number, order in enumerate(orders):
        definition = define(
            aggregation="sum",
            tie_rule=tie_rule,
            rank_method=data.draw(st.sampled_from(["ordinal", "competition", "dense"])),
        )
        host = MemoryBoard(definition, hash_key=bytes([number] * 16))
        size = data.draw(st.integers(1, 4))
        events = [
            event(member, value, f"{member}/{second}", occurred_at=1_728_000_000_000_000 + second)
            for member, value, second in order
        ]
        while events:
            assert set(statuses(host, *events[:size])) == {"applied"}
            del events[:size]
        host.board.unsealed = dict(host.board.windows)
        digests.add(host.archives.digest("all_time", 1))
    assert len(digests) == 1
