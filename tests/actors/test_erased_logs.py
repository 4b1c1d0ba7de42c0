"""Boards whose logs were written again are copied, verified and repaired like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import copying
from actors.copying import BoardCopy, copy_board
from actors.logged_board import LoggedBoard
from actors.offline import verify
from persistence import log_places
from persistence.errors import DamagedError
from persistence.log_places import LogPlaces
from persistence.segments import DATA, SEALED
from tests.actors.board_process import BoardProcess
from tests.actors.clocked_board import ClockedBoard
from tests.actors.test_repairing import damage, repair
from tests.actors.verdicts import erase as erase_member
from tests.durability.erasing_work import BOARDS, DAYS, NAME, OPTIONS, named_files, play

START = "2024-10-04T12:00:00Z"
DAY_US = 86_400 * 1_000_000
PLACES = 7  # as many members as a BoardProcess has


def ignore(*_: int) -> None:
    """Show nothing."""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[ClockedBoard]:
    """Play a board that is to forget two names, and has forgotten another."""
    play(tmp_path)
    opened = ClockedBoard.existing(tmp_path / BOARDS, DAYS[-1], OPTIONS)
    assert named_files(opened.directory)
    yield opened
    opened.close()


@pytest.fixture
def erased(board: ClockedBoard) -> Path:
    """Let the board forget them, and put it away."""
    board.host.erase_names(board.now_us)
    board.close()
    assert named_files(board.directory) == []
    assert (board.directory / "log" / "00000002" / SEALED).exists()
    return board.directory


def state_of(directory: Path) -> str:
    host = LoggedBoard.open(directory, OPTIONS)
    try:
        assert host.report.snapshots_skipped == ()
        return host.board.state_digest()
    finally:
        host.close()


# Coming up


@pytest.mark.parametrize("planted", [False, True])
def test_a_snapshot_of_the_former_log_is_passed_over(tmp_path, monkeypatch, planted):
    """Also one of the end of a segment, whose next record follows the hash that the snapshot names.

    planted: the hash that a snapshot names is the one that the next record follows. Then a snapshot
    that still holds the name is taken, and the board does not come up.
    """
    with monkeypatch.context() as patch:
        if planted:
            patch.setattr(LogPlaces, "whole_hash", lambda _, __, followed_hash: followed_hash)
        play(tmp_path)
        board = ClockedBoard.existing(tmp_path / BOARDS, DAYS[-1], OPTIONS)
        snapshots = sorted(path.name for path in (board.directory / "snapshots").iterdir())
        state = board.host.board.state_digest()
        exchange(board)
        assert [seal.last_sequence for _, seal in board.host.log.segments[:-1]].count(
            int(snapshots[0].partition(".")[0])
        )
        board.close()
        if planted:
            with pytest.raises(ValueError, match="follows"):
                ClockedBoard.existing(tmp_path / BOARDS, DAYS[-1], OPTIONS)
            return
        board = ClockedBoard.existing(tmp_path / BOARDS, DAYS[-1], OPTIONS)
        skipped = dict(board.host.report.snapshots_skipped)
        assert skipped == dict.fromkeys(snapshots, "is of another history than the log")
        assert board.host.board.state_digest() == state
        board.close()


@pytest.mark.parametrize("planted", [False, True])
def test_a_snapshot_behind_what_was_written_again_is_passed_over(tmp_path, monkeypatch, planted):
    """Also one whose own segment stays as it is: the hash that it names vouches for all before it.

    planted: a hash vouches for its segment alone.
    """
    board = ClockedBoard(tmp_path, DAYS[0], OPTIONS, aggregation="sum")
    for place in range(60):
        member = NAME if place in (3, 57) else "ada"
        board.send(1, member=member)
        if place in (0, 28):
            board.snapshot()
    erase_member(board, NAME)
    state = board.host.board.state_digest()
    with monkeypatch.context() as patch:
        if planted:
            patch.setattr(log_places, "whole_hash", lambda own_hash, _: own_hash)
        exchange(board)
        changed = [bool(seal and seal.followed_hash) for _, seal in board.host.log.segments]
        assert changed == [True, False, False, True, False]
        board.close()
        if planted:
            with pytest.raises(ValueError, match="follows"):
                ClockedBoard.existing(tmp_path, DAYS[0], OPTIONS)
            return
        board = ClockedBoard.existing(tmp_path, DAYS[0], OPTIONS)
    assert board.host.report.snapshot_sequence == 3, "what is before the name is as it was"
    assert [why for _, why in board.host.report.snapshots_skipped] == [
        "is of another history than the log"
    ]
    assert board.host.board.state_digest() == state
    board.host.erase_names(board.now_us)
    board.close()
    assert verify(board.directory).findings == ()


def exchange(board: ClockedBoard) -> None:
    """Take the steps of an erasure up to the exchange of the logs, but leave the snapshots."""
    host = board.host
    host.make_archives(host.archives.sealed)
    host.archives.remove_expired()
    host.log.seal_live()
    host.shown_log.write_again(host.board.rulings.erasing, ignore)
    host.shown_log.put_in_place()


# Copying


def copied(directory: Path, target: Path) -> BoardCopy:
    target.parent.mkdir(exist_ok=True)
    return copy_board(directory, target, ignore, ignore)


def test_an_erased_board_is_copied_whole(erased, tmp_path):
    """Nothing is left out, the copy is sound and the same board, and holds no name either."""
    target = tmp_path / "copies" / "b"
    assert copied(erased, target).left_out == []
    assert verify(target).findings == ()
    assert state_of(target) == state_of(erased)
    assert named_files(target) == []


def test_a_board_is_copied_between_the_exchange_and_its_snapshot(board, tmp_path):
    """A snapshot of the former log is left out, and said; the copy can be erased to its end."""
    exchange(board)
    state = board.host.board.state_digest()
    board.close()
    target = tmp_path / "copies" / "b"
    assert ["another history" in why for why in copied(board.directory, target).left_out] == [
        True
    ] * 2
    assert verify(target).findings == ()
    assert named_files(target) == []
    opened = ClockedBoard.existing(target.parent, board.now_us, OPTIONS)
    assert opened.host.board.state_digest() == state
    opened.host.erase_names(board.now_us)
    opened.close()
    assert verify(target).findings == ()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[BoardProcess]:
    """Make a board of several segments, snapshots and archives, in another process."""
    process = BoardProcess(tmp_path, START, aggregation="sum", periods=["all_time", "daily"])
    for _ in range(3):
        process.add(35)
        process.do("board.snapshot()")
        process.do(f"board.at(board.now_us + {DAY_US})")
        process.do("board.seal()")
    process.add(20)
    yield process
    process.kill()


def erase(owner: BoardProcess, member: str) -> None:
    """Let the board's process forget a member, to the end of it."""
    owner.do(f"__import__('tests.actors.verdicts').actors.verdicts.erase(board, {member!r})")
    owner.do("board.host.erase_names(board.now_us)")
    assert owner.do("board.host.shown_log.erasing") is False


