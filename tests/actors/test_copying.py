"""Copies of boards made beside their owner: one place of the log, whatever happens meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors import copying
from actors.board import Board
from actors.copying import BoardCopy, copy_board
from actors.listing import read_listing
from actors.logged_board import LoggedBoard
from actors.offline import verify
from persistence import backup
from persistence.backup import BoardGoneError
from persistence.errors import DamagedError, StorageFullError
from persistence.event_log import LmdbEventLog
from persistence.ownership import last_epoch
from persistence.records import EventsRecord
from persistence.snapshot import read_snapshot, write_snapshot
from tests.actors.board_harness import SMALL, event, statuses
from tests.actors.board_process import BoardProcess

START = "2024-10-04T12:00:00Z"
NOW_US = 1_728_043_200_000_000
DAY_US = 86_400 * 1_000_000


def ignore(*_: int) -> None:
    """Show nothing."""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[BoardProcess]:
    """Make a board of several segments, two snapshots and two archives, in another process."""
    process = BoardProcess(
        tmp_path, START, aggregation="sum", periods=["all_time", "daily"], keep_closed_periods=2
    )
    for _ in range(3):
        process.add(35)
        process.do("board.snapshot()")
        process.do(f"board.at(board.now_us + {DAY_US})")
        process.do("board.seal()")
    process.add(20)
    yield process
    process.kill()


def copied(owner: BoardProcess, target: Path, hook: Callable[..., None] = ignore) -> BoardCopy:
    target.parent.mkdir(exist_ok=True)
    return copy_board(owner.directory, target, hook, ignore)


def state_at(directory: Path, sequence: int) -> Board:
    """Replay a log up to a sequence."""
    board = Board()
    log = LmdbEventLog.open_readonly(directory / "log")
    for record in log.read():
        if record.first_sequence <= sequence:
            board.apply(record)
            board.unsealed.clear()
    log.close()
    assert board.sequence == sequence
    return board


def keys_of(directory: Path) -> list[str]:
    log = LmdbEventLog.open_readonly(directory / "log")
    keys = [
        record.row(index).idempotency_key.decode()
        for record in log.read()
        if isinstance(record, EventsRecord)
        for index in range(record.count)
    ]
    log.close()
    return keys


def check(owner: BoardProcess, target: Path, copy: BoardCopy, acknowledged: list[str]) -> None:
    """Check a copy against its source: sound, of one place of the log, and a board that lives."""
    report = verify(target)
    assert report.findings == ()
    assert copy.left_out == []
    assert report.last_sequence == copy.last_sequence
    assert set(acknowledged) <= set(keys_of(target))
    source = state_at(owner.directory, copy.last_sequence)
    assert report.state_digest == source.state_digest()
    assert read_listing(target).definition == source.definition
    opened = LoggedBoard.open(target, SMALL)
    try:
        assert opened.board.state_digest() == source.state_digest()
        assert not opened.archives.missing
        opened.seal_all()  # what closed after the archives were copied
        assert all(opened.archives.holds(closed, 1) for closed in source.closed.values())
        assert list(opened.board.windows) == list(source.windows)
        now_us = owner.do("board.now_us")
        again = [event("m0", 0, key) for key in acknowledged[-3:]]
        repeated = statuses(opened, *again, now_us=now_us)
        assert set(repeated) <= {"duplicate", "idempotency_conflict"}
        assert statuses(opened, event("new", 1, "new"), now_us=now_us) == ["applied"]
        assert opened.board.sequence == copy.last_sequence + 1
    finally:
        opened.close()


def test_a_copy_is_the_board(owner, tmp_path):
    """A copy is sound and has every event, snapshot and archive; its source is as it was."""
    before = snapshot_of(owner.directory)
    acknowledged = keys_of(owner.directory)
    target = tmp_path / "copies" / "b"
    copy = copied(owner, target)
    assert snapshot_of(owner.directory) == before
    assert copy.last_sequence == owner.do("board.host.board.sequence")
    for part in ("snapshots", "archives"):
        names = sorted(path.name for path in (owner.directory / part).iterdir())
        assert sorted(path.name for path in (target / part).iterdir()) == names
        assert len(names) == 2
    assert last_epoch(target) == last_epoch(owner.directory) > 0
    assert b'"process":null' in (target / "owner").read_bytes().replace(b" ", b"")
    check(owner, target, copy, acknowledged)


def snapshot_of(directory: Path) -> dict[str, bytes]:
    """Read every file of a board but LMDB's lock files, in which readers leave their mark."""
    return {
        str(path): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock.mdb"
    }


