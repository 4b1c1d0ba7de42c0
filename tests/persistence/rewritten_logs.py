"""What the tests of logs that were written again share: whose events go, and what is left then."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from persistence.event_columns import FLAG_KEY_HASHED
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, Record
from persistence.rewriting import write_again
from tests.persistence.log_samples import SMALL, ends, history

NOBODY = b"nobody, whose name is longer than it was"
KEY = b"?" * 24
GONE = (14, 35, 60)  # events in the first two of five segments


def go_on() -> None:
    """Stop nothing."""


def without(record: Record, gone: Collection[int]) -> Record:
    """Take the names and keys of some events, by sequence, out of a record of `history`."""
    if not isinstance(record, EventsRecord):
        return record
    rows = [record.row(index) for index in range(record.count)]
    if not any(row.sequence in gone for row in rows):
        return record
    members = [NOBODY if row.sequence in gone else row.member for row in rows]
    keys = [KEY if row.sequence in gone else row.idempotency_key for row in rows]
    flags = bytearray(record.flags)
    for index, row in enumerate(rows):
        flags[index] |= FLAG_KEY_HASHED * (row.sequence in gone)
    return replace(
        record,
        member_ends=ends(members),
        members=b"".join(members),
        key_ends=ends(keys),
        keys=b"".join(keys),
        flags=bytes(flags),
    )


def firsts(records: Collection[Record], gone: Collection[int]) -> list[int]:
    """List the first sequences of the records that hold some of the events."""
    return [
        record.first_sequence
        for record in records
        if any(record.first_sequence <= sequence <= record.last_sequence for sequence in gone)
    ]


def begin(directory: Path, batches: int) -> tuple[LmdbEventLog, list[Record]]:
    """Write a log of segments that end at 42, 82, …; gives it and its records."""
    log = LmdbEventLog(directory, SMALL, epoch=1, create=True)
    records = history(batches)
    for record in records:
        log.append([record])
    return log, records


def write(directory: Path, batches: int = 14) -> list[Record]:
    """Write a log and close it; returns its records."""
    log, records = begin(directory, batches)
    log.close()
    return records


def rewrite(log: LmdbEventLog, gone: Collection[int]) -> Path:
    """Write a log again without some events, and go on with that; returns where the former is."""
    built = log.directory.with_name("built")
    changed = firsts(list(log.read()), gone)
    write_again(log, built, changed, lambda record: without(record, gone), go_on)
    log.put_in_place(built)
    return built


def rewritten(directory: Path, *gone: int, batches: int = 14) -> list[Record]:
    """Write a log and write it again without some events; returns its records."""
    log, records = begin(directory, batches)
    log.seal_live()
    rewrite(log, gone)
    log.close()
    return [without(record, gone) for record in records]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }


def require_reads(log: LmdbEventLog, records: list[Record]) -> None:
    """Assert that a log holds these records, on every way that leads to one."""
    assert list(log.read()) == records
    for place, record in enumerate(records):
        assert list(log.read(record.last_sequence)) == records[place + 1 :]
        assert log.record_at(record.last_sequence) == record
        if hasattr(record, "row"):
            rows = [record.row(index) for index in range(record.count)]
            assert [log.event(row.sequence) for row in rows] == rows
