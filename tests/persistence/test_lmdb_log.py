from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from persistence import sealed_segments, segments
from persistence.errors import (
    CommitFailedError,
    DamagedError,
    FencedError,
    StorageFullError,
)
from persistence.event_log import (
    LmdbEventLog,
    LogOptions,
)
from persistence.head import read_head
from persistence.records import EMPTY_HASH
from tests.persistence.log_samples import SMALL, definition, events, history, window
from tests.persistence.processes import start


def written(directory: Path, batches: int = 12) -> list:
    """Write a log of several segments, one append per record, and return its records."""
    log = LmdbEventLog(directory, SMALL, epoch=1, create=True)
    records = history(batches)
    for record in records:
        log.append([record])
    log.close()
    return records


def test_a_log_survives_being_closed(tmp_path):
    """A reopened log has the same records, hashes and end, and goes on from there."""
    records = written(tmp_path / "log")
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
    assert list(log.read()) == records
    log.append([events(log.last_sequence + 1, 3)])
    end = (log.last_sequence, log.last_hash)
    log.close()
    reader = LmdbEventLog.open_readonly(tmp_path / "log")
    assert (reader.last_sequence, reader.last_hash) == end
    assert list(reader.read())[:-1] == records
    with pytest.raises(AssertionError):
        reader.append([events(reader.last_sequence + 1, 1)])
    reader.close()
    reader.close()


def test_full_segments_are_sealed(tmp_path):
    """Segments rotate at their limits, and a seal says what its segment holds."""
    records = written(tmp_path / "log", 100)
    log = LmdbEventLog.open_readonly(tmp_path / "log")
    seals = [seal for _, seal in log.segments]
    assert len(seals) == log.stats.segments > segments_open_max() + 2
    assert seals.pop() is None
    next_sequence, chain = 1, EMPTY_HASH
    for seal in seals:
        assert (seal.first_sequence, seal.first_previous_hash) == (next_sequence, chain)
        assert seal.last_hash == log.hash_at(seal.last_sequence)
        assert seal.last_sequence - seal.first_sequence + 1 >= SMALL.segment_events_max
        next_sequence, chain = seal.last_sequence + 1, seal.last_hash
    # Backwards, so that sealed segments are closed and opened again.
    for record in reversed(records[2:]):
        assert log.event(record.first_sequence) == record.row(0)
    assert log._sealed.open == segments_open_max()
    log.close()


def segments_open_max() -> int:
    return sealed_segments.SEALED_OPEN_MAX


def test_segments_rotate_before_their_map_is_full(tmp_path):
    """Large records fill the map, not the count of events; none fails for want of room."""
    options = LogOptions(segment_bytes_max=1 << 20, reserved_free_bytes=0)
    log = LmdbEventLog(tmp_path / "log", options, epoch=1, create=True)
    sequence = 0
    for count in (1, 900, 2_500, 2_800, 40, 2_800, 1, 1, 700) * 3:
        log.append([events(sequence + 1, count, text_bytes=100)])
        sequence += count
    assert log.stats.segments > 5
    assert sum(record.count for record in log.read()) == sequence
    log.close()


def test_a_full_disk_refuses_before_writing(tmp_path):
    """Below the reserve an append is refused, nothing changes, and reads go on."""
    records = written(tmp_path / "log")
    log = LmdbEventLog(tmp_path / "log", LogOptions(reserved_free_bytes=1 << 60), epoch=2)
    before = (tmp_path / "log" / "head").read_bytes()
    for _ in range(2):
        with pytest.raises(StorageFullError):
            log.append([events(log.last_sequence + 1, 1)])
    with pytest.raises(StorageFullError):
        log.check_room(1)
    assert (tmp_path / "log" / "head").read_bytes() == before
    assert list(log.read()) == records
    log.close()
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=3)
    log.append([events(log.last_sequence + 1, 1)])
    log.close()


