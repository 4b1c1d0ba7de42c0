"""Copies of logs and files: whole, verified, and seen under their name only when they are both."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from persistence import backup, segments
from persistence.backup import (
    BackupExistsError,
    BoardGoneError,
    building,
    check_log,
    copy_column_files,
    copy_log,
    file_bytes,
    held,
    require_room,
)
from persistence.column_file import CHUNK_BYTES
from persistence.errors import DamagedError, StorageFullError
from persistence.event_log import LmdbEventLog, LogOptions
from persistence.segments import DATA, SEALED, Segment
from persistence.snapshot import SUFFIX, read_snapshot, write_snapshot
from tests.persistence.log_samples import SMALL, events, history, seeded


def ignore(_: int) -> None:
    """Show nothing."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of two sealed segments and a live one, and close it."""
    directory = tmp_path / "log"
    written = LmdbEventLog(directory, SMALL, epoch=7, create=True)
    for record in history(10):
        written.append([record])
    written.close()
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_a_copied_log_holds_every_record(log, tmp_path):
    """A copy has the same records and hash, in the same segments; its source is not changed."""
    before = contents(log)
    shown = []
    end = copy_log(log, tmp_path / "copy", 7, shown.append)
    assert list(check_log(tmp_path / "copy", end)) == history(10)
    assert contents(log) == before
    assert sum(shown) > 0
    source, copy = (LmdbEventLog.open_readonly(path) for path in (log, tmp_path / "copy"))
    assert (copy.last_sequence, copy.last_hash) == (source.last_sequence, source.last_hash) == end
    assert [path.name for path, _ in copy.segments] == [path.name for path, _ in source.segments]
    assert [seal for _, seal in copy.segments] == [seal for _, seal in source.segments]
    source.close()
    copy.close()


def test_a_copied_log_goes_on(log, tmp_path):
    """The copy takes an owner after its epoch, and appends, seals and reads like any log."""
    copy_log(log, tmp_path / "copy", 7, ignore)
    copy = LmdbEventLog(tmp_path / "copy", SMALL, epoch=8)
    for record in history(20)[12:]:
        copy.append([record])
    copy.close()
    reopened = LmdbEventLog.open_readonly(tmp_path / "copy")
    assert list(reopened.read()) == history(20)
    assert len(reopened.segments) > 3
    reopened.close()


def test_an_empty_log_is_copied(tmp_path):
    """A log without records, as a board's is for a moment, is copied as such."""
    LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True).close()
    end = copy_log(tmp_path / "log", tmp_path / "copy", 1, ignore)
    assert end == (0, bytes(16))
    assert list(check_log(tmp_path / "copy", end)) == []


@pytest.mark.parametrize("left", ["no seal", "no successor"])
def test_what_a_crash_left_is_copied_too(log, tmp_path, left):
    """A full segment without its seal, or without its successor, is copied as an owner reads it."""
    if left == "no seal":
        (log / "00000001" / SEALED).unlink()
        written = history(10)
    else:
        for path in (log / "00000003").iterdir():
            path.unlink()
        (log / "00000003").rmdir()
        (log / "head").unlink()
        written = history(10)[:10]
    end = copy_log(log, tmp_path / "copy", 7, ignore)
    assert list(check_log(tmp_path / "copy", end)) == written
    copy = LmdbEventLog(tmp_path / "copy", SMALL, epoch=8)
    copy.append([events(copy.last_sequence + 1, 3)])
    copy.close()


def test_a_large_segment_is_copied_in_short_transactions(log, tmp_path, monkeypatch):
    """However long the live segment, each transaction reads, or writes, a bound of bytes."""
    for module in (backup, segments):
        monkeypatch.setattr(module, "SCAN_BYTES_MAX", 1)
    put, chunk = Segment.put, Segment.chunk
    written, read = [], []

    def counted_put(segment, items, epoch):
        written.append(len(items))
        put(segment, items, epoch)

    def counted_chunk(segment, from_sequence):
        found = chunk(segment, from_sequence)
        read.append(len(found))
        return found

    monkeypatch.setattr(Segment, "put", counted_put)
    monkeypatch.setattr(Segment, "chunk", counted_chunk)
    end = copy_log(log, tmp_path / "copy", 7, ignore)
    assert written == [1, 1]
    assert read == [1, 1, 0]
    assert list(check_log(tmp_path / "copy", end)) == history(10)


