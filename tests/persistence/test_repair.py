from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog, MemoryEventLog
from persistence.head import read_head
from persistence.pages import page_findings
from persistence.records import (
    SEQUENCES_LOST_MAX,
    Record,
    SequencesLostRecord,
    encode,
)
from persistence.repair import (
    LogSurvey,
    RepairNote,
    build_log,
    lost_sequences,
    put_in_place,
    survey_log,
    was_set_aside,
)
from persistence.salvage import find_records
from tests.persistence.log_samples import SMALL, events, history

PAGE_BYTES = 4096
NOW_US = 5_000
DATA = "data.mdb"


def lost(first_sequence: int, count: int) -> SequencesLostRecord:
    return SequencesLostRecord(
        first_sequence=first_sequence, recorded_at_us=NOW_US, lost=count, why="a test"
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of three segments with 102 sequences in 12 records."""
    written = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    for record in history(10):
        written.append([record])
    assert written.stats.segments == 3
    written.close()
    return tmp_path / "log"


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def break_pages(path: Path) -> None:
    """Make a segment's tree unusable, and leave its records alone."""
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // PAGE_BYTES):
        content[page * PAGE_BYTES + 10] ^= 0xFF
    path.write_bytes(content)
    assert page_findings(path)


def kept(survey: LogSurvey) -> list[str]:
    return [repr_of(record) for record, _ in survey.kept()]


def dropped(survey: LogSurvey) -> list[int]:
    return [record.first_sequence for record in survey.dropped()]


def repr_of(record: Record) -> str:
    rows = [record.row(i) for i in range(record.count)] if hasattr(record, "row") else record
    return repr(rows)


def first_records(count: int) -> list[str]:
    return [repr_of(record) for record in history(10)[:count]]


def repaired(log: Path, tail: list[Record]) -> LmdbEventLog:
    """Repair a log and open the repaired one for writing."""
    aside = log.parent / "damaged-1"
    aside.mkdir()
    build_log(survey_log(log), aside / "log", RepairNote(aside.name, NOW_US, "a test"), 5, tail)
    assert not was_set_aside(aside / "log")
    was_there = log.exists()
    put_in_place(aside / "log", log)
    assert was_set_aside(aside / "log") is was_there
    return LmdbEventLog(log, SMALL, epoch=6)


def test_a_sound_log_is_kept_whole(log):
    """Of a sound log every record is kept, and none is dropped."""
    survey = survey_log(log)
    assert kept(survey) == first_records(12)
    assert (survey.end[0], survey.known, survey.epoch) == (102, 102, 1)
    assert dropped(survey) == []


def test_the_row_ends_before_a_damaged_record(log):
    """What is before a damaged record is kept; what is behind it, in later segments too, not."""
    change(log / "00000002" / DATA, b"key/71", b"key/61")
    survey = survey_log(log)
    assert kept(survey) == first_records(8)
    assert dropped(survey) == [73, 83, 93]
    assert survey.known == 102


def test_what_lies_on_broken_pages_is_found(log):
    """Records are found whatever became of the pages around them; nothing of them is lost."""
    for segment in ("00000001", "00000003"):
        break_pages(log / segment / DATA)
    (log / "00000002" / "sealed").write_bytes(b"?")
    survey = survey_log(log)
    assert kept(survey) == first_records(12)
    assert dropped(survey) == []


def test_a_hidden_commit_is_found(log):
    """A commit that a damaged meta page hides is kept: its record is there, the head knows it."""
    data = log / "00000003" / DATA
    content = bytearray(data.read_bytes())
    numbers = [int.from_bytes(content[at : at + 8], "little") for at in (144, PAGE_BYTES + 144)]
    newest = numbers.index(max(numbers))
    content[newest * PAGE_BYTES + 144 : newest * PAGE_BYTES + 152] = bytes(8)
    data.write_bytes(content)
    with pytest.raises(DamagedError):
        LmdbEventLog.open_readonly(log)
    assert kept(survey_log(log)) == first_records(12)


def test_what_was_never_committed_is_not_kept(log):
    """A record that a crash kept from its commit does not follow the log's end."""
    head = read_head(log / "head")
    assert head is not None
    with (log / "00000003" / DATA).open("ab") as file:
        file.write(encode(events(103, 4), head.last_hash))
    survey = survey_log(log)
    assert survey.end[0] == 102
    assert dropped(survey) == [103]


def test_sequences_are_known_by_whatever_names_them(log):
    """The highest sequence is known from the head, a damaged record's header, or a guess."""
    change(log / "00000003" / DATA, b"key/101", b"key/111")
    assert survey_log(log).known == 102
    (log / "head").unlink()
    survey = survey_log(log)
    assert (survey.end[0], survey.known) == (92, 102)
    (log / "00000003" / DATA).write_bytes(bytes(PAGE_BYTES))
    assert survey_log(log).known > 82 + 65_535


def test_a_repaired_log_goes_on(log):
    """A repaired log holds what was kept and what was lost, and goes on; the damaged one stays."""
    change(log / "00000002" / DATA, b"key/71", b"key/61")
    before = {path: path.read_bytes() for path in log.rglob(DATA)}
    with closing(repaired(log, [lost(63, 40)])) as written:
        assert (written.last_sequence, written.first_sequence) == (102, 1)
        written.append([events(103, 5)])
        assert [record.first_sequence for record in written.read()][-3:] == [53, 63, 103]
    aside = log.parent / "damaged-1" / "log"
    assert {path: (aside / path.relative_to(log)).read_bytes() for path in before} == before
    head = read_head(log / "head")
    assert head is not None
    assert head.last_sequence == 107
    assert (log / "00000001" / DATA).samefile(aside / "00000001" / DATA)


def test_rebuilt_segments_stand_between_whole_ones(log):
    """A segment in the middle whose pages are broken is written again, and the rest is linked."""
    break_pages(log / "00000002" / DATA)
    with closing(repaired(log, [])) as written:
        assert [repr_of(record) for record in written.read()] == first_records(12)
        assert written.stats.segments == 3


def test_a_missing_log_is_replaced(log):
    """Where the log's directory is missing, a new one takes its place."""
    shutil.rmtree(log)
    with closing(repaired(log, [lost(1, 9)])) as written:
        assert written.last_sequence == 9


@pytest.mark.parametrize("make", [MemoryEventLog, None], ids=["memory", "disk"])
def test_a_log_reads_across_lost_sequences(make, tmp_path):
    """A record of a billion lost sequences is one step for whoever reads, and holds no event."""
    written = make() if make else LmdbEventLog(tmp_path, SMALL, epoch=1, create=True)
    written.append([*history(1), lost(13, 10**9)])
    written.append([events(10**9 + 13, 3)])
    assert written.last_sequence == 10**9 + 15
    assert [record.count for record in written.read(12)] == [10**9, 3]
    assert written.record_at(500_000) == lost(13, 10**9)
    assert written.event(10**9 + 14).sequence == 10**9 + 14
    with pytest.raises(LookupError):
        written.event(500_000)
    with pytest.raises(ValueError, match="inside a record"):
        written.hash_at(500_000)
    assert written.hash_at(10**9 + 12)
    written.close()


def test_one_record_counts_in_32_bits():
    """More sequences than a record can take are lost by several, without a gap."""
    records = lost_sequences(7, SEQUENCES_LOST_MAX + 10, NOW_US, "w" * 10_000)
    assert [(each.first_sequence, each.last_sequence) for each in records] == [
        (7, SEQUENCES_LOST_MAX + 6),
        (SEQUENCES_LOST_MAX + 7, SEQUENCES_LOST_MAX + 10),
    ]
    assert len(records[0].why) == 500
    assert lost_sequences(7, 6, NOW_US, "nothing") == []
    MemoryEventLog().append([*history(0), *lost_sequences(3, 2**33, NOW_US, "much")])


def test_a_record_that_lies_across_what_is_searched_at_once_is_found(log, monkeypatch):
    """Where the blocks of a search end makes no difference."""
    path = log / "00000001" / DATA
    found = find_records(path)
    assert [record.first_sequence for record in found.records] == [1, 2, 3, 13, 23, 33]
    for block_bytes in (5, 4096, 4099):
        monkeypatch.setattr("persistence.salvage.BLOCK_BYTES", block_bytes)
        assert find_records(path) == found
