"""Rebuilds from the log alone: what they come to, and that every difference is seen."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from actors import rebuilding
from actors.board import Board
from actors.rebuilding import Comparison, Rebuild, newest_snapshot
from actors.standings import listing_digest
from persistence.archive import read_archive, write_archive
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, Record, WindowClosedRecord
from persistence.snapshot import read_snapshot, write_snapshot
from tests.actors.board_process import BoardProcess
from tests.actors.clocked_board import ClockedBoard

START = "2024-10-04T12:00:00Z"
DAY_US = 86_400 * 1_000_000


@pytest.fixture
def board(tmp_path: Path) -> ClockedBoard:
    """Make a board of several segments, two sealed windows, an open one, and a snapshot within."""
    made = ClockedBoard(tmp_path, START, aggregation="sum", periods=["all_time", "daily"])
    for day in range(3):
        if day:
            made.at(made.now_us + DAY_US)
        made.batch(*(made.event(n, None, f"m{n % 7}") for n in range(30)))
    made.seal()
    made.snapshot()
    made.batch(*(made.event(n, None, f"late{n}") for n in range(15)))
    made.close()
    return made


def rebuilt(directory: Path) -> tuple[Rebuild, list[Comparison]]:
    """Rebuild to the log's end; returns everything that was compared on disk."""
    rebuild = Rebuild(directory)
    snapshot = newest_snapshot(directory)
    assert snapshot is not None
    stop = int(snapshot.stem)
    found: list[Comparison] = []
    for sequence in rebuild.follow(stops=[stop]):
        if sequence == stop:
            found += rebuild.compare_snapshot(snapshot)
    return rebuild, [*found, *rebuild.compare_archives(), *rebuild.differences]


def different(comparisons: list[Comparison]) -> set[tuple[str, str]]:
    assert comparisons
    return {(c.of, c.against) for c in comparisons if not c.is_equal}


def test_a_rebuild_comes_to_the_same(board):
    """The log alone gives the live state and every published digest; all that is there is equal."""
    rebuild, comparisons = rebuilt(board.directory)
    assert different(comparisons) == set()
    assert {(c.of, c.against) for c in comparisons} == {
        ("all_time", "snapshot"),
        ("daily:2024-10-06", "snapshot"),
        ("members", "snapshot"),
        ("keys", "snapshot"),
        ("state", "snapshot"),
        ("daily:2024-10-04", "archive"),
        ("daily:2024-10-05", "archive"),
    }
    assert rebuild.events == 105
    again = ClockedBoard.existing(board.directory.parent, board.now_us)
    assert rebuild.board.state_digest() == again.host.board.state_digest()
    for item in again.periods()["periods"]:
        shown = item["digest"] or again.digest(item["id"])
        assert rebuild.digest(item["id"]) == shown
    assert rebuild.digest("daily:2024-11-30") == "0" * 32
    again.close()


def test_a_rebuild_needs_the_log_alone(board):
    """Without snapshots, archives, listing and owner's mark a rebuild is the same."""
    whole, _ = rebuilt(board.directory)
    for path in board.directory.rglob("*"):
        if path.is_file() and "log" not in path.relative_to(board.directory).parts:
            path.unlink()
    rebuild = Rebuild(board.directory)
    assert list(rebuild.follow()) == [whole.board.sequence]
    assert rebuild.board.state_digest() == whole.board.state_digest()
    assert rebuild.digests == whole.digests
    assert list(rebuild.compare_archives()) == []
    assert newest_snapshot(board.directory) is None


def test_a_rebuild_pauses_where_it_is_told(board):
    """It stops at each sequence that a record ends with, passes others by, and ends at the end."""
    log = LmdbEventLog.open_readonly(board.directory / "log")
    ends = [record.last_sequence for record in log.read()]
    log.close()
    rebuild = Rebuild(board.directory)
    inside = ends[2] - 1
    assert inside not in ends
    assert list(rebuild.follow(stops=[0, ends[1], inside, ends[4], ends[-1], 10_000])) == [
        0, ends[1], ends[4], ends[-1],
    ]  # fmt: skip
    assert list(rebuild.follow(stops=[ends[-1]])) == [ends[-1]]


def test_a_rebuild_follows_a_growing_log(tmp_path):
    """Beside a writer it goes on from where it was, over segment changes and closings."""
    owner = BoardProcess(tmp_path, START, aggregation="sum", periods=["all_time", "daily"])
    try:
        rebuild = Rebuild(owner.directory)
        for _ in range(4):
            owner.add(50)
            owner.do(f"board.at(board.now_us + {DAY_US})")
            (reached,) = rebuild.follow()
            assert reached == owner.do("board.host.board.sequence")
            assert rebuild.board.state_digest() == owner.do("board.host.board.state_digest()")
        assert len(rebuild.digests) == 4
        assert rebuild.differences == []
        owner.end()
    finally:
        owner.kill()


class Miscounting(Board):
    """A board that counts the fifth event of its first batch for one more than its value."""

    def apply(self, record: Record) -> dict[str, bytes]:
        if isinstance(record, EventsRecord) and record.first_sequence == 3:
            values = array("q", record.values)
            values[4] += 1
            record = replace(record, values=values)
        return super().apply(record)


