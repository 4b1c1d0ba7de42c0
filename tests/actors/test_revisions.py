"""Closed windows under moderation: their revisions, archives, digests, and what is kept of them."""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import Refusal
from actors.questions import Digest, Top, Void
from persistence.archive import archive_path
from persistence.errors import DamagedError
from tests.actors.board_harness import committed, score_keys
from tests.actors.clocked_board import ClockedBoard
from tests.actors.conftest import FORMS
from tests.actors.verdicts import ACTOR, dispute, hide, remove, settle, show, void

NOON = "2026-11-30T12:00:00Z"
NEXT_NOON = "2026-12-01T12:00:00Z"
DAY = "daily:2026-11-30"
LOSSES = [(), ("archives",), ("snapshots",), ("archives", "snapshots")]


def said(board: ClockedBoard, revision: int | None = None) -> tuple[str, list[Any]]:
    """Give the digest and the entries of the closed day in a revision."""
    answer = board.top(DAY, revision=revision)
    assert answer["period"]["closed"]
    return board.digest(DAY, revision), answer["entries"]


def item(board: ClockedBoard, window: str = DAY) -> tuple[int, int, str | None]:
    """Give revision, members and digest of a closed window as it is listed."""
    (found,) = [each for each in board.periods()["periods"] if each["id"] == window]
    return found["revision"], found["members"], found["digest"]


def bodies(board: ClockedBoard) -> dict[str, bytes]:
    """Read every archive file."""
    return {path.name: path.read_bytes() for path in (board.directory / "archives").glob("*")}


def closed(board: ClockedBoard, value: Any = 1) -> list[int]:
    """Close a day of four members with two events each; gives the events' sequences."""
    sequences = []
    for number in range(8):
        occurred_at = f"2026-11-30T11:00:0{number}Z"
        member = ("ada", "bob", "cy", "dan")[number % 4]
        sequences.append(board.send(value, occurred_at, member=member)["sequence"])
    board.at(NEXT_NOON)
    board.seal()
    return sequences


@FORMS
def test_a_revision_answers_for_ever(aggregation, keys, tie_rule, rank_method, moderated):
    """Each ruling that changes a closed window is another revision; those before never change.

    Not by other rulings, restarts or losses, nor by sealing: digests and standings stay.
    """
    board = moderated(
        aggregation=aggregation, tie_rule=tie_rule, rank_method=rank_method,
        score=score_keys(*keys),
    )  # fmt: skip
    sequences = closed(board, [1] * len(keys) if len(keys) > 1 else 1)
    told = [said(board)]
    assert item(board) == (1, 4, told[0][0])
    newest = 4 if aggregation == "latest" else 0
    rulings = [
        lambda: void(board, sequences[newest]),
        lambda: void(board, sequences[4 - newest]),
        lambda: remove(board, "cy"),
        lambda: settle(board, dispute(board, sequences[1 + newest]), "upheld"),
        lambda: (remove(board, "bob"), remove(board, "dan")),
    ]
    for ruling in rulings:
        ruling()
        told.append(said(board))
        revision, members, digest = item(board)
        assert (members, digest) == (len(told[-1][1]), told[-1][0])
        assert revision == len(told) + (ruling is rulings[-1])
        assert [said(board, number + 1) for number in range(len(told) - 1)] == told[:-1]
    assert len({digest for digest, _ in told}) == len(told)
    assert [len(entries) for _, entries in told] == [4, 4, 3, 2, 2, 0]
    for lost in LOSSES:
        board.snapshot()
        board.reopen(*lost)
        assert [said(board, number + 1) for number in range(len(told) - 1)] == told[:-1]
        assert said(board) == said(board, 7) == told[-1]
    with pytest.raises(Refusal, match="no revision"):
        board.top(DAY, revision=8)


def test_what_changes_nothing_is_no_revision(moderated):
    """A void of what did not matter, a profile, a hiding or a dispute leaves the revision as it is.

    So does whatever befalls a member who does not stand in the window.
    """
    board = moderated(aggregation="best")
    sequences = [board.send(value)["sequence"] for value in (5, 3)]
    board.at(NEXT_NOON)
    board.send(1, member="bob")
    board.seal()
    before, files = said(board), bodies(board)
    assert void(board, sequences[1]) > 0
    hide(board, "bob")
    assert item(board) == (1, 1, before[0])
    show(board, "bob")
    settle(board, dispute(board, sequences[0]), "rejected")
    remove(board, "bob")
    assert said(board) == before
    assert item(board)[0] == 1
    assert bodies(board) == files
    assert board.scores() == {"ada": 5}


# Hidden members