@pytest.mark.parametrize(
    ("segment", "old", "new", "record"),
    [("00000001", b"key/14key", b"key/15key", 13), ("00000003", b"key/94key", b"key/95key", 93)],
)
def test_a_damaged_record_is_found_in_the_copy(log, tmp_path, segment, old, new, record):
    """A damaged record, in a sealed segment or the live one, is refused and named."""
    change(log / segment / DATA, old, new)
    with pytest.raises(DamagedError, match=f"sequence {record}\\b"):
        list(check_log(tmp_path / "copy", copy_log(log, tmp_path / "copy", 7, ignore)))


def test_a_log_that_lost_its_end_is_refused(log, tmp_path):
    """A log behind its own head is not copied as if it were whole."""
    for path in (log / "00000003").iterdir():
        path.unlink()
    (log / "00000003").rmdir()
    with pytest.raises(DamagedError, match="lost"):
        copy_log(log, tmp_path / "copy", 7, ignore)


def test_planted_faults_of_copying_are_noticed(log, tmp_path, monkeypatch):
    """A copy that drops a record, changes a byte, or ends early does not pass its check."""
    put, chunks = Segment.put, backup._chunks

    def dropping(segment, items, epoch):
        put(segment, [item for item in items if item[0] != 93], epoch)

    def flipping(path):
        for chunk in chunks(path):
            yield chunk.replace(b"key/14key", b"key/15key")

    def ending_early(segment, items, epoch):
        put(segment, items[:-1], epoch)

    for name, owner, attribute, fault in (
        ("dropped", Segment, "put", dropping),
        ("flipped", backup, "_chunks", flipping),
        ("early", Segment, "put", ending_early),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, fault)
            end = copy_log(log, tmp_path / name, 7, ignore)
        with pytest.raises(DamagedError):
            list(check_log(tmp_path / name, end))


def snapshot(directory: Path, sequence: int, size: int) -> Path:
    column = seeded(sequence).randbytes(size)
    return write_snapshot(directory, sequence, {"kind": "tally"}, [("state", column)])


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 200, CHUNK_BYTES, 2 * CHUNK_BYTES + 17])
def test_snapshots_are_copied_as_they_are(tmp_path, size):
    """A snapshot of any size is copied byte by byte, and only what is a snapshot."""
    path = snapshot(tmp_path / "from", 5, size)
    (tmp_path / "from" / (path.name + ".tmp")).write_bytes(b"half")
    assert copy_column_files(tmp_path / "from", tmp_path / "to", SUFFIX, ignore) == []
    assert [copy.name for copy in (tmp_path / "to").iterdir()] == [path.name]
    assert (tmp_path / "to" / path.name).read_bytes() == path.read_bytes()
    assert read_snapshot(tmp_path / "to" / path.name).sequence == 5


def test_a_file_of_any_size_is_copied_in_bounded_memory(tmp_path):
    """Copying takes memory for a few pieces of a file, not for the file."""
    path = snapshot(tmp_path / "from", 5, 64 << 20)
    tracemalloc.start()
    try:
        assert copy_column_files(tmp_path / "from", tmp_path / "to", SUFFIX, ignore) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * CHUNK_BYTES
    assert (tmp_path / "to" / path.name).stat().st_size == path.stat().st_size > 64 << 20


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer"])
def test_a_damaged_snapshot_is_left_out(tmp_path, damage):
    """A snapshot that is not what was written is not copied, and said; the others are."""
    whole, damaged = (snapshot(tmp_path / "from", n, CHUNK_BYTES + 100) for n in (5, 6))
    content = bytearray(damaged.read_bytes())
    content[CHUNK_BYTES // 2] ^= 1
    damaged.write_bytes(
        {"flipped": content, "cut": content[:-40], "empty": b"", "longer": content + b"?"}[damage]
    )
    (why,) = copy_column_files(tmp_path / "from", tmp_path / "to", SUFFIX, ignore)
    assert str(damaged) in why
    assert [copy.name for copy in (tmp_path / "to").iterdir()] == [whole.name]


def test_a_snapshot_that_vanishes_is_not_missed(tmp_path):
    """A snapshot that is pruned before its turn is left out in silence."""
    paths = [snapshot(tmp_path / "from", n, 10) for n in (5, 6)]
    left_out = copy_column_files(
        tmp_path / "from", tmp_path / "to", SUFFIX, lambda _: paths[1].unlink(missing_ok=True)
    )
    assert left_out == []
    assert [copy.name for copy in (tmp_path / "to").iterdir()] == [paths[0].name]


def test_a_missing_directory_has_nothing_to_copy(tmp_path):
    """A board without archives has none in its copy."""
    assert copy_column_files(tmp_path / "from", tmp_path / "to", SUFFIX, ignore) == []
    assert list((tmp_path / "to").iterdir()) == []


def test_a_backup_appears_when_it_is_whole(tmp_path):
    """A target has its name only once the block that fills it has ended; others cannot read it."""
    target = tmp_path / "deep" / "backup"
    with building(target) as partial:
        assert partial.name == "backup.partial"
        assert not target.exists()
        (partial / "file").write_bytes(b"x")
    assert (target / "file").read_bytes() == b"x"
    assert target.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in target.parent.iterdir()] == ["backup"]


