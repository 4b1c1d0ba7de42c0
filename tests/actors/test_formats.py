"""What a newer version wrote is refused with that word, and neither taken nor written over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from actors import listing
from actors.offline import verify
from persistence import column_file, head, ownership, records, segments, value_file
from persistence.errors import FormatTooNewError
from persistence.event_log import LmdbEventLog
from persistence.records import SequencesLostRecord
from persistence.segments import Segment
from tests.actors.clocked_board import ClockedBoard
from tests.data.logs.write import BEGINNING, DEFINITION, OPTIONS, play

NEWER = "written by a newer ranknode"
LATER_EPOCH = 2**62


@pytest.fixture
def board(tmp_path: Path) -> ClockedBoard:
    """Play a board for some days, and close it."""
    played = ClockedBoard(tmp_path, BEGINNING, OPTIONS, **DEFINITION)
    play(played, erases=False)
    played.snapshot()
    played.close()
    return played


def append(log: Path, record: records.Record) -> None:
    written = LmdbEventLog(log, OPTIONS.log, epoch=LATER_EPOCH)
    written.append([record])
    written.close()
    ownership.leave_epoch(log.parent, LATER_EPOCH)


def next_record(log: Path, kind: int = SequencesLostRecord.KIND) -> records.Record:
    class Later(SequencesLostRecord):
        KIND = kind

    found = head.read_head(log / "head")
    assert found is not None
    return Later(first_sequence=found.last_sequence + 1, recorded_at_us=1, lost=1, why="")


def bump_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FORMAT_VERSION", 2)
    append(directory / "log", next_record(directory / "log"))


def bump_kind(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(directory / "log", next_record(directory / "log", kind=6))


def bump_head(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = head.read_head(directory / "log" / "head")
    assert found is not None
    monkeypatch.setattr(head, "_MAGIC", b"RNKHEAD2")
    (directory / "log" / "head").write_bytes(head._pack(found) * 2)


def bump_seal(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "log" / "00000001"
    found = segments.read_seal(path)
    assert found is not None
    segments.write_seal(path, msgspec.structs.replace(found, version=2))


def bump_epoch(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment.open_live(directory / "log" / "00000002", 1 << 20, writable=True)
    later = b"an epoch of another form"
    with segment._write() as transaction:
        transaction.put(b"\0", later + hashlib.blake2b(later, digest_size=8).digest())
    segment.close()


def bump_owner(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = ownership.OwnerRecord(LATER_EPOCH, None, version=2)
    ownership._write_owner(directory / "owner", later)


def bump_listing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = listing.read_listing(directory)
    listing.write_listing(directory, msgspec.structs.replace(found, version=2))


Bump = Callable[[Path, pytest.MonkeyPatch], None]
REFUSED: list[Bump] = [
    bump_record, bump_kind, bump_head, bump_seal, bump_epoch, bump_owner, bump_listing,
]  # fmt: skip


def contents(directory: Path) -> dict[Path, bytes]:
    """Read every file but those that name processes."""
    passing = ("lock.mdb", "owner")
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in passing
    }


@pytest.mark.parametrize("bump", REFUSED)
def test_what_a_newer_version_wrote_is_refused(bump, board, monkeypatch):
    """A later format of any file is said to be one, to owner and verifier; nothing changes."""
    with monkeypatch.context() as patch:
        bump(board.directory, patch)
    before = contents(board.directory)
    with pytest.raises(FormatTooNewError, match=NEWER):
        ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    assert contents(board.directory) == before
    findings = verify(board.directory).findings
    assert any(NEWER in finding.what for finding in findings), findings


def test_a_newer_snapshot_is_passed_over(board, monkeypatch):
    """A snapshot of a later format is passed over, with that reason: the log holds all of it."""
    expected = board.host.board.state_digest()
    (path,) = (board.directory / "snapshots").glob(f"*{board.host.board.sequence}.snapshot")
    with monkeypatch.context() as patch:
        patch.setattr(column_file, "FORMAT_VERSION", 2)
        board.snapshot()
    assert any(NEWER in each.what for each in verify(board.directory).findings)
    again = ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    ((name, why),) = again.host.report.snapshots_skipped
    assert name == path.name
    assert NEWER in why
    assert again.host.board.state_digest() == expected
    again.close()


def test_a_newer_archive_is_made_again(board, monkeypatch):
    """An archive of a later format is made again from the log, and says the same."""
    expected = board.top("cup")
    again = ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    window, digest = again.host.archives.read(again.host.board.closed["cup"], 1)
    with monkeypatch.context() as patch:
        patch.setattr(column_file, "FORMAT_VERSION", 2)
        again.host.archives.seal(again.host.board.closed["cup"], window)
    again.close()
    assert any(NEWER in each.what for each in verify(board.directory).findings)
    again = ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS)
    again.rebuild()
    assert again.host.archives.digest("cup", 1) == digest
    assert again.top("cup") == expected
    again.close()


def test_the_first_listings_had_no_checksum(board):
    """A listing as the first versions wrote it is read, and gets a checksum with the next owner."""
    path = board.directory / "board.msgpack"
    content = path.read_bytes()
    path.write_bytes(content[: -value_file.CHECKSUM_BYTES])
    assert listing.read_listing(board.directory).board == "b"
    assert verify(board.directory).findings == ()
    ClockedBoard.existing(board.directory.parent, board.now_us, OPTIONS).close()
    assert path.read_bytes() == content
