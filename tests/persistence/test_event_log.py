from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from persistence import chained_log
from persistence.errors import (
    CommitFailedError,
    DamagedError,
    StorageFullError,
)
from persistence.event_log import (
    EventLog,
    Fault,
    LmdbEventLog,
    LogOptions,
    MemoryEventLog,
)
from persistence.records import EMPTY_HASH, EventsRecord, encode, record_hash
from tests.persistence.log_samples import (
    SMALL,
    definition,
    ends,
    events,
    history,
    ruling,
    window,
)


@pytest.fixture(params=["lmdb", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    if request.param == "memory":
        yield MemoryEventLog(SMALL)
        return
    opened = LmdbEventLog(tmp_path / "log", SMALL, epoch=1, create=True)
    yield opened
    opened.close()


def test_a_new_log_is_empty(log):
    """A new log has no sequence, the empty hash, and nothing to read."""
    assert (log.first_sequence, log.last_sequence, log.last_hash) == (1, 0, EMPTY_HASH)
    assert list(log.read()) == []
    assert log.append([]) == 0
    assert log.hash_at(0) == EMPTY_HASH
    with pytest.raises(LookupError):
        log.event(1)


def test_what_is_appended_is_read(log):
    """Records come back equal and in order, from any record's end on."""
    records = history(12)
    bytes_written = sum(log.append([record]) for record in records[:5])
    bytes_written += log.append(records[5:])
    assert list(log.read()) == records
    assert log.last_sequence == records[-1].last_sequence
    assert bytes_written == sum(len(encode(record, EMPTY_HASH)) for record in records)
    for index, record in enumerate(records):
        assert list(log.read(record.last_sequence)) == records[index + 1 :]


def test_hashes_form_one_chain(log):
    """Each record's hash covers its predecessor's, and hash_at tells it for every record's end."""
    records = history(12)
    log.append(records)
    chain = EMPTY_HASH
    for record in records:
        assert log.hash_at(record.first_sequence - 1) == chain
        chain = record_hash(encode(record, chain))
    assert log.hash_at(log.last_sequence) == log.last_hash == chain


def test_reading_begins_where_a_record_ends(log):
    """Reading or hashing from inside a record, or beyond the end, is a ValueError."""
    log.append(history(2))
    for after_sequence in (3, 11, 13, 23):
        with pytest.raises(ValueError, match="sequence"):
            log.read(after_sequence)
    for sequence in (-1, 3, 23):
        with pytest.raises(ValueError, match="sequence"):
            log.hash_at(sequence)


def test_reading_ends_where_the_log_did(log):
    """A read yields what there was when it was called, whatever is appended meanwhile."""
    log.append(history(1))
    reading = log.read()
    log.append([events(13, 5)])
    assert [record.first_sequence for record in reading] == [1, 2, 3]


def test_single_events_are_found(log):
    """An event is found by its sequence; what is no event is a LookupError."""
    records = history(12)
    log.append(records)
    for record in records[2:]:
        for index in range(record.count):
            assert log.event(record.first_sequence + index) == record.row(index)
    assert log.record_at(1) == records[0]
    for sequence in (0, 1, 2, log.last_sequence + 1):
        with pytest.raises(LookupError):
            log.event(sequence)


@pytest.mark.parametrize("cut", [None, 1, 2, 100])
def test_a_members_events_are_found_newest_first(log, cut):
    """A member's chain gives each of its events, with a limit the newest, as `event` does."""
    chains: dict[bytes, list[int]] = {}
    log.append([definition(), window(2)])
    for first in range(3, 120, 9):
        log.append([chained(first, 9, chains)])
    log.append([ruling(log.last_sequence + 1)])
    for member, sequences in chains.items():
        expected = [log.event(sequence) for sequence in reversed(sequences)]
        assert list(log.events_of([member], sequences[-1], cut)) == expected[:cut]
    assert list(log.events_of([b"nobody"], 0, cut)) == []


def chained(first_sequence: int, count: int, chains: dict[bytes, list[int]]) -> EventsRecord:
    """Make a record of events of four members, each of which names its member's one before."""
    record = events(first_sequence, count)
    members = [
        b"m%d" % (sequence % 4) for sequence in range(first_sequence, first_sequence + count)
    ]
    previous = array("q")
    for sequence, member in enumerate(members, first_sequence):
        chain = chains.setdefault(member, [])
        previous.append(chain[-1] if chain else 0)
        chain.append(sequence)
    return replace(
        record, previous_sequences=previous, members=b"".join(members), member_ends=ends(members)
    )


@pytest.mark.parametrize("limit", [None, 9])
@pytest.mark.parametrize("head", [1, 2, 13, 999, 4])
def test_a_chain_that_leads_elsewhere_is_damage(log, head, limit):
    """A chain to no event, to another member's, or beyond the log is DamagedError."""
    log.append([definition(), window(2)])
    log.append([chained(3, 9, {}), ruling(12)])
    with pytest.raises(DamagedError):
        list(log.events_of([b"m3"], head, limit))


def test_records_must_continue_the_sequence(log):
    """A gap, a repetition or a wrong second record is an AssertionError and writes nothing."""
    log.append([definition()])
    for records in ([definition()], [window(3)], [window(2), events(4, 1)]):
        with pytest.raises(AssertionError):
            log.append(records)
    assert log.last_sequence == 1
    log.append([window(2)])
    assert len(list(log.read())) == 2


def test_an_append_too_large_for_a_segment_is_refused(log):
    """What no segment can hold is refused before it is written, and the log goes on."""
    log.append([definition()])
    with pytest.raises(StorageFullError):
        log.append([events(2, 9_000, text_bytes=120)])
    log.append([window(2)])
    assert log.last_sequence == 2


def test_a_small_cache_still_answers(tmp_path):
    """The cache of decoded records is bounded, and its size never changes an answer."""
    for log in (
        MemoryEventLog(LogOptions(record_cache_bytes_max=1)),
        LmdbEventLog(tmp_path / "log", LogOptions(record_cache_bytes_max=1), epoch=1, create=True),
    ):
        log.append(history(5))
        for sequence in (3, 52, 4, 33, 3):
            assert log.event(sequence).sequence == sequence
        assert len(log._cache) == 1
        log.close()


def test_a_retried_batch_decodes_its_record_once(log, monkeypatch):
    """Looking up each event of a batch in turn decodes the record once."""
    log.append(history(3))
    decoded = []
    decode_at = chained_log.decode_at
    monkeypatch.setattr(
        "persistence.chained_log.decode_at",
        lambda first, data, file: decoded.append(first) or decode_at(first, data, file),
    )
    for sequence in range(13, 23):
        log.event(sequence)
    assert decoded == [13]


def faulty(fault: Fault) -> MemoryEventLog:
    faults = iter([None, fault, None])
    log = MemoryEventLog(fault=lambda: next(faults))
    log.append([definition()])
    return log


def test_refused_room_changes_nothing():
    """After StorageFullError everything is as before, and a later append succeeds."""
    log = faulty(Fault.NO_ROOM)
    with pytest.raises(StorageFullError):
        log.append([window(2)])
    assert log.last_sequence == 1
    log.append([window(2)])
    assert log.reopened().last_sequence == 2


@pytest.mark.parametrize(
    ("fault", "survives"), [(Fault.LOST_COMMIT, 1), (Fault.LOST_ACKNOWLEDGEMENT, 2)]
)
def test_a_failed_commit_stops_the_log(fault, survives):
    """After a failed commit every append fails; a reopened log has the commit or has it not."""
    log = faulty(fault)
    for _ in range(2):
        with pytest.raises(CommitFailedError):
            log.append([window(2)])
    assert log.last_sequence == 1
    reopened = log.reopened()
    assert reopened.last_sequence == survives
    reopened.append([events(survives + 1, 3)])
    assert [record.last_sequence for record in reopened.read()][-1] == survives + 3


# Records that are intact, but not those that were written


def test_a_record_of_another_history_is_noticed():
    """An intact record that follows another predecessor ends the read at its place."""
    log = MemoryEventLog()
    log.append([definition(), window(2), events(3, 5), events(8, 5)])
    log._records[2] = encode(events(3, 5, text_bytes=13), log.hash_at(2))
    reading = log.read()
    assert [next(reading).first_sequence for _ in range(3)] == [1, 2, 3]
    with pytest.raises(DamagedError, match="sequence 8 does not follow"):
        next(reading)


def test_a_record_in_another_place_is_noticed():
    """A record found under another sequence than its own is DamagedError wherever it is read."""
    log = MemoryEventLog()
    log.append([definition(), window(2), events(3, 5)])
    log._records[1] = log._records[0]
    for read in (lambda: list(log.read()), lambda: log.record_at(2), lambda: log.hash_at(1)):
        with pytest.raises(DamagedError, match="at sequence 2: it is the record of sequence 1"):
            read()


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_a_missing_record_is_noticed(removed):
    """A record that is gone from the middle or the end of a log is DamagedError."""
    log = MemoryEventLog()
    log.append([definition(), window(2), events(3, 5), events(8, 5)])
    del log._records[removed], log._first_sequences[removed]
    with pytest.raises(DamagedError):
        list(log.read())
    with pytest.raises(DamagedError, match="no record holds"):
        log.record_at((1, 2, 3, 8)[removed])
