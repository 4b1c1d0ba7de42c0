"""What the tests of persistence share: records by the handful, and a small state machine."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from persistence.event_log import LogOptions
from persistence.records import (
    DefinitionRecord,
    EventsRecord,
    OpenedWindow,
    Record,
    RulingRecord,
    WindowClosedRecord,
    WindowOpenedRecord,
)
from persistence.rulings import AnyRuling, EventVoided, Row, RowChange

SMALL = LogOptions(segment_events_max=40, segment_bytes_max=1 << 20, reserved_free_bytes=0)


def seeded(seed: int | str) -> random.Random:
    """Return a source of the same choices on every run."""
    return random.Random(seed)  # noqa: S311  (not for secrets)


def definition(first_sequence: int = 1) -> DefinitionRecord:
    return DefinitionRecord(
        first_sequence=first_sequence,
        recorded_at_us=1_000,
        board="b",
        incarnation="i",
        hash_key=bytes(range(16)),
        created_at_us=1_000,
        definition={"aggregation": "best", "score": [{"name": "score", "decimals": 2}]},
    )


def window(first_sequence: int) -> WindowOpenedRecord:
    return WindowOpenedRecord(
        first_sequence=first_sequence,
        recorded_at_us=2_000,
        window="all_time",
        start_us=None,
        end_us=None,
    )


def events(first_sequence: int, count: int, *, text_bytes: int = 12) -> EventsRecord:
    """Make a record whose every field differs from event to event."""
    sequences = range(first_sequence, first_sequence + count)
    members = [f"m{sequence}".ljust(text_bytes, ".").encode() for sequence in sequences]
    keys = [f"key/{sequence}".encode() for sequence in sequences]
    return EventsRecord(
        first_sequence=first_sequence,
        recorded_at_us=3_000 + first_sequence,
        keys_per_value=2,
        previous_sequences=array("q", [max(sequence - 7, 0) for sequence in sequences]),
        occurred_at_us=array("q", [10 * sequence for sequence in sequences]),
        received_at_us=array("q", [10 * sequence + 1 for sequence in sequences]),
        values=array("q", [part for s in sequences for part in (s, -s)]),
        member_ends=ends(members),
        key_ends=ends(keys),
        source_indexes=array("H", [sequence % 3 for sequence in sequences]),
        flags=bytes(sequence % 2 for sequence in sequences),
        members=b"".join(members),
        keys=b"".join(keys),
        sources=("match-server-1", "match-server-2"),
    )


def opened(first_sequence: int, count: int) -> EventsRecord:
    """Make a record of events that opens two windows."""
    windows = (
        OpenedWindow("daily:2026-11-30", 1_000, 2_000),
        OpenedWindow("weekly:2026-11-30", None, 9_000),
    )
    return replace(events(first_sequence, count), opened=windows)


def closing(first_sequence: int) -> WindowClosedRecord:
    return WindowClosedRecord(
        first_sequence=first_sequence,
        recorded_at_us=4_000,
        window="daily:2026-11-30",
        members=7,
        digest=bytes(range(100, 116)),
    )


CHANGES = (
    RowChange("all_time", Row((7, -7), 10, 3), Row((0, 5), 9, 1)),
    RowChange("daily:2026-11-30", Row((2, -2), 10, 1), None),
)


def ruling(first_sequence: int, decided: AnyRuling | None = None) -> RulingRecord:
    """Make the record of a ruling; an event is voided where none is named."""
    return RulingRecord(
        first_sequence=first_sequence,
        recorded_at_us=5_000,
        actor="moderator",
        reason="impossible",
        key="key-1",
        ruling=decided or EventVoided(b"m3", 3, CHANGES),
    )


def ends(texts: Sequence[bytes]) -> array[int]:
    total, found = 0, array("I")
    for text in texts:
        total += len(text)
        found.append(total)
    return found


def history(batches: int, batch_events: int = 10) -> list[Record]:
    """Make the first records of a board: its definition, a window, and batches of events."""
    records: list[Record] = [definition(), window(2)]
    for _ in range(batches):
        records.append(events(records[-1].last_sequence + 1, batch_events))
    return records


class Tally:
    """A state machine that depends on every event and on their order."""

    def __init__(self, sequence: int = 0, state: bytes = b"") -> None:
        self.sequence = sequence
        self.state = state

    def apply(self, record: Record) -> None:
        if record.first_sequence != self.sequence + 1:
            raise AssertionError("records are applied in order")
        self.sequence = record.last_sequence
        self.state = hashlib.sha256(self.state + repr(record.recorded_at_us).encode()).digest()

    def audit(self, record: Record, log: Any) -> list[str]:
        return ["forbidden"] if record.recorded_at_us == 666 else []

    def state_digest(self) -> str:
        return f"{self.sequence}:{self.state.hex()}"

    def dump(self) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        return {"kind": "tally"}, [("state", self.state), ("sequence", b"%d" % self.sequence)]

    @classmethod
    def load(cls, header: dict[str, Any], columns: dict[str, memoryview]) -> Tally:
        if header["kind"] != "tally":
            raise ValueError("not a tally")
        return cls(int(bytes(columns["sequence"])), bytes(columns["state"]))