def test_a_backup_that_fails_keeps_its_other_name(tmp_path):
    """After a failure nothing has the target's name, and the next attempt says what is there."""
    target = tmp_path / "backup"
    with pytest.raises(KeyboardInterrupt), building(target):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["backup.partial"]
    with pytest.raises(BackupExistsError, match=r"backup\.partial"), building(target):
        raise AssertionError("it must not be begun")


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link"])
def test_a_target_that_exists_is_refused(tmp_path, kind):
    """Nothing is ever written over, or into, what has the target's name."""
    target = tmp_path / "backup"
    if kind == "file":
        target.write_bytes(b"")
    elif kind == "directory":
        target.mkdir()
    else:
        target.symlink_to("nowhere")
    with pytest.raises(BackupExistsError, match="exists"), building(target):
        raise AssertionError("it must not be begun")
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


def test_what_is_renamed_is_durable_first(tmp_path, monkeypatch):
    """The directory is synced before it gets its name, and the name after."""
    calls: list[tuple[str, Path]] = []
    sync, rename = backup.sync_directory, Path.rename

    def synced(directory: Path) -> None:
        calls.append(("sync", directory))
        sync(directory)

    def renamed(path: Path, target: Path) -> Path:
        calls.append(("rename", path))
        return rename(path, target)

    monkeypatch.setattr(backup, "sync_directory", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    with building(tmp_path / "t"):
        pass
    partial = tmp_path / "t.partial"
    assert calls == [("sync", partial), ("rename", partial), ("sync", tmp_path)]


@pytest.mark.parametrize("error", [DamagedError("?"), FileNotFoundError("?"), None])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_board_that_goes_away_is_told_from_a_damaged_one(tmp_path, replaced, error):
    """Errors under a directory that was deleted, or replaced by another, are those of deletion."""
    board = tmp_path / "b"
    board.mkdir()

    def lose() -> None:
        board.rename(tmp_path / "deleted")
        if replaced:
            board.mkdir()
        if error is not None:
            raise error

    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BoardGoneError), held(board):
        lose()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_errors_of_a_board_that_stays_are_its_own(tmp_path):
    """An error under a directory that is still there is passed on as it is."""
    with pytest.raises(DamagedError), held(tmp_path):
        raise DamagedError("?")
    with held(tmp_path):
        pass
    with pytest.raises(BoardGoneError), held(tmp_path / "never"):
        raise AssertionError("it is not there")


def test_room_is_asked_for_before_anything_is_written(tmp_path, monkeypatch):
    """A copy that would take the disk's last bytes, which a node there needs, is refused."""
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "file").write_bytes(bytes(1000))
    assert file_bytes(tmp_path / "from") == 1000
    reserved = LogOptions().reserved_free_bytes
    monkeypatch.setattr(backup, "free_bytes", lambda _: reserved + 1000)
    require_room(tmp_path, 1000)
    with pytest.raises(StorageFullError, match="1001"):
        require_room(tmp_path, 1001)