def test_a_copy_comes_up_from_its_snapshot(owner, tmp_path):
    """The owner of a copy begins from the newest snapshot, and not before the copy's epoch."""
    owner.do("board.snapshot()")
    target = tmp_path / "copies" / "b"
    copy = copied(owner, target)
    opened = LoggedBoard.open(target, SMALL)
    assert opened.report.snapshot_sequence == copy.last_sequence
    assert opened.report.snapshots_skipped == ()
    opened.close()
    assert last_epoch(target) > last_epoch(owner.directory)


MEANWHILE: dict[str, Callable[[BoardProcess], object]] = {
    "a segment change": lambda owner: owner.add(45),
    "two snapshots": lambda owner: [(owner.add(1), owner.do("board.snapshot()")) for _ in range(2)],
    "a closing": lambda owner: [
        owner.add(3),
        owner.do(f"board.at(board.now_us + {DAY_US})"),
        owner.do("board.seal()"),
        owner.add(1),
    ],
    "an expiry": lambda owner: owner.do("board.patch(keep_closed_periods=1)"),
    "a changed definition": lambda owner: owner.do("board.patch(grace_seconds=7)"),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_copy_stays_consistent_whatever_happens_meanwhile(owner, tmp_path, what):
    """Before and after each file that is copied the board goes on; the copy is one place of it."""
    calls: list[int] = []
    copied(owner, tmp_path / "dry" / "b", calls.append)
    assert len(calls) >= 6
    happened = 0
    for place in range(len(calls)):
        acknowledged = keys_of(owner.directory)
        count = 0

        def hook(_: int, place: int = place) -> None:
            nonlocal count, happened
            if count == place:
                MEANWHILE[what](owner)
                happened += 1
            count += 1

        target = tmp_path / f"copy-{place}" / "b"
        copy = copied(owner, target, hook)
        check(owner, target, copy, acknowledged)
    assert happened >= len(calls) - 2, "files that are pruned early make a few calls fewer"


@pytest.mark.parametrize("created_again", [False, True])
def test_a_board_that_is_deleted_meanwhile_is_no_damage(owner, tmp_path, created_again):
    """Wherever a deletion meets the copying, it is told as one, a new board of the name or not."""
    calls: list[int] = []
    copied(owner, tmp_path / "dry" / "b", calls.append)
    owner.end()
    for place in range(len(calls)):
        count = 0

        def hook(_: int, place: int = place) -> None:
            nonlocal count
            if count == place:
                owner.directory.rename(tmp_path / "deleted")
                if created_again:
                    owner.directory.mkdir()
            count += 1

        with pytest.raises(BoardGoneError):
            copied(owner, tmp_path / f"copy-{place}" / "b", hook)
        if created_again:
            owner.directory.rmdir()
        (tmp_path / "deleted").rename(owner.directory)


def test_a_damaged_log_is_refused(owner, tmp_path):
    """A record that is not what was written is refused by name, though a snapshot holds it too."""
    owner.end()
    path = owner.directory / "log" / "00000001" / "data.mdb"
    content = path.read_bytes()
    assert content.count(b"key-7key-8") > 0
    path.write_bytes(content.replace(b"key-7key-8", b"key-7key-9"))
    with pytest.raises(DamagedError, match="the record at sequence 3: "):
        copied(owner, tmp_path / "copies" / "b")


def test_damaged_snapshots_and_archives_are_left_out(owner, tmp_path):
    """What can be made again is no reason to go without a copy: it is left out, and said."""
    owner.end()
    damaged = [next((owner.directory / part).iterdir()) for part in ("snapshots", "archives")]
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    target = tmp_path / "copies" / "b"
    copy = copied(owner, target)
    assert [str(path) in why for path, why in zip(damaged, copy.left_out, strict=True)] == [
        True
    ] * 2
    assert verify(target).is_sound
    opened = LoggedBoard.open(target, SMALL)
    source = state_at(owner.directory, copy.last_sequence)
    assert opened.board.state_digest() == source.state_digest()
    assert len(opened.archives.missing) == 1
    opened.rebuild_archives(opened.archives.sealed)
    assert not opened.archives.missing
    opened.close()


def test_files_in_each_others_place_are_left_out(owner, tmp_path):
    """Whole files that are not this board's, or not what their name says, are left out by name."""
    (tmp_path / "other").mkdir()
    other = BoardProcess(
        tmp_path / "other", START, aggregation="sum", periods=["all_time", "daily"]
    )
    for process in (other, owner):
        process.add(35)
        process.do(f"board.at(board.now_us + {DAY_US})")
        process.do("board.seal()")
        process.do("board.snapshot()")
        process.end()
    snapshots, archives = (
        sorted((owner.directory / part).iterdir()) for part in ("snapshots", "archives")
    )
    foreign = {
        snapshots[0]: next((other.directory / "snapshots").iterdir()),
        archives[0]: next((other.directory / "archives").iterdir()),
    }
    shutil.copy(archives[1], owner.directory / "archives" / "stray.7.archive")
    shutil.copy(foreign[archives[0]], owner.directory / "archives" / foreign[archives[0]].name)
    shutil.copy(snapshots[1], snapshots[0])
    target = tmp_path / "copies" / "b"
    copy = copied(owner, target)
    assert sorted(why.partition(": ")[0] for why in copy.left_out) == sorted(
        str(owner.directory / part)
        for part in (
            f"snapshots/{snapshots[0].name}",
            f"archives/{foreign[archives[0]].name}",
            "archives/stray.7.archive",
        )
    )
    assert verify(target).findings == ()


@pytest.mark.parametrize("header", ["identity", "log_hash"])
def test_a_snapshot_of_another_history_is_left_out(owner, tmp_path, header):
    """A whole snapshot of the right name, but of another board or another history, is left out."""
    owner.end()
    path = max((owner.directory / "snapshots").iterdir())
    found = read_snapshot(path)
    said = {"identity": ["b", "?", b"", 0], "log_hash": bytes(16)}
    assert header in found.header
    changed = found.header | {header: said[header]}
    write_snapshot(path.parent, found.sequence, changed, list(found.columns.items()))
    copy = copied(owner, tmp_path / "copies" / "b")
    assert [str(path) in why for why in copy.left_out] == [True]
    assert verify(tmp_path / "copies" / "b").findings == ()


def test_a_log_behind_its_snapshots_is_refused(owner, tmp_path):
    """A log that was put back, whose board would not come up, is not copied as a sound one."""
    shutil.copytree(owner.directory / "log", tmp_path / "before")
    owner.add(5)
    owner.do("board.snapshot()")
    owner.end()
    shutil.rmtree(owner.directory / "log")
    shutil.copytree(tmp_path / "before", owner.directory / "log")
    with pytest.raises(DamagedError, match="the last commits are lost"):
        copied(owner, tmp_path / "copies" / "b")


def test_another_boards_log_is_refused(owner, tmp_path):
    """A directory that holds the log of a board of another name is not copied as that board."""
    owner.end()
    owner.directory.rename(tmp_path / "c")
    (tmp_path / "copies").mkdir()
    with pytest.raises(DamagedError, match="of that name"):
        copy_board(tmp_path / "c", tmp_path / "copies" / "c", ignore, ignore)


def test_a_full_disk_is_noticed_before_anything_is_written(owner, tmp_path, monkeypatch):
    """Where a copy has no room nothing of it is begun."""
    monkeypatch.setattr(backup, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(StorageFullError):
        copied(owner, tmp_path / "copies" / "b")
    assert list((tmp_path / "copies").iterdir()) == []


def test_planted_faults_of_order_are_noticed(owner, tmp_path, monkeypatch):
    """A log that is copied first is refused; the check of these tests fails for a lost event."""
    columns, log = copying.copy_column_files, copying.copy_log

    def late(source, target, *rest):
        return []

    def log_first(source, target, *rest):
        end = log(source, target, *rest)
        owner.add(5)
        owner.do("board.snapshot()")
        for part in ("snapshots", "archives"):
            columns(source.parent / part, target.parent / part, f".{part[:-1]}", ignore)
        return end

    acknowledged = keys_of(owner.directory)
    with monkeypatch.context() as patch:
        patch.setattr(copying, "copy_column_files", late)
        patch.setattr(copying, "copy_log", log_first)
        with pytest.raises(DamagedError, match="but the log ends at"):
            copied(owner, tmp_path / "one" / "b")
    copy = copied(owner, tmp_path / "two" / "b")
    with pytest.raises(AssertionError):
        check(owner, tmp_path / "two" / "b", copy, [*acknowledged, "never sent"])