def test_a_planted_difference_of_the_rebuild_is_reported(board, monkeypatch):
    """One score that is off by one shows in its closing record, its archive, and the snapshot."""
    monkeypatch.setattr(rebuilding, "Board", Miscounting)
    rebuild, comparisons = rebuilt(board.directory)
    assert different(comparisons) == {
        ("all_time", "snapshot"),
        ("state", "snapshot"),
        ("daily:2024-10-04", "archive"),
        ("daily:2024-10-04", "closing record"),
    }
    assert rebuild.board.sequence == board.host.board.sequence


def tampered(directory: Path, *, consistent: bool) -> None:
    """Write the newest snapshot anew, of another state and with a checksum that is right."""
    path = newest_snapshot(directory)
    assert path is not None
    snapshot = read_snapshot(path)
    header, columns = snapshot.header, list(snapshot.columns.items())
    if consistent:
        other = Miscounting()
        log = LmdbEventLog.open_readonly(directory / "log")
        for record in log.read():
            if record.first_sequence <= snapshot.sequence:
                if isinstance(record, WindowClosedRecord):
                    standings = other.windows[record.window].standings
                    record = replace(record, digest=standings.digest)  # noqa: PLW2901
                other.apply(record)
        log.close()
        dumped, columns = other.dump()
        header |= dumped
    else:
        scores = next(i for i, (name, _) in enumerate(columns) if name.startswith("window "))
        name, column = columns[scores]
        content = bytearray(column)
        content[-1] ^= 1
        columns[scores] = (name, content)
    write_snapshot(path.parent, snapshot.sequence, header, columns)


@pytest.mark.parametrize("consistent", [True, False])
def test_a_tampered_snapshot_is_reported(board, consistent):
    """A snapshot whose checksum is right but whose state is not the log's is different."""
    tampered(board.directory, consistent=consistent)
    _, comparisons = rebuilt(board.directory)
    found = different(comparisons)
    assert ("state", "snapshot") in found
    assert ("all_time", "snapshot") in found
    assert all(against == "snapshot" for _, against in found)
    if consistent:
        assert ("members", "snapshot") not in found


@pytest.mark.parametrize("renamed", [True, False])
def test_a_tampered_archive_is_reported(board, renamed):
    """An archive whose checksum is right but whose listing is not what was closed is different."""
    directory = board.directory / "archives"
    header, columns = read_archive(directory, "daily:2024-10-05", 1)
    changed = {name: bytes(column) for name, column in columns.items()}
    cells = array("q", changed["rows"])
    cells[0] += 1
    changed["rows"] = cells.tobytes()
    if renamed:
        digest = listing_digest(changed, board.host.board.definition.decimals).hex()
        header = msgspec.structs.replace(header, digest=digest)
    write_archive(directory, header, list(changed.items()))
    _, comparisons = rebuilt(board.directory)
    assert different(comparisons) == {("daily:2024-10-05", "archive")}


def test_a_damaged_archive_is_reported(board):
    """An archive that cannot be read is different, with the reason in place of its digest."""
    path = board.directory / "archives" / "daily:2024-10-05.1.archive"
    path.write_bytes(path.read_bytes()[:-1])
    _, comparisons = rebuilt(board.directory)
    (found,) = [c for c in comparisons if not c.is_equal]
    assert (found.of, found.against) == ("daily:2024-10-05", "archive")
    assert "checksum" in found.other


def test_a_pruned_snapshot_is_not_compared(board):
    """A snapshot that its owner prunes during the replay is no difference."""
    path = newest_snapshot(board.directory)
    assert path is not None
    rebuild = Rebuild(board.directory)
    for _ in rebuild.follow(stops=[int(path.stem)]):
        path.unlink(missing_ok=True)
        assert rebuild.compare_snapshot(path) == []


def test_a_damaged_log_ends_the_rebuild(board):
    """A record that is not what was written is refused by name, before anything is compared."""
    path = board.directory / "log" / "00000001" / "data.mdb"
    content = path.read_bytes()
    assert b"key-7key-8" in content
    path.write_bytes(content.replace(b"key-7key-8", b"key-7key-9"))
    with pytest.raises(DamagedError, match=r"sequence 3\b"):
        list(Rebuild(board.directory).follow())


def test_a_record_that_cannot_be_applied_is_named(board, monkeypatch):
    """What a board refuses ends the rebuild with the record's sequence, not with a traceback."""

    class Refusing(Board):
        def apply(self, record: Record) -> dict[str, bytes]:
            if record.first_sequence > 3:
                raise ValueError("no")
            return super().apply(record)

    monkeypatch.setattr(rebuilding, "Board", Refusing)
    with pytest.raises(DamagedError, match="the record at sequence 33 cannot be applied"):
        list(Rebuild(board.directory).follow())


def test_a_log_of_another_board_is_refused(board, tmp_path):
    """A directory that holds the log of a board of another name is not rebuilt as that board."""
    board.directory.rename(tmp_path / "c")
    with pytest.raises(DamagedError, match="board b"):
        list(Rebuild(tmp_path / "c").follow())