def test_reading_beside_a_writer(tmp_path):
    """A read-only log, opened while it is written, shows what there was, across rotations."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    records = history(3)
    log.append(records)
    # One process may open an environment once, so the reader is another process.
    child = reader_process(tmp_path / "log")
    assert child.stdout.readline() == f"{records[-1].last_sequence}\n"
    for _ in range(40):
        log.append([events(log.last_sequence + 1, 10)])
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.read() == f"{len(records)} {log.hash_at(records[-1].last_sequence).hex()}\n"
    assert child.wait() == 0
    child.stdin.close()
    child.stdout.close()
    log.close()


def reader_process(directory: Path):
    return start(
        """
        import sys
        from pathlib import Path
        from persistence.event_log import LmdbEventLog
        log = LmdbEventLog.open_readonly(Path(sys.argv[1]))
        print(log.last_sequence, flush=True)
        sys.stdin.readline()
        print(len(list(log.read())), log.last_hash.hex())
        """,
        directory,
    )


def test_reads_and_appends_from_two_threads(tmp_path):
    """Events can be looked up from one thread while another appends and rotates."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    log.append(history(1))
    failures: list[BaseException] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            while not done.is_set():
                for sequence in (3, 12, log.last_sequence, log.last_sequence // 2 + 3):
                    assert log.event(sequence).sequence == sequence
        except BaseException as error:  # noqa: BLE001  (carried to the test's own thread)
            failures.append(error)

    thread = threading.Thread(target=look_up)
    thread.start()
    for _ in range(150):
        log.append([events(log.last_sequence + 1, 10)])
    done.set()
    thread.join()
    log.close()
    assert not failures


# Owners


def test_a_later_owner_fences_the_earlier_one(tmp_path):
    """Once the epoch is raised, the former owner's next append fails and writes nothing."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=5, create=True)
    log.append([definition()])
    # What a successor in another process does first.
    log._live.raise_epoch(6)
    for _ in range(2):
        with pytest.raises(FencedError):
            log.append([window(2)])
    log.close()
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=7)
    assert log.last_sequence == 1
    log.close()


def test_a_fenced_owner_cannot_seal(tmp_path):
    """A former owner whose segment is full neither seals it nor begins the next."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=5, create=True)
    log.append(history(4))
    log._live.raise_epoch(6)
    with pytest.raises(FencedError):
        log.append([events(43, 1)])
    log.close()
    assert names(tmp_path / "log") == ["00000001", "head"]
    assert not (tmp_path / "log" / "00000001" / "sealed").exists()


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_must_be_new(tmp_path, epoch):
    """A log cannot be opened for writing with an epoch that was used, in whatever segment."""
    written(tmp_path / "log")
    with pytest.raises(FencedError):
        LmdbEventLog(tmp_path / "log", SMALL, epoch=epoch)
    LmdbEventLog(tmp_path / "log", SMALL, epoch=2).close()


# What a crash leaves behind


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def crash_at(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def crash(*args: object) -> None:
        raise KeyboardInterrupt(function)

    monkeypatch.setattr(function, crash)


@pytest.mark.parametrize(
    "step",
    [
        "persistence.event_log.write_seal",
        "persistence.event_log.Segment.create",
        "persistence.event_log.sync_directory",
        "persistence.event_log.HeadFile.advance",
    ],
)
def test_a_crash_while_rotating_is_put_right(tmp_path, monkeypatch, step):
    """Whatever step of sealing and beginning a segment is the last, the next owner goes on."""
    directory = tmp_path / "log"
    log = LmdbEventLog(directory, SMALL, epoch=1, create=True)
    records = history(4)
    log.append(records)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            log.append([events(43, 10)])
    log.close()
    for epoch in (2, 3):
        log = LmdbEventLog(directory, SMALL, epoch=epoch)
        assert list(log.read())[: len(records)] == records
        log.append([events(log.last_sequence + 1, 10)])
        log.close()
    assert not list(directory.glob("*.new"))
    assert (directory / "00000001" / "sealed").exists()
    reader = LmdbEventLog.open_readonly(directory)
    assert reader.last_sequence == sum(record.count for record in reader.read())
    reader.close()


@pytest.mark.parametrize(
    "step", ["persistence.event_log.Segment.create", "persistence.event_log.sync_directory"]
)
def test_a_crash_while_creating_is_put_right(tmp_path, monkeypatch, step):
    """A log whose creation was interrupted opens as a new one."""
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=2, create=True)
    log.append([definition()])
    log.close()
    assert names(tmp_path / "log") == ["00000001", "head"]


@pytest.mark.parametrize("left", ["nothing", "debris", "the head alone"])
def test_a_log_that_is_gone_is_damage_to_its_owner(tmp_path, left):
    """No owner begins a log in the place of one that is lost: it leaves what it found."""
    directory = tmp_path / "log"
    written(directory)
    head = (directory / "head").read_bytes()
    shutil.rmtree(directory)
    if left != "nothing":
        (directory / "00000001.new").mkdir(parents=True)
    if left == "the head alone":
        (directory / "head").write_bytes(head)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DamagedError, match="holds no log"):
        LmdbEventLog(directory, SMALL, epoch=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lost_seal_is_made_again(tmp_path):
    """A segment that has a successor is sealed again with the same content."""
    records = written(tmp_path / "log")
    seal = tmp_path / "log" / "00000001" / "sealed"
    content = seal.read_bytes()
    seal.unlink()
    reader = LmdbEventLog.open_readonly(tmp_path / "log")
    assert list(reader.read()) == records
    reader.close()
    assert not seal.exists()
    LmdbEventLog(tmp_path / "log", SMALL, epoch=2).close()
    assert seal.read_bytes() == content


# Planted faults


def failing_commit(error: Exception) -> Callable[[lmdb.Transaction], None]:
    def commit(transaction: lmdb.Transaction) -> None:
        transaction.abort()
        raise error

    return commit


@pytest.mark.parametrize("error", [lmdb.DiskError("planted"), OSError(5, "planted")])
def test_a_failed_commit_is_never_retried(tmp_path, monkeypatch, error):
    """A commit that fails is CommitFailedError, as is every append after it."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    log.append([definition()])
    with monkeypatch.context() as patch:
        patch.setattr(segments, "commit", failing_commit(error))
        with pytest.raises(CommitFailedError):
            log.append([window(2)])
    with pytest.raises(CommitFailedError):
        log.append([window(2)])
    assert log.last_sequence == 1
    log.close()


def test_a_commit_that_lost_its_data_is_noticed(tmp_path, monkeypatch):
    """A commit that reports success but wrote nothing is refused when the log is opened."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    log.append([definition()])
    with monkeypatch.context() as patch:
        patch.setattr(segments, "commit", lambda transaction: transaction.abort())
        log.append([window(2)])
    log.close()
    with pytest.raises(DamagedError, match="last commits are lost"):
        LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
    with pytest.raises(DamagedError, match="last commits are lost"):
        LmdbEventLog.open_readonly(tmp_path / "log")


def test_every_environment_syncs(tmp_path, monkeypatch):
    """No environment is opened with sync, metasync or locking off while it can be written."""
    opened = []
    original = lmdb.open

    def record_options(path: str, **options: object) -> lmdb.Environment:
        opened.append(options)
        return original(path, **options)

    monkeypatch.setattr(lmdb, "open", record_options)
    written(tmp_path / "log")
    writable = [options for options in opened if not options["readonly"]]
    assert len(writable) > 4
    for options in writable:
        flags = {name: options[name] for name in ("sync", "metasync", "meminit", "lock")}
        assert all(flags.values()), flags
        assert not options["writemap"]
        assert not options["map_async"]


# The head


def test_the_head_follows_every_commit(tmp_path):
    """After each commit the head holds the log's end, and a torn slot costs one commit only."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    path = tmp_path / "log" / "head"
    for record in history(3):
        before = read_head(path)
        log.append([record])
        after = read_head(path)
        assert (after.last_sequence, after.last_hash) == (log.last_sequence, log.last_hash)
        content = bytearray(path.read_bytes())
        content[after.counter % 2 * 64 + 20] ^= 1
        torn = tmp_path / "torn"
        torn.write_bytes(content)
        assert read_head(torn) == before
    log.close()


def test_a_log_ahead_of_its_head_is_taken(tmp_path):
    """A head that a power cut left behind, or that an operator removed, is written anew."""
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    path = tmp_path / "log" / "head"
    log.append(history(2))
    old = path.read_bytes()
    log.append([events(23, 5)])
    log.close()
    path.write_bytes(old)
    LmdbEventLog(tmp_path / "log", SMALL, epoch=2).close()
    assert read_head(path).last_sequence == 27
    path.unlink()
    LmdbEventLog(tmp_path / "log", SMALL, epoch=3).close()
    assert read_head(path).last_sequence == 27


def test_a_head_of_another_history_is_refused(tmp_path):
    """A log that holds another record than its head remembers is refused."""
    for name, text_bytes in (("one", 12), ("two", 13)):
        log = LmdbEventLog(tmp_path / name, SMALL, epoch=1, create=True)
        log.append([definition(), events(2, 3, text_bytes=text_bytes)])
        log.close()
    (tmp_path / "one" / "head").write_bytes((tmp_path / "two" / "head").read_bytes())
    with pytest.raises(DamagedError, match="another record"):
        LmdbEventLog(tmp_path / "one", SMALL, epoch=2)


def test_an_illegible_head_is_refused(tmp_path):
    """A head of which no slot is valid is damage, not absence."""
    written(tmp_path / "log")
    (tmp_path / "log" / "head").write_bytes(bytes(128))
    with pytest.raises(DamagedError, match="neither"):
        LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
