"""Runs of small records of events as one, for a replay, which applies them and writes nothing.

A record costs a replay as much as hundreds of events do, and a quiet board's log has a record for
each event. Owns which records may go together: applied as one they must leave a board exactly as
applied one after the other, so that what a board is stays a function of its records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from actors.board import DAY_US
from persistence.records import EventsRecord, Record

JOINED_EVENTS_MAX = 1_000  # from here on a record costs little beside its events


def joined(records: Iterable[Record]) -> Iterator[Record]:
    """Pass on the records of a log, those that go together as one."""
    run: list[EventsRecord] = []
    events = 0
    for record in records:
        if run and not (
            isinstance(record, EventsRecord)
            and events + record.count <= JOINED_EVENTS_MAX
            and _goes_with(run[0], record)
        ):
            yield _join(run)
            run, events = [], 0
        if isinstance(record, EventsRecord):
            run.append(record)
            events += record.count
        else:
            yield record
    if run:
        yield _join(run)


def _goes_with(first: EventsRecord, record: EventsRecord) -> bool:
    """Tell whether a record, which follows those since `first`, may be counted with them.

    A window opens with the first event of its record. Keys are remembered, and forgotten, by days.
    """
    return (
        not record.opened
        and record.keys_per_value == first.keys_per_value
        and record.recorded_at_us // DAY_US == first.recorded_at_us // DAY_US
    )


def _join(run: Sequence[EventsRecord]) -> EventsRecord:
    if len(run) == 1:
        return run[0]
    first = run[0]
    source_indexes, sources = _joined_sources(run)
    return EventsRecord(
        first_sequence=first.first_sequence,
        recorded_at_us=first.recorded_at_us,
        keys_per_value=first.keys_per_value,
        previous_sequences=_longs(record.previous_sequences for record in run),
        occurred_at_us=_longs(record.occurred_at_us for record in run),
        received_at_us=_longs(record.received_at_us for record in run),
        values=_longs(record.values for record in run),
        member_ends=_joined_ends(record.member_ends for record in run),
        key_ends=_joined_ends(record.key_ends for record in run),
        source_indexes=source_indexes,
        flags=b"".join(record.flags for record in run),
        members=b"".join(record.members for record in run),
        keys=b"".join(record.keys for record in run),
        sources=sources,
        opened=first.opened,
    )


def _longs(columns: Iterable[Iterable[int]]) -> array[int]:
    longs = array("q")
    for column in columns:
        longs.extend(column)
    return longs


def _joined_ends(columns: Iterable[Sequence[int]]) -> array[int]:
    ends, base = array("I"), 0
    for column in columns:
        ends.extend(base + end for end in column)
        base = ends[-1]
    return ends


def _joined_sources(run: Iterable[EventsRecord]) -> tuple[array[int], tuple[str, ...]]:
    indexes, sources = array("H"), list[str]()
    for record in run:
        base = len(sources)
        indexes.extend(index and base + index for index in record.source_indexes)
        sources += record.sources
    return indexes, tuple(sources)