def test_a_board_that_forgets_while_it_is_copied(owner, tmp_path, monkeypatch):
    """The copy is what was there before or after: no mixture passes as whole."""
    begun = 0
    real = copying._copy

    def counted(*arguments: Any) -> BoardCopy:
        nonlocal begun
        begun += 1
        return real(*arguments)

    monkeypatch.setattr(copying, "_copy", counted)
    for place in range(PLACES):
        count = 0

        def hook(_: int, place: int = place) -> None:
            nonlocal count
            if count == place:
                erase(owner, f"m{place}")
            count += 1

        target = tmp_path / f"copy-{place}" / "b"
        target.parent.mkdir()
        copy_board(owner.directory, target, hook, ignore)
        assert verify(target).findings == ()
        state_of(target)
        assert count > place, "the copying was over before"
        assert verify(owner.directory).findings == ()
    assert begun > PLACES, "a copy was begun anew"


# Repairing


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_segment_that_was_written_again_is_repaired(erased, lost):
    """What lies before the damage is kept; no name comes back with what is set aside."""
    damage(erased, b"key-5", b"key-6", f"log/00000001/{DATA}")
    if lost:
        for seal in erased.glob(f"log/*/{SEALED}"):
            seal.unlink()
    assert not verify(erased).is_sound
    plan = repair(erased)
    assert plan.lost is not None
    assert 1 < plan.lost[0] < 16
    assert verify(erased).findings == ()
    assert named_files(erased) == []
    state_of(erased)


def test_lost_seals_are_no_damage(erased):
    """They are made again by the next owner, with what the following segments go on from."""
    state = state_of(erased)
    seals = sorted(erased.glob(f"log/*/{SEALED}"))
    before = [path.read_bytes() for path in seals]
    for path in seals:
        path.unlink()
    assert verify(erased).findings == ()
    plan = repair(erased)
    assert (plan.damage, plan.set_aside) == (None, ())
    assert state_of(erased) == state
    assert [path.read_bytes() for path in seals] == before


def test_damage_is_not_written_again(board):
    """The erasure waits for a repair. What that sets aside is as it was found, with the names.

    The ruling that erased them lies behind the damage, so it is to be given again.
    """
    state = board.host.board.state_digest()
    board.close()
    damage(board.directory, b"key-0", b"key-9", f"log/00000001/{DATA}")
    opened = ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    assert opened.host.board.state_digest() == state
    with pytest.raises(DamagedError, match="the record at sequence"):
        opened.host.erase_names(board.now_us)
    assert opened.host.shown_log.erasing
    opened.close()
    plan = repair(board.directory)
    assert verify(board.directory).findings == ()
    assert {path.partition("/")[0] for path in named_files(board.directory)} == {plan.aside.name}
    opened = ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    assert not opened.host.shown_log.erasing
    opened.close()
