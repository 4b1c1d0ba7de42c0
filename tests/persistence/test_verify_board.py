from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persistence.event_log import LmdbEventLog
from persistence.ownership import leave_epoch
from persistence.recovery import LOG_HASH
from persistence.snapshot import write_snapshot
from persistence.verify import BoardReport, verify_board
from tests.persistence.log_samples import SMALL, Tally, events, history

LATER_EPOCH = 9  # than any that a test opens the log with


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Write a board of three segments and two snapshots."""
    directory = tmp_path / "board"
    log = LmdbEventLog(directory / "log", SMALL, epoch=1, create=True)
    tally = Tally()
    for record in history(10):
        log.append([record])
        tally.apply(record)
        if record.last_sequence in (42, 82):
            save(directory, tally, log.last_hash)
    log.close()
    leave_epoch(directory, LATER_EPOCH)
    return directory


def save(directory: Path, tally: Tally, log_hash: bytes) -> Path:
    header, columns = tally.dump()
    return write_snapshot(
        directory / "snapshots", tally.sequence, header | {LOG_HASH: log_hash}, columns
    )


def verified(board: Path, **options: object) -> BoardReport:
    """Verify, and check that nothing was written, LMDB's lock files apart."""
    before = contents(board)
    report = verify_board(board, Tally, Tally.load, **options)
    assert contents(board) == before
    return report


def contents(board: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(board.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }


def files_and_records(report: BoardReport) -> list[tuple[str, int | None]]:
    return [(finding.file, finding.record) for finding in report.findings]


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content  # once, and in the pages that later commits left behind
    path.write_bytes(content.replace(old, new))


def test_a_sound_board_has_no_findings(board):
    """A sound board passes, and the report says what was seen."""
    seen = []
    report = verified(board, progress=lambda done, total: seen.append((done, total)))
    assert report.is_sound
    assert (report.records, report.last_sequence) == (12, 102)
    assert (report.segments, report.snapshots) == (3, 2)
    assert report.log_bytes > 0
    tally = Tally()
    for record in history(10):
        tally.apply(record)
    assert report.state_digest == tally.state_digest()
    assert seen == sorted(seen)
    assert seen[-1] == (102, 102)


def test_a_damaged_record_is_found_and_the_rest_still_checked(board):
    """A changed byte is found with its record; later segments and snapshots are still checked."""
    change(board / "log/00000001/data.mdb", b"key/14key", b"key/15key")
    change(board / "log/00000002/data.mdb", b"key/71", b"key/61")
    report = verified(board)
    damaged = [("log/00000001/data.mdb", 13), ("log/00000002/data.mdb", 63)]
    assert files_and_records(report) == damaged
    assert report.state_digest is None
    assert report.records == 12


def test_a_damaged_last_record_does_not_hide_the_others(board):
    """A log whose last record is damaged does not open, but each of its records is checked."""
    change(board / "log/00000001/data.mdb", b"key/14key", b"key/15key")
    change(board / "log/00000003/data.mdb", b"key/101", b"key/111")
    report = verified(board)
    expected = [("log", None), ("log/00000001/data.mdb", 13), ("log/00000003/data.mdb", 93)]
    assert files_and_records(report) == expected


def test_damaged_pages_are_found_by_segment(board):
    """Pages that LMDB could not be trusted with are a finding of their segment, not a crash."""
    for segment in ("00000001", "00000003"):
        path = board / "log" / segment / "data.mdb"
        content = bytearray(path.read_bytes())
        for page in range(2, len(content) // 4096):
            content[page * 4096 + 12] ^= 0xFF
        path.write_bytes(content)
    (board / "log/00000002/sealed").write_bytes(b"?")
    files = {finding.file for finding in verified(board).findings}
    assert {
        "log",
        "log/00000001/data.mdb",
        "log/00000003/data.mdb",
        "log/00000002/sealed",
    } <= files


def test_damaged_pages_of_a_sealed_segment(board):
    """A sealed segment with damaged pages is a finding, and the others are still checked."""
    path = board / "log/00000001/data.mdb"
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 + 12] ^= 0xFF
    path.write_bytes(content)
    report = verified(board)
    assert ("log/00000001/data.mdb", None) in files_and_records(report)
    assert report.records > 5


def test_a_lost_end_is_found(board):
    """A log that ends before its head is found, and what it has is still checked."""
    head = (board / "log/head").read_bytes()
    for path in sorted((board / "log").iterdir()):
        if path.name != "head":
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
    (board / "log/head").unlink()
    log = LmdbEventLog(board / "log", SMALL, epoch=2, create=True)
    log.append(history(3))
    log.close()
    (board / "log/head").write_bytes(head)
    report = verified(board)
    assert [finding.file for finding in report.findings] == [
        "log/head",
        f"snapshots/{82:020d}.snapshot",
        f"snapshots/{42:020d}.snapshot",
    ]
    assert report.records == 5


def test_a_wrong_seal_is_found(board):
    """A seal of another segment is a finding."""
    (board / "log/00000002/sealed").write_bytes((board / "log/00000001/sealed").read_bytes())
    assert not verified(board).is_sound


def test_snapshots_are_compared_with_the_replay(board):
    """A snapshot that is damaged, or another state than the replay's, is found."""
    path = board / f"snapshots/{82:020d}.snapshot"
    path.write_bytes(path.read_bytes()[:-1])
    log = LmdbEventLog.open_readonly(board / "log")
    save(board, Tally(62, b"another state"), log.hash_at(62))
    save(board, Tally(500, b""), bytes(16))
    save(board, Tally(55, b""), bytes(16))
    log.close()
    report = verified(board)
    found = {finding.file: finding.what for finding in report.findings}
    assert sorted(found) == [f"snapshots/{at:020d}.snapshot" for at in (55, 62, 82, 500)]
    assert "replay" in found[f"snapshots/{62:020d}.snapshot"]
    assert "ahead" in found[f"snapshots/{500:020d}.snapshot"]
    assert report.state_digest is not None


def test_what_the_board_objects_to_is_found(board):
    """What the board's audit says of a record is a finding, unless audits are left out."""
    log = LmdbEventLog(board / "log", SMALL, epoch=2)
    log.append([replace(events(103, 1), recorded_at_us=666)])
    log.append([events(104, 1)])
    log.close()
    report = verified(board)
    assert [(f.record, f.what) for f in report.findings] == [(103, "forbidden")]
    assert report.state_digest is not None
    assert verified(board, confirm_keys=False).is_sound


def test_a_record_the_board_cannot_apply_is_found(board):
    """A record that the board refuses is found; the log behind it is still checked."""

    class Picky(Tally):
        def apply(self, record) -> None:
            if record.first_sequence == 53:
                raise ValueError("no")
            super().apply(record)

    report = verify_board(board, Picky, Picky.load)
    assert files_and_records(report) == [("log/00000002/data.mdb", 53)]
    assert report.records == 12


def test_a_missing_log_is_found(tmp_path):
    """A directory without a log is a finding, not an error."""
    report = verify_board(tmp_path, Tally, Tally.load)
    assert files_and_records(report) == [("log/head", None), ("log", None)]
