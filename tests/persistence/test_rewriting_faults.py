"""Writing a log again where something fails: the log in use goes on, or ends and is recovered."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persistence import event_log, rewriting
from persistence.errors import (
    CommitFailedError,
    DamagedError,
    FencedError,
    StorageFullError,
)
from persistence.event_log import LmdbEventLog
from persistence.log_places import LogPlaces
from persistence.rewriting import write_again
from persistence.segments import DATA, SEALED, read_seal, write_seal
from tests.persistence.log_samples import SMALL, events
from tests.persistence.rewritten_logs import (
    GONE,
    contents,
    firsts,
    go_on,
    require_reads,
    rewrite,
    without,
    write,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LmdbEventLog]:
    """Write a log of four sealed segments and an empty one."""
    write(tmp_path / "log")
    opened = LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
    opened.seal_live()
    yield opened
    opened.close()


# What is refused, and changes nothing


def test_a_former_owner_puts_nothing_in_place(tmp_path, log):
    """Once the epoch is raised, neither sealing nor exchanging is the former owner's to do."""
    records = list(log.read())
    built = tmp_path / "built"
    write_again(log, built, firsts(records, GONE), lambda record: without(record, GONE), go_on)
    log.append([events(log.last_sequence + 1, 1)])
    before = contents(log.directory)
    log._live.raise_epoch(7)  # as a successor in another process does first
    before[f"{log.segments[-1][0].name}/{DATA}"] = (log.segments[-1][0] / DATA).read_bytes()
    with pytest.raises(FencedError):
        log.put_in_place(built)
    with pytest.raises(FencedError):
        log.seal_live()
    assert contents(log.directory) == before
    assert built.exists()


def test_a_reader_neither_seals_nor_exchanges(tmp_path):
    """Who opened a log for reading cannot change what is on disk."""
    write(tmp_path / "log")
    with closing(LmdbEventLog.open_readonly(tmp_path / "log")) as reader:
        for work in (reader.seal_live, lambda: reader.put_in_place(tmp_path / "built")):
            with pytest.raises(AssertionError, match="for reading"):
                work()


@pytest.mark.parametrize("place", ["changed", "beside it"])
def test_a_damaged_record_is_not_written_again(tmp_path, log, place):
    """Damage must not get a hash that fits: it is named, and the log stays as it is."""
    records = list(log.read())
    sequence = 14 if place == "changed" else 24
    path = log.directory / "00000001" / DATA
    content = path.read_bytes()
    old, new = b"key/%dkey" % sequence, b"key/%dkez" % sequence
    assert old in content
    path.write_bytes(content.replace(old, new))
    before = contents(log.directory)
    first_sequence = sequence // 10 * 10 + 3 - 10 * (sequence % 10 < 3)
    with pytest.raises(DamagedError, match=f"00000001/data.mdb: .* sequence {first_sequence}: "):
        write_again(
            log, tmp_path / "built", firsts(records, GONE), lambda r: without(r, GONE), go_on
        )
    assert contents(log.directory) == before


def test_without_room_nothing_changes(tmp_path, log, monkeypatch):
    """A disk that could not hold a segment twice refuses it before it is written; later it may."""
    records = list(log.read())
    before = contents(log.directory)
    asked = []

    def free_bytes(directory: Path) -> int:
        asked.append(directory)
        return 2 * (log.directory / "00000001" / DATA).stat().st_size

    with monkeypatch.context() as patch:
        patch.setattr(event_log, "free_bytes", free_bytes)
        with pytest.raises(StorageFullError):
            rewrite(log, GONE)
        with pytest.raises(StorageFullError):
            log.seal_live()
    assert len(asked) == 2
    assert list((tmp_path / "built").iterdir()) == []
    assert contents(log.directory) == before
    require_reads(log, records)
    rewrite(log, GONE)
    require_reads(log, [without(record, GONE) for record in records])


def test_building_can_be_stopped_and_begun_again(tmp_path, log):
    """What was built until then is of no use, and is removed by the next who builds."""
    records = list(log.read())
    before = contents(log.directory)
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_again(
            log, tmp_path / "built", firsts(records, GONE), lambda r: without(r, GONE), stop
        )
    assert {path.name for path in (tmp_path / "built").iterdir()} == {"00000001", "00000002"}
    assert contents(log.directory) == before
    rewrite(log, GONE)
    require_reads(log, [without(record, GONE) for record in records])


