"""Single events that are read without the rest of their record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import DamagedError
from persistence.records import EMPTY_HASH, HEADER_BYTES, EventsRecord, encode, peek
from tests.persistence.log_samples import events
from tests.persistence.test_records import SAMPLES, event_batches, kind_of

BATCHES = [record for record in SAMPLES if isinstance(record, EventsRecord)]
OTHERS = [record for record in SAMPLES if not isinstance(record, EventsRecord)]


@given(event_batches())
def test_a_peek_is_the_event(record):
    """What is peeked at is what the decoded record holds in that place; no other place is."""
    data = encode(record, EMPTY_HASH)
    first = record.first_sequence
    assert [peek(data, first + index) for index in range(record.count)] == [
        record.row(index) for index in range(record.count)
    ]
    for sequence in (0, first - 1, first + record.count):
        with pytest.raises(DamagedError):
            peek(data, sequence)


@pytest.mark.parametrize("record", OTHERS, ids=kind_of)
def test_a_peek_at_no_event_is_none(record):
    """A record of any other kind has no event."""
    assert peek(encode(record, EMPTY_HASH), record.first_sequence) is None


@settings(max_examples=400)
@given(
    st.sampled_from(BATCHES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.none() | st.integers(0, 400),
    st.integers(-1, 4),
)
def test_a_peek_at_damage_answers_or_says_so(record, edits, end, index):
    """Whatever became of the bytes, there is an answer, or DamagedError and nothing else."""
    data = bytearray(encode(record, EMPTY_HASH))
    for place, byte in edits:
        data[place % len(data)] = byte
    try:
        event = peek(bytes(data[:end]), record.first_sequence + index)
    except DamagedError:
        return
    assert event is None or event.sequence == record.first_sequence + index


@given(st.binary(max_size=300), st.integers(0, 9))
def test_a_peek_at_noise_answers_or_says_so(noise, sequence):
    """Bytes that were never a record, behind the beginning of one or not, are no other error."""
    for data in (noise, encode(events(1, 3), EMPTY_HASH)[:HEADER_BYTES] + noise):
        try:
            event = peek(data, sequence)
        except DamagedError:
            continue
        assert event is None or event.sequence == sequence
