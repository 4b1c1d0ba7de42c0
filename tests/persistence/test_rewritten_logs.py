"""Logs that were written again are verified, copied and repaired like any other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persistence import backup
from persistence.backup import check_log, copy_log
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.ownership import leave_epoch
from persistence.records import Record
from persistence.repair import survey_log
from persistence.segments import DATA, SEALED, read_seal
from tests.persistence.log_samples import SMALL, Tally, events
from tests.persistence.processes import start
from tests.persistence.rewritten_logs import GONE, require_reads, rewritten, without, write
from tests.persistence.test_repair import break_pages, dropped, kept, lost, repaired, repr_of
from tests.persistence.test_verify_board import (
    LATER_EPOCH,
    change,
    files_and_records,
    save,
    verified,
)

# Writes a log again, and goes on with that, in a process of its own: LMDB lets none open a file
# twice.
REWRITER = """
    import sys
    from pathlib import Path
    from persistence.event_log import LmdbEventLog
    from tests.persistence.log_samples import SMALL
    from tests.persistence.rewritten_logs import GONE, rewrite

    log = LmdbEventLog(Path(sys.argv[1]), SMALL, epoch=3)
    rewrite(log, GONE)
    log.close()
"""


@pytest.fixture
def board(tmp_path: Path) -> tuple[Path, list[Record]]:
    """Write a board whose first two segments of five were written again; gives its records."""
    directory = tmp_path / "board"
    directory.mkdir()
    records = rewritten(directory / "log", *GONE)
    leave_epoch(directory, LATER_EPOCH)
    return directory, records


def taken(records: list[Record], sequence: int) -> Tally:
    """Give the state after a sequence."""
    tally = Tally()
    for record in records:
        if record.last_sequence <= sequence:
            tally.apply(record)
    return tally


def texts(records: list[Record]) -> list[str]:
    return [repr_of(record) for record in records]


# Verifying


def test_a_board_whose_log_was_written_again_is_sound(board):
    """All of it is checked, and so are snapshots at the borders of what was written again."""
    directory, records = board
    with closing(LmdbEventLog.open_readonly(directory / "log")) as log:
        for sequence in (42, 82, 142):
            save(directory, taken(records, sequence), log.hash_at(sequence))
    report = verified(directory)
    assert report.is_sound
    assert (report.records, report.segments, report.snapshots) == (16, 5, 3)
    assert report.state_digest == taken(records, 142).state_digest()


def test_a_snapshot_of_the_log_before_it_was_written_again_is_told(tmp_path):
    """Also one of the very end of a segment: it may hold what the log no longer does."""
    directory = tmp_path / "board"
    records = write(directory / "log")
    with closing(LmdbEventLog.open_readonly(directory / "log")) as log:
        for sequence in (12, 42, 82):
            save(directory, taken(records, sequence), log.hash_at(sequence))
    leave_epoch(directory, LATER_EPOCH)
    assert verified(directory).is_sound
    rewrite_elsewhere(directory / "log")
    found = {finding.file: finding.what for finding in verified(directory).findings}
    assert found == dict.fromkeys(
        (f"snapshots/{sequence:020d}.snapshot" for sequence in (82, 42)),
        "is of another history than the log",
    )


def rewrite_elsewhere(log: Path) -> None:
    """Let another process write a log again without the events of GONE."""
    child = start(REWRITER, log)
    child.communicate()
    assert child.returncode == 0


@pytest.mark.parametrize("seal", ["sealed", "unsealed"])
def test_damage_in_a_segment_written_again_is_found(board, seal):
    """A changed byte is found with its record, with the segment's seal or without it."""
    directory, _ = board
    change(directory / "log/00000001" / DATA, b"key/16key", b"key/16kez")
    change(directory / "log/00000003" / DATA, b"key/93key", b"key/93kez")
    if seal == "unsealed":
        (directory / "log/00000001" / SEALED).unlink()
    report = verified(directory)
    found = [(f"log/00000001/{DATA}", 13), (f"log/00000003/{DATA}", 93)]
    assert files_and_records(report) == found
    assert report.records == 16


def test_a_lost_seal_is_no_finding(board):
    """What was written again is known for it without its seals, which its owner makes again."""
    directory, records = board
    for number in (1, 2):
        (directory / f"log/0000000{number}" / SEALED).unlink()
    assert verified(directory).is_sound
    with closing(LmdbEventLog(directory / "log", SMALL, epoch=3)) as log:
        require_reads(log, records)
    assert verified(directory).is_sound


def test_a_lost_memory_of_what_follows_is_found(board):
    """A segment that does not tell any more what the next one follows is damaged, sealed or not."""
    directory, _ = board
    path = directory / "log/00000001"
    followed_hash = read_seal(path).followed_hash
    change(path / DATA, followed_hash, followed_hash[::-1])
    report = verified(directory)
    assert files_and_records(report) == [(f"log/00000001/{DATA}", None)]
    assert report.state_digest is not None
    (path / SEALED).unlink()
    assert "log" in {finding.file for finding in verified(directory).findings}


# Copying


def ignore(_: int) -> None:
    """Show nothing."""