@pytest.mark.parametrize("wrong", ["end", "no seal", "the live segment"])
def test_what_does_not_fit_is_not_put_in_place(tmp_path, log, wrong):
    """A segment that does not end as the one that it replaces is refused; the log goes on."""
    records = list(log.read())
    built = tmp_path / "built"
    write_again(log, built, firsts(records, GONE), lambda record: without(record, GONE), go_on)
    path = built / "00000002"
    if wrong == "end":
        write_seal(path, read_seal(built / "00000001"))
    elif wrong == "no seal":
        (path / SEALED).unlink()
    else:
        path = built / log.segments[-1][0].name
        shutil.copytree(built / "00000002", path)
    before = contents(log.directory)
    with pytest.raises(DamagedError, match=f"{path}: does not end as what it replaces"):
        log.put_in_place(built)
    assert contents(log.directory) == before
    records.append(events(log.last_sequence + 1, 3))
    log.append(records[-1:])
    require_reads(log, records)


# Errors of the exchange itself


@pytest.mark.parametrize("step", ["link", "sync_directory", "exchange"])
def test_an_error_before_the_exchange_changes_nothing(tmp_path, log, monkeypatch, step):
    """Whatever fails until then, the log in use goes on, and the exchange may be tried again."""
    records = list(log.read())
    failed = []

    def fail(*_: object) -> None:
        failed.append(step)
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "link" else event_log, step, fail)
        with pytest.raises(OSError, match="the disk failed"):
            built_and_exchanged(log)
    assert len(failed) == 1
    records.append(events(log.last_sequence + 1, 30))
    log.append(records[-1:])
    require_reads(log, records)
    rewrite(log, GONE)
    require_reads(log, [without(record, GONE) for record in records])


def built_and_exchanged(log: LmdbEventLog) -> None:
    """Write a log again, none of whose segments is linked before the exchange."""
    gone = [14, 60, 100]
    built = log.directory.with_name("built")
    changed = firsts(list(log.read()), gone)
    write_again(log, built, changed, lambda record: without(record, gone), go_on)
    log.put_in_place(built)


@pytest.mark.parametrize("step", ["sync", "survey"])
def test_an_error_behind_the_exchange_ends_the_log(tmp_path, log, monkeypatch, step):
    """Which of the two a cut would leave is unknown then: nothing is appended to either."""
    records = list(log.read())
    failed = []

    def fail(*_: object, **__: object) -> None:
        failed.append(step)
        raise OSError(errno.EIO, "the disk failed")

    real = event_log.sync_directory

    def sync(directory: Path) -> None:
        (fail if directory == tmp_path else real)(directory)

    with monkeypatch.context() as patch:
        if step == "sync":
            patch.setattr(event_log, "sync_directory", sync)
        else:
            patch.setattr(LogPlaces, "survey", fail)
        with pytest.raises(CommitFailedError, match="the disk failed"):
            rewrite(log, GONE)
    assert len(failed) == 1
    for work in (lambda: log.append([events(log.last_sequence + 1, 1)]), log.seal_live):
        with pytest.raises(CommitFailedError, match="opened again"):
            work()
    log.close()
    with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch=3)) as successor:
        require_reads(successor, [without(record, GONE) for record in records])


def test_a_rewriting_that_moves_a_hash_is_noticed(tmp_path, log, monkeypatch):
    """Planted: segments that do not remember what the next one follows are not put in place."""
    monkeypatch.setattr(rewriting.Segment, "put_followed_hash", lambda *_: None)
    before = contents(log.directory)
    with pytest.raises(DamagedError, match="does not end as what it replaces"):
        rewrite(log, GONE)
    assert contents(log.directory) == before


def test_what_a_commit_that_was_cut_off_has_left_goes_too(tmp_path, log):
    """A segment whose records are all to stay is written again where its pages hold a text."""
    source, _ = log.segments[0]
    log.close()
    content = (source / DATA).read_bytes()
    with (source / DATA).open("ab") as file:
        file.write(bytes(4096) + b"left in a free page" + bytes(4096))
    owner = LmdbEventLog(tmp_path / "log", SMALL, epoch=3)
    records = list(owner.read())
    built = tmp_path / "built"
    write_again(owner, built, [], lambda record: record, go_on, [b"left in a free page"])
    owner.put_in_place(built)
    assert b"left in a free page" not in (source / DATA).read_bytes()
    assert b"left in a free page" in (built / source.name / DATA).read_bytes()
    assert list(owner.read()) == records
    assert content != (source / DATA).read_bytes(), "it is another file"
    linked = [(built / path.name / DATA).samefile(path / DATA) for path, _ in owner.segments]
    assert linked == [False, True, True, True, True]
    owner.close()
    reader = LmdbEventLog.open_readonly(tmp_path / "log")
    assert list(reader.read()) == records
    reader.close()
