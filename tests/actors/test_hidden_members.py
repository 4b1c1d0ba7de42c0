"""Members who are hidden: out of every answer and count, and back with everything earned."""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import Refusal
from actors.questions import (
    Around,
    Bands,
    Describe,
    Lookup,
    Member,
    Question,
    Range,
    Rank,
    Top,
)
from tests.actors.board_harness import score_keys
from tests.actors.clocked_board import ClockedBoard
from tests.actors.conftest import FORMS
from tests.actors.verdicts import hide, remove, show, void

NOON = "2026-11-30T12:00:00Z"
NEXT_NOON = "2026-12-01T12:00:00Z"
DAY, NEXT_DAY = "daily:2026-11-30", "daily:2026-12-01"
MEMBERS = ("ada", "bob", "cy", "dan")


def everything(board: ClockedBoard, period: str) -> list[Any]:
    """Ask a window every query about everyone, leaving out the sequence and cursors."""
    now_us = board.now_us
    window = (False, now_us, period, None)
    questions: list[Question] = [
        Top(*window, 100, None),
        *(Top(*window, limit, None) for limit in (1, 2)),
        *(Around(*window, None, position, None, 1, 1) for position in (1, 2, 3, 9)),
        *(Around(*window, None, None, score, 1, 1) for score in ("-5", "3", "5", "50")),
        *(Rank(*window, score) for score in ("-5", "3", "5", "6", "50")),
        *(Range(*window, low, high, 2, None) for low, high in (("3", "6"), ("-9", "99"))),
        Range(*window, None, None, 100, None),
        Bands(*window, "0.1,25,50,75,100"),
        Lookup(*window, [*MEMBERS, "nobody"]),
        *(Member(*window, member) for member in MEMBERS),
        *(Around(*window, member, None, None, 2, 2) for member in MEMBERS),
    ]
    answers: list[Any] = []
    for question in questions:
        try:
            found = board.ask(question)
        except Refusal as refusal:
            answers.append(refusal.code)
        else:
            found = found | {"sequence": None, "next": found.get("next") is None}
            answers.append(found)
    listed = board.periods()["periods"]
    answers.append([(item["id"], item["members"]) for item in listed])
    answers.append(board.ask(Describe(False, now_us))["members"])
    return answers


def played_by(board: ClockedBoard, *members: str) -> None:
    """Play the same for two days, the members in turn."""
    for day, now in enumerate((NOON, NEXT_NOON)):
        board.at(now)
        for number, member in enumerate(MEMBERS):
            if member in members:
                occurred_at = now.replace("12:00:00", f"11:00:0{number}")
                for value in (number % 2 + day, 4):
                    board.send(value, occurred_at, member=member)


@FORMS
@pytest.mark.parametrize("first", [True, False], ids=["before they play", "afterwards"])
def test_hidden_members_are_out_of_every_answer(
    aggregation, keys, tie_rule, rank_method, first, moderated
):
    """Windows, open or closed, answer as if the hidden had never played, and then as if shown.

    Also from archives, after restarts, and however the hiding and the playing were ordered.
    """
    fields = {"aggregation": aggregation, "tie_rule": tie_rule, "rank_method": rank_method,
              "score": score_keys(keys[0])}  # fmt: skip
    board, without, shown = moderated(**fields), moderated(**fields), moderated(**fields)
    if first:
        hide(board, "bob")
        hide(board, "dan")
    for each, members in ((board, MEMBERS), (without, ("ada", "cy")), (shown, MEMBERS)):
        played_by(each, *members)
    if not first:
        hide(board, "bob")
        hide(board, "dan")
    for period in ("all_time", DAY, NEXT_DAY):
        for lost in ((), ("archives",), ("snapshots", "archives")):
            assert everything(board, period) == everything(without, period)
            board.snapshot()
            board.reopen(*lost)
        assert board.digest(period) == shown.digest(period)
    show(board, "bob")
    show(board, "dan")
    for period in ("all_time", DAY, NEXT_DAY):
        assert everything(board, period) == everything(shown, period)
        assert board.digest(period) == shown.digest(period)


def test_a_hidden_member_earns_unseen(moderated):
    """Its events are applied without a standing, and count once it is back."""
    board = moderated()
    board.send(3)
    ruling = hide(board, "ada")
    answer = board.send(4, member="ada", key="unseen")
    assert (answer["status"], answer["standings"]) == ("applied", [])
    assert board.send(4, member="ada", key="unseen")["standings"] == []
    assert [each["rank"] for each in board.send(1, member="bob")["standings"]] == [1, 1]
    assert board.batch(board.event(5), board.event(2, member="bob")) == ["applied"] * 2
    assert board.scores() == {"bob": 3}
    void(board, answer["sequence"])
    assert show(board, "ada") > ruling
    assert board.scores() == {"ada": 8, "bob": 3}
    assert [each["rank"] for each in board.send(1)["standings"]] == [1, 1]
    assert board.scores() == {"ada": 9, "bob": 3}


@pytest.mark.parametrize("after", ["hiding", "a restart"])
def test_a_hidden_total_stays_in_its_range(after, moderated):
    """What a hidden member earns is held within the exact range as for everyone else."""
    board = moderated()
    board.send(2**53 - 2)
    hide(board, "ada")
    if after == "a restart":
        board.snapshot()
        board.reopen()
    assert board.batch(board.event(1), board.event(1)) == ["applied", "value_out_of_range"]
    show(board, "ada")
    assert board.scores() == {"ada": 2**53 - 1}


def test_hiding_is_given_once(moderated):
    """Who is hidden stays so under the first record; showing who is not hidden writes nothing."""
    board = moderated()
    board.send(1)
    last = board.host.board.sequence
    assert show(board, "ada") == last
    assert hide(board, "ada") == hide(board, "ada") == last + 1
    assert show(board, "ada") == show(board, "ada") == last + 2
    assert hide(board, "ada") == last + 3
    board.reopen()
    assert hide(board, "ada") == last + 3
    assert board.host.board.sequence == last + 3


def test_hiding_changes_no_digest(moderated):
    """The digest of an open window is of all that stand in it, hidden or not."""
    board = moderated()
    played_by(board, *MEMBERS)
    digests = {period: board.digest(period) for period in ("all_time", DAY, NEXT_DAY)}
    for act in (hide, show, hide):
        for member in MEMBERS:
            act(board, member)
            assert {period: board.digest(period) for period in digests} == digests
    assert board.scores() == board.scores(DAY) == {}


def test_paging_passes_over_who_was_hidden_meanwhile(moderated):
    """A cursor behind a member who is hidden since goes on after its place."""
    board = moderated()
    for number in range(6):
        board.send(9 - number, member=f"m{number}")
    page = board.top(limit=2)
    hide(board, "m1")
    hide(board, "m2")
    following = board.top(limit=9, after=page["next"])
    assert [entry["member"] for entry in following["entries"]] == ["m3", "m4", "m5"]


def test_a_hidden_member_that_is_removed_starts_afresh_unseen(moderated):
    """Removing takes away what was earned, not the hiding."""
    board = moderated()
    board.send(5)
    hide(board, "ada")
    remove(board, "ada")
    assert board.send(2)["standings"] == []
    assert board.scores() == {}
    show(board, "ada")
    assert board.scores() == board.scores("daily") == {"ada": 2}