def test_a_window_closes_with_its_hidden_members(moderated):
    """Who is hidden then is in the digest and the archive, not in answers, and comes back."""
    board, twin = moderated(), moderated()
    hide(board, "ada")
    for each in (board, twin):
        each.send(5)
        each.send(1, member="bob")
        each.at(NEXT_NOON)
    for lost in LOSSES:
        assert board.scores(DAY) == {"bob": 1}  # before it is sealed as well
        assert board.digest(DAY) == twin.digest(DAY)
        assert item(board) == (1, 1, twin.digest(DAY))
        board.snapshot()
        board.reopen(*lost)
    show(board, "ada")
    assert said(board) == said(twin)
    assert item(board) == item(twin)
    columns = [each.host.archives.read(each.host.board.closed[DAY], 1) for each in (board, twin)]
    assert columns[0][0].standings.listing() == columns[1][0].standings.listing()


@pytest.mark.parametrize("sealed", [True, False])
def test_hiding_lies_over_a_closed_window(sealed, moderated):
    """Hiding changes no revision, digest or file of a closed window, sealed or not yet."""
    board = moderated()
    sequences = closed(board)
    void(board, sequences[0])
    if sealed:
        board.seal()
    told, before = [said(board, number) for number in (1, 2)], item(board)
    files = bodies(board)
    hide(board, "ada")
    for lost in LOSSES:
        for number, (digest, entries) in enumerate(told, 1):
            told_again = board.ask(Digest(False, board.now_us, DAY, number))
            assert (told_again["digest"], told_again["members"]) == (digest, len(entries) - 1)
            shown = [entry["member"] for entry in board.top(DAY, revision=number)["entries"]]
            assert shown == [entry["member"] for entry in entries if entry["member"] != "ada"]
        assert item(board) == (before[0], before[1] - 1, before[2])
        assert bodies(board).items() >= files.items()
        board.snapshot()
        board.reopen(*lost)
    show(board, "ada")
    assert [said(board, number) for number in (1, 2)] == told
    assert item(board) == before


def test_a_hidden_member_is_ruled_on_unseen(moderated):
    """Voiding a hidden member's events revises the window; who is gone is not taken off twice."""
    board = moderated()
    sequences = closed(board)
    hide(board, "ada")
    told = said(board)
    void(board, sequences[0])
    assert said(board)[1] == told[1]
    assert item(board) == (2, 3, said(board)[0])
    void(board, sequences[4])
    assert item(board) == (3, 3, said(board)[0])
    show(board, "ada")
    assert item(board)[:2] == (3, 3)
    assert board.scores(DAY, revision=1)["ada"] == 2
    assert board.scores(DAY, revision=2)["ada"] == 1
    assert "ada" not in board.scores(DAY)


# Which windows an event counted in


def test_a_void_reaches_the_windows_that_its_event_counted_in(moderated):
    """Closed windows that an event came too late for, and later windows, are as they were."""
    week = "weekly:2026-11-30"
    board = moderated(periods=["all_time", "daily", "weekly"])
    board.send(1, NOON)
    board.at(NEXT_NOON)
    late = board.send(5, NOON)
    assert [each["period"] for each in late["standings"]] == ["all_time", week]
    before = said(board)
    void(board, late["sequence"])
    assert board.scores() == board.scores(week) == {"ada": 1}
    assert said(board) == before
    assert item(board)[0] == 1
    void(board, late["sequence"] - 2)
    assert board.scores() == board.scores(week) == board.scores(DAY) == {}
    assert item(board)[0] == 2


def test_a_void_passes_over_a_window_that_was_opened_later(moderated):
    """An event from before backfill opened its day does not count there, so nor does its void."""
    board = moderated(now="2026-12-05T12:00:00Z")
    early = board.send(5, NOON)
    assert [each["period"] for each in early["standings"]] == ["all_time"]
    board.patch(mode="backfill")
    second = board.send(2, NOON)
    assert [each["period"] for each in second["standings"]] == ["all_time", DAY]
    assert board.scores(DAY) == {"ada": 2}
    opened = dispute(board, early["sequence"])
    assert board.host.board.rulings.disputes.get(opened).windows == ("all_time",)
    void(board, early["sequence"])
    assert (board.scores(), board.scores(DAY)) == ({"ada": 2}, {"ada": 2})
    board.patch(mode="live")
    assert item(board)[:2] == (1, 1)
    void(board, second["sequence"])
    assert (board.scores(), board.scores(DAY)) == ({}, {})


# Keeping