def test_a_log_written_again_is_copied(board, tmp_path):
    """The copy has its records, hashes and seals, and goes on like any log."""
    directory, records = board
    end = copy_log(directory / "log", tmp_path / "copy", 9, ignore)
    assert list(check_log(tmp_path / "copy", end)) == records
    with closing(LmdbEventLog(tmp_path / "copy", SMALL, epoch=10)) as copy:
        with closing(LmdbEventLog.open_readonly(directory / "log")) as log:
            assert [seal for _, seal in copy.segments] == [seal for _, seal in log.segments]
            assert (copy.last_sequence, copy.last_hash) == (log.last_sequence, log.last_hash) == end
        records.append(events(copy.last_sequence + 1, 7))
        copy.append(records[-1:])
        require_reads(copy, records)


@pytest.mark.parametrize("segment", [1, 2, 3, 4])
def test_a_log_exchanged_while_it_is_copied_is_noticed(tmp_path, monkeypatch, segment):
    """The copy is what was there before, or is refused: it is never half the one, half the other.

    segment: before the copying of which the log is written again.
    """
    records = write(tmp_path / "log")
    copies = 0

    def exchanging(real: Any) -> Any:
        def copy(*arguments: Any) -> None:
            nonlocal copies
            copies += 1
            if copies == segment:
                rewrite_elsewhere(tmp_path / "log")
            real(*arguments)

        return copy

    for name in ("_copy_sealed", "_copy_records"):
        monkeypatch.setattr(backup, name, exchanging(getattr(backup, name)))
    end = copy_log(tmp_path / "log", tmp_path / "copy", 9, ignore)
    assert copies == 4
    if segment > 2:  # what had been written again was copied before
        assert list(check_log(tmp_path / "copy", end)) == records
    else:
        with pytest.raises(DamagedError, match=f"0000000{segment}"):
            list(check_log(tmp_path / "copy", end))
    with closing(LmdbEventLog.open_readonly(tmp_path / "log")) as log:
        require_reads(log, [without(record, GONE) for record in records])


@pytest.mark.parametrize("read_before", [0, 1, 5, 6, 7, 12, 15])
def test_a_log_exchanged_while_it_is_read_is_noticed(tmp_path, read_before):
    """A reader of another process goes on with what was there, or is told: it sees no mixture."""
    records = write(tmp_path / "log")
    seen = []
    with closing(LmdbEventLog.open_readonly(tmp_path / "log")) as log:
        reading = log.read()
        seen += [next(reading) for _ in range(read_before)]
        rewrite_elsewhere(tmp_path / "log")
        try:
            seen += list(reading)
        except DamagedError:
            assert seen == records[: len(seen)]
            assert len(seen) < 10, "what was not written again can be read in any case"
        else:
            assert seen == records


# Repairing


def test_a_sound_log_is_kept_whole(board):
    """Nothing of a log that was written again is dropped, and it is repaired to the same."""
    directory, records = board
    survey = survey_log(directory / "log")
    assert kept(survey) == texts(records)
    assert (survey.end[0], survey.known) == (142, 142)
    assert dropped(survey) == []
    with closing(repaired(directory / "log", [lost(143, 7)])) as written:
        assert list(written.read()) == [*records, lost(143, 7)]


@pytest.mark.parametrize("seal", ["sealed", "unsealed"])
def test_the_row_ends_before_a_damaged_record(board, seal):
    """Of a damaged segment that was written again what lies before the damage is kept."""
    directory, records = board
    change(directory / "log/00000002" / DATA, b"key/71", b"key/61")
    if seal == "unsealed":
        (directory / "log/00000002" / SEALED).unlink()
    survey = survey_log(directory / "log")
    assert kept(survey) == texts(records[:8])
    assert dropped(survey) == [73, 83, 93, 103, 113, 123, 133]
    with closing(repaired(directory / "log", [lost(63, 80)])) as written:
        assert list(written.read()) == [*records[:8], lost(63, 80)]
        written.append([events(143, 3)])


def test_lost_seals_cost_nothing(board):
    """What the next segment follows is known from the segment itself."""
    directory, records = board
    for number in (1, 2):
        (directory / f"log/0000000{number}" / SEALED).unlink()
    assert kept(survey_log(directory / "log")) == texts(records)
    with closing(repaired(directory / "log", [])) as written:
        assert list(written.read()) == records


def test_broken_pages_cost_nothing_where_there_is_a_seal(board):
    """A segment that is written once more by a repair remembers what the next one follows."""
    directory, records = board
    for number in (1, 2):
        break_pages(directory / f"log/0000000{number}" / DATA)
    survey = survey_log(directory / "log")
    assert kept(survey) == texts(records)
    assert dropped(survey) == []
    with closing(repaired(directory / "log", [])) as written:
        assert list(written.read()) == records
    for number in (1, 2):
        (directory / f"log/0000000{number}" / SEALED).unlink()
    with closing(LmdbEventLog(directory / "log", SMALL, epoch=7)) as reopened:
        require_reads(reopened, records)


def test_broken_pages_without_a_seal_are_told_from_what_was_committed(board):
    """Where nothing tells what the next segment follows, the row ends there, and all is legible."""
    directory, records = board
    break_pages(directory / "log/00000002" / DATA)
    (directory / "log/00000002" / SEALED).unlink()
    survey = survey_log(directory / "log")
    assert kept(survey) == texts(records[:10])
    assert dropped(survey) == [83, 93, 103, 113, 123, 133]
    assert survey.known == 142
