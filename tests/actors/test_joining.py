"""Records that a replay applies as one: they must come to what they are one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import joining
from actors.board import Board
from actors.joining import JOINED_EVENTS_MAX, joined
from persistence.records import EventsRecord, Record, encode
from tests.actors.board_harness import DAY_US, NOW_US, MemoryBoard, change, event, in_memory, submit

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["events"] * 6 + ["definition"]),
        st.integers(0, 2),  # days that pass
        st.lists(
            st.tuples(
                st.sampled_from(["ada", "bob", "cyd"]),
                st.integers(-3, 3),
                st.sampled_from([None, "x", "y"]),
                st.integers(0, 30),  # hours before its receipt
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=20,
)


def played(steps: list[Any], **fields: Any) -> MemoryBoard:
    """Play on a board that forgets keys, in windows that open as time goes by."""
    host = in_memory(periods=["all_time", "daily"], key_retention_days=3, **fields)
    now_us, keys = NOW_US, 0
    for kind, days, events in steps:
        now_us += days * DAY_US + 1
        if kind == "definition":
            change(host, now_us, grace_seconds=keys % 100)
            continue
        batch = []
        for member, value, source, hours in events:
            keys += 1
            rest = {} if source is None else {"source": source}
            occurred_at = now_us - hours * 3_600_000_000
            batch.append(event(member, value, f"key-{keys}", occurred_at=occurred_at, **rest))
        submit(host, {"events": batch}, now_us)
    return host


def rows(records: list[Record]) -> list[Any]:
    """List all that records hold, events one by one."""
    found: list[Any] = []
    for record in records:
        if isinstance(record, EventsRecord):
            found += map(record.row, range(record.count))
        else:
            found.append(record)
    return found


def applied(records: list[Record]) -> Board:
    board = Board()
    for record in records:
        board.apply(record)
    return board


@given(steps=STEPS, aggregation=st.sampled_from(["best", "sum", "latest"]))
def test_joined_records_come_to_what_they_are_one_by_one(steps: list[Any], aggregation: str):
    """State, keys' days and windows are those of the same records applied one after the other."""
    host = played(steps, aggregation=aggregation)
    records = list(host.log.read())
    fewer = list(joined(records))
    assert rows(fewer) == rows(records)
    board = applied(fewer)
    assert board.state_digest() == host.board.state_digest() == applied(records).state_digest()
    assert board.keys.days == host.board.keys.days
    assert board.keys_floor_us == host.board.keys_floor_us
    for record in fewer:
        encode(record, bytes(16))  # its columns fit together, as those of any record


def test_single_events_of_a_day_become_one_record() -> None:
    """A quiet board's records are joined up to the stated size, and what is large stays alone."""
    day = [("events", 0, [("ada", turn % 4, "x", 0)]) for turn in range(JOINED_EVENTS_MAX + 5)]
    records = list(played(day).log.read())
    fewer = [record for record in joined(records) if isinstance(record, EventsRecord)]
    # The first event opens its day's window: what follows it may go with it.
    assert [record.count for record in fewer] == [JOINED_EVENTS_MAX, 5]
    assert list(joined(fewer[:1])) == fewer[:1]


def test_records_of_two_days_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are remembered by days: a run that went on past midnight would be seen."""
    steps = [("events", 1, [("ada", turn, None, 40)]) for turn in range(3)]
    host = played(steps)
    records = list(host.log.read())
    assert len(list(joined(records))) == len(records)
    planted = 0

    def goes_with(_first: EventsRecord, record: EventsRecord) -> bool:
        nonlocal planted
        planted += 1
        return not record.opened

    monkeypatch.setattr(joining, "_goes_with", goes_with)
    assert applied(list(joined(records))).keys.days != host.board.keys.days
    assert planted > 0