def test_a_revised_window_expires_with_all_its_revisions(moderated):
    """keep_closed_periods forgets every revision, in memory and on disk, sealed or not."""
    board = moderated(keep_closed_periods=1)
    sequences = closed(board)
    void(board, sequences[0])
    said(board)
    remove(board, "bob")
    said(board)
    board.seal()
    board.reopen()
    assert board.host.archives.missing == set()
    assert set(bodies(board)) == {f"{DAY}.{number}.archive" for number in (1, 2, 3)}
    board.send(1)
    void(board, sequences[2])
    board.at("2026-12-02T12:00:00Z")
    board.seal()
    assert set(bodies(board)) == {"daily:2026-12-01.1.archive"}
    for lost in LOSSES:
        for revision in (None, 1, 4):
            with pytest.raises(Refusal, match="no longer kept"):
                board.ask(Top(False, board.now_us, DAY, revision, 9, None))
        board.snapshot()
        board.reopen(*lost)
        assert board.host.archives.missing <= {("daily:2026-12-01", 1)}
    void(board, sequences[3])
    remove(board, "cy")
    assert board.scores() == {"ada": 2, "dan": 1}


@pytest.mark.parametrize("harm", ["lost", "cut", "flipped"])
@pytest.mark.parametrize("harmed", [{1}, {2}, {3}, {1, 3}, {1, 2, 3}], ids=str)
def test_harmed_archives_are_made_again(harm, harmed, moderated):
    """Any revision's archive that is lost or damaged is made from the log, byte for byte."""
    board = moderated()
    sequences = closed(board)
    void(board, sequences[0])
    said(board)
    hide(board, "dan")
    remove(board, "bob")
    told = [said(board, revision) for revision in (1, 2, 3)]
    files = bodies(board)
    for revision in harmed:
        path = archive_path(board.directory / "archives", DAY, revision)
        body = bytearray(path.read_bytes())
        body[-40] ^= 1
        path.unlink()
        if harm != "lost":
            path.write_bytes(body if harm == "flipped" else body[:-1])
    assert bodies(board) != files
    board.reopen()
    board.seal()
    for revision in harmed:
        try:
            board.host.archives.read(board.host.board.closed[DAY], revision)
        except (DamagedError, FileNotFoundError):
            board.host.archives.lose(DAY, revision)
    board.rebuild()
    assert bodies(board) == files
    assert [said(board, revision) for revision in (1, 2, 3)] == told


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_ruling_waits_for_the_archives_that_it_changes(harm, moderated):
    """While standings are being sealed, or made again, a ruling is refused and writes nothing."""
    board = moderated()
    sequences = closed(board)
    verdict = Void(False, board.now_us, *ACTOR, sequences[0])
    path = archive_path(board.directory / "archives", DAY, 1)
    body = path.read_bytes()
    path.unlink()
    if harm == "damaged":
        path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    last = board.host.board.sequence
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            committed(board.host, verdict)
        assert refused.value.code == "board_unavailable"
    assert board.host.board.sequence == board.host.log.last_sequence == last
    board.rebuild()
    assert path.read_bytes() == body
    void(board, sequences[0])
    assert DAY in board.host.board.unsealed
    with pytest.raises(Refusal) as refused:
        committed(board.host, Void(False, board.now_us, *ACTOR, sequences[1]))
    assert refused.value.code == "board_unavailable"
    assert board.host.archives.missing == set()
    board.seal()
    void(board, sequences[1])
    assert item(board)[0] == 3


@pytest.mark.parametrize("lost", LOSSES, ids="+".join)
def test_a_ruling_that_was_committed_holds(lost, moderated):
    """A crash between commit and change loses nothing: the ruling is in the state that comes up."""
    board, twin = moderated(), moderated()
    for each in (board, twin):
        sequences = closed(each)
        each.snapshot()
        hide(each, "cy")
    board.rule(Void(False, board.now_us, *ACTOR, sequences[0]), *lost, crashes=True)
    void(twin, sequences[0])
    assert [said(board, number) for number in (1, 2)] == [said(twin, number) for number in (1, 2)]
    assert board.scores() == twin.scores()
    assert item(board) == item(twin)
    again = void(board, sequences[0])
    assert again == void(twin, sequences[0]) == board.host.board.sequence


@pytest.mark.parametrize("when", ["before", "between", "after", "both"])
def test_snapshots_know_of_rulings(when, moderated):
    """Wherever a snapshot lies among rulings, what is loaded and replayed is what was live."""
    board = moderated()
    sequences = closed(board)
    if when in ("before", "both"):
        board.snapshot()
    hide(board, "bob")
    void(board, sequences[1])
    opened = dispute(board, sequences[2])
    if when == "between":
        board.snapshot()
    board.send(3, member="bob")
    settle(board, opened, "upheld")
    remove(board, "dan")
    if when in ("after", "both"):
        board.seal()
        board.snapshot()
    state, told = board.host.board.state_digest(), said(board)
    for lost in ((), ("archives",)):
        board.reopen(*lost)
        assert board.host.report.snapshot_sequence > 0
        assert board.host.board.state_digest() == state
        assert said(board) == told
    show(board, "bob")
    assert board.scores()["bob"] == 4
