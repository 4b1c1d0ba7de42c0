"""Logs that were written again: the same sequences, other texts, no trace of the former ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.head import head_findings, read_head
from persistence.records import Record, encode, previous_hash
from persistence.rewriting import write_again
from persistence.segments import DATA, SEALED, read_seal
from tests.persistence.log_samples import SMALL, events, seeded
from tests.persistence.rewritten_logs import (
    GONE,
    NOBODY,
    contents,
    firsts,
    go_on,
    require_reads,
    rewrite,
    rewritten,
    without,
    write,
)
from tests.persistence.test_log_damage import PAGE_BYTES, flipped, outcomes


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LmdbEventLog]:
    """Write a log of four sealed segments and an empty one."""
    write(tmp_path / "log")
    opened = LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
    opened.seal_live()
    yield opened
    opened.close()


def segments_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name != "head")


def holding(directory: Path, text: bytes) -> list[str]:
    return [path for path, content in contents(directory).items() if text in content]


# What is there then


def test_a_log_written_again_is_read_as_it_is_to_be(tmp_path):
    """Every record is where it was, with its other texts; the former ones are nowhere any more."""
    records = write(tmp_path / "log")
    for text in (b"key/14", b"m35.", b"m60."):
        assert holding(tmp_path / "log", text)
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=2)
    log.seal_live()
    assert log.event(14).member.startswith(b"m14.")  # so that it is known by heart
    former = rewrite(log, GONE)
    expected = [without(record, GONE) for record in records]
    require_reads(log, expected)
    assert [log.event(sequence).member for sequence in GONE] == [NOBODY] * 3
    assert [log.event(sequence).key_hashed for sequence in (14, 15)] == [True, False]
    log.close()
    for text in (b"key/14key", b"m14.", b"m35.", b"m60."):
        assert holding(tmp_path / "log", text) == []
        assert holding(former, text)
    for epoch in (None, 3):
        with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch)) as again:
            require_reads(again, expected)


def test_what_does_not_change_is_linked(tmp_path, log):
    """Segments without a changed record are the former files; the others keep their places."""
    seals = [seal for _, seal in log.segments]
    former = rewrite(log, GONE)
    for path in segments_of(log.directory):
        same = path.name not in ("00000001", "00000002")
        assert (path / DATA).samefile(former / path.name / DATA) == same
    assert (log.directory / "head").samefile(former / "head")
    for (path, seal), was in zip(log.segments, seals, strict=True):
        if seal is not None:
            assert seal == read_seal(path)
            assert (seal.first_sequence, seal.records, seal.end) == (
                was.first_sequence, was.records, was.end,
            )  # fmt: skip
            assert (seal.followed_hash != b"") == (path.name in ("00000001", "00000002"))
    assert log.segments[-1][1] is None


def test_each_record_follows_the_one_before(tmp_path, log):
    """Inside a segment by its own hash; behind a rewritten one by the hash that it had before."""
    before = {sequence: log.hash_at(sequence) for sequence in (12, 13 + 9, 42, 52, 82, 92, 122)}
    rewrite(log, GONE)
    chain = bytes(16)
    for index, (_, seal) in enumerate(log.segments):
        for first_sequence, data in log.scan_segment(index):
            assert previous_hash(data) == chain
            assert encode(log.record_at(first_sequence), chain) == data
            chain = data[-16:]
        chain = seal.end[1] if seal else chain
    changed = {sequence for sequence, was in before.items() if log.hash_at(sequence) != was}
    assert changed == before.keys() - {12}, "each vouches for all before it"
    with pytest.raises(ValueError, match="inside a record"):
        log.hash_at(14)


def test_a_state_of_the_former_log_is_not_one_of_the_new_log(tmp_path, log):
    """Also at the border of segments, where the next record still follows the former hash.

    A snapshot names the hash of its log, and one that holds a name must not be taken any more.
    """
    before = log.hash_at(82), log.last_hash
    rewrite(log, (60, 130))
    assert log.hash_at(82) != before[0]
    assert log.last_hash == log.hash_at(log.last_sequence) != before[1]
    after = log.hash_at(82), log.last_hash
    log.append([events(log.last_sequence + 1, 5)])
    end = log.last_hash
    log.close()
    with closing(LmdbEventLog.open_readonly(log.directory)) as reader:
        assert (reader.hash_at(82), reader.hash_at(142), reader.last_hash) == (*after, end)


@pytest.mark.parametrize("batches", [14, 16])
def test_a_log_written_again_goes_on(tmp_path, batches):
    """It is appended to, sealed, closed and taken over like any other, and its head follows."""
    expected = rewritten(tmp_path / "log", 14, 135, batches=batches)
    for epoch in (3, 4):
        with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch)) as log:
            for _ in range(6):
                expected.append(events(log.last_sequence + 1, 9))
                log.append([expected[-1]])
            require_reads(log, expected)
            head = read_head(tmp_path / "log" / "head")
            assert (head.last_sequence, head.last_hash) == log.end
    assert head_findings(tmp_path / "log" / "head") == []
    with closing(LmdbEventLog.open_readonly(tmp_path / "log")) as reader:
        require_reads(reader, expected)


def test_a_log_is_written_again_and_again(tmp_path, log):
    """Each time others may go, from segments that were written again already and from new ones."""
    records = list(log.read())
    gone: list[int] = []
    for wanted in ([14], [15, 60], [], [60, 100, 14], [130]):
        gone += wanted
        log.seal_live()
        shutil.rmtree(rewrite(log, wanted))
        require_reads(log, [without(record, gone) for record in records])
        records.append(events(log.last_sequence + 1, 11))
        log.append(records[-1:])
    log.close()
    for epoch in (None, 3):
        with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch)) as again:
            require_reads(again, [without(record, gone) for record in records])


def test_what_is_written_while_a_log_is_built_is_in_it(tmp_path, log):
    """Records that come, and segments that fill up, between building and exchanging are kept."""
    records = list(log.read())
    built = tmp_path / "built"
    write_again(log, built, firsts(records, GONE), lambda record: without(record, GONE), go_on)
    for _ in range(7):
        records.append(events(log.last_sequence + 1, 12))
        log.append(records[-1:])
    segments = log.stats.segments
    log.put_in_place(built)
    assert log.stats.segments == segments == 6
    require_reads(log, [without(record, GONE) for record in records])


def test_records_may_become_longer(tmp_path, log):
    """A segment whose records all take more room than they did has that room."""
    records = list(log.read())
    gone = range(1, log.last_sequence + 1)
    rewrite(log, gone)
    require_reads(log, [without(record, gone) for record in records])


# The seal of what was written again


def test_a_lost_seal_is_made_again(tmp_path):
    """It says again what the next segment goes on from, since the segment itself remembers it."""
    expected = rewritten(tmp_path / "log", *GONE)
    seals = [tmp_path / "log" / f"0000000{number}" / SEALED for number in (1, 2, 3)]
    before = [path.read_bytes() for path in seals]
    for path in seals:
        path.unlink()
    with closing(LmdbEventLog.open_readonly(tmp_path / "log")) as reader:
        require_reads(reader, expected)
    assert not any(path.exists() for path in seals)
    with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch=3)) as log:
        require_reads(log, expected)
    assert [path.read_bytes() for path in seals] == before


@pytest.mark.parametrize("seal", ["sealed", "unsealed"])
def test_a_flipped_bit_of_what_follows_is_found(tmp_path, seal):
    """A damaged memory of the former hash, or of its key, is never taken for another hash."""
    expected = rewritten(tmp_path / "log", *GONE)
    path = tmp_path / "log" / "00000001" / DATA
    content = path.read_bytes()
    followed_hash = read_seal(path.parent).followed_hash
    assert content.count(followed_hash) == 1
    start = content.index(followed_hash) - len(b"\0\0")
    if seal == "unsealed":
        (path.parent / SEALED).unlink()
    for at in range(start, start + 2 + 16 + 8):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(DamagedError, match="00000001"):
            read_all(tmp_path / "log")
    path.write_bytes(content)
    assert read_all(tmp_path / "log") == expected


def read_all(directory: Path) -> list[Record]:
    with closing(LmdbEventLog.open_readonly(directory)) as log:
        return list(log.read())


@pytest.mark.parametrize("segment", ["00000001", "00000002"])
def test_a_flipped_bit_never_becomes_other_content(tmp_path, segment):
    """As in any other segment: a flip is harmless, or DamagedError, and nothing crashes."""
    rewritten(tmp_path / "log", *GONE)
    file = Path(segment) / DATA
    content = (tmp_path / "log" / file).read_bytes()
    rng = seeded(segment)
    spots = [rng.randrange(152 if page < 2 else 64) for page in range(2) for _ in range(8)]
    flips = [(PAGE_BYTES * (at % 2) + spot, 1 << rng.randrange(8)) for at, spot in enumerate(spots)]
    flips += [(rng.randrange(len(content)), 1 << rng.randrange(8)) for _ in range(80)]
    found = outcomes(tmp_path / "log", file, flipped(content, flips))
    assert set(found) == {"harmless", "damaged"}


# Sealing


def test_sealing_the_live_segment_of_a_log(tmp_path):
    """It is sealed where it stands, however short, and once; an empty one stays."""
    records = write(tmp_path / "log", batches=1)
    with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch=2)) as log:
        for _ in range(2):
            log.seal_live()
            assert [seal and seal.last_sequence for _, seal in log.segments] == [12, None]
        records.append(events(13, 5))
        log.append(records[-1:])
        log.seal_live()
        assert [seal and seal.last_sequence for _, seal in log.segments] == [12, 17, None]
        require_reads(log, records)
    with closing(LmdbEventLog(tmp_path / "log", SMALL, epoch=3)) as log:
        require_reads(log, records)
