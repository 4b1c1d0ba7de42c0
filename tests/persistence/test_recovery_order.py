from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from persistence.errors import DamagedError
from persistence.event_log import MemoryEventLog
from persistence.recovery import LOG_HASH, RecoveryReport, recover
from persistence.snapshot import write_snapshot
from tests.persistence.log_samples import Tally, events, history


@pytest.fixture
def log() -> MemoryEventLog:
    log = MemoryEventLog()
    log.append(history(10))
    return log


def tally_at(log: MemoryEventLog, sequence: int) -> Tally:
    tally = Tally()
    for record in log.read():
        if record.last_sequence <= sequence:
            tally.apply(record)
    return tally


def snapshot(directory: Path, log: MemoryEventLog, sequence: int, **header: object) -> Path:
    tally = tally_at(log, sequence)
    fields, columns = tally.dump()
    fields |= {LOG_HASH: log.hash_at(sequence)} | header
    return write_snapshot(directory, sequence, fields, columns)


def recovered(log: MemoryEventLog, directory: Path) -> RecoveryReport:
    """Recover, and check that the state is that of a full replay, whatever the way."""
    ticks = count()
    tally, report = recover(log, directory, Tally, Tally.load, clock=lambda: float(next(ticks)))
    assert tally.state_digest() == tally_at(log, log.last_sequence).state_digest()
    assert (report.load_seconds, report.replay_seconds) == (1, 1)
    assert report.last_sequence == log.last_sequence
    return report


def test_without_snapshots_everything_is_replayed(log, tmp_path):
    """Without a snapshot the whole log is replayed."""
    report = recovered(log, tmp_path / "missing")
    assert (report.snapshot_sequence, report.snapshots_skipped) == (0, ())
    assert (report.records_replayed, report.events_replayed) == (12, 100)


def test_the_newest_snapshot_is_taken(log, tmp_path):
    """Only what is newer than the newest snapshot is replayed."""
    snapshot(tmp_path, log, 42)
    snapshot(tmp_path, log, 82)
    report = recovered(log, tmp_path)
    assert (report.snapshot_sequence, report.snapshots_skipped) == (82, ())
    assert (report.records_replayed, report.events_replayed) == (2, 20)


def test_a_snapshot_of_the_end_replays_nothing(log, tmp_path):
    """A snapshot of the log's end is the state."""
    snapshot(tmp_path, log, 102)
    assert recovered(log, tmp_path).records_replayed == 0


def test_a_damaged_snapshot_falls_back_to_the_older(log, tmp_path):
    """A damaged snapshot is passed over, with its reason, for the one before."""
    snapshot(tmp_path, log, 42)
    path = snapshot(tmp_path, log, 82)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    report = recovered(log, tmp_path)
    assert report.snapshot_sequence == 42
    ((name, reason),) = report.snapshots_skipped
    assert name == path.name
    assert "checksum" in reason


def test_unusable_snapshots_fall_back_to_a_full_replay(log, tmp_path):
    """Snapshots that are damaged, ahead, of another history or unloadable never become state."""
    longer = MemoryEventLog()
    longer.append([*history(10), events(103, 5)])
    snapshot(tmp_path, longer, 107)
    snapshot(tmp_path, log, 92, **{LOG_HASH: bytes(16)})
    snapshot(tmp_path, log, 82, kind="other")
    snapshot(tmp_path, log, 72).write_bytes(b"")
    write_snapshot(tmp_path, 62, {"kind": "tally", LOG_HASH: log.hash_at(62)}, [])
    snapshot(tmp_path, log, 52).rename(tmp_path / f"{51:020d}.snapshot")
    fields, columns = tally_at(log, 32).dump()
    write_snapshot(tmp_path, 42, fields | {LOG_HASH: log.hash_at(42)}, columns)
    write_snapshot(tmp_path, 35, fields | {LOG_HASH: log.hash_at(32)}, columns)
    report = recovered(log, tmp_path)
    assert report.snapshot_sequence == 0
    reasons = [reason for _, reason in report.snapshots_skipped]
    expected = ["ahead", "another history", "not a tally", "shorter", "KeyError", "sequence 52"]
    expected += ["sequence 32", "inside a record"]
    assert len(reasons) == len(expected)
    for part, reason in zip(expected, reasons, strict=True):
        assert part in reason


def test_a_damaged_log_is_not_replayed(log, tmp_path):
    """A damaged record ends recovery, unless a snapshot holds what is before it."""
    log._records[4] = log._records[4][:-1] + b"?"
    with pytest.raises(DamagedError, match="sequence 23"):
        recover(log, tmp_path, Tally, Tally.load)
