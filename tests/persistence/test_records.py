from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import DamagedError, FormatTooNewError
from persistence.event_columns import FLAG_KEY_HASHED, FLAG_OCCURRED_AT_GIVEN
from persistence.records import (
    EMPTY_HASH,
    HASH_BYTES,
    HEADER_BYTES,
    SEQUENCE_MAX,
    DefinitionRecord,
    EventsRecord,
    OpenedWindow,
    Record,
    RulingRecord,
    WindowClosedRecord,
    WindowOpenedRecord,
    decode,
    encode,
    peek,
    previous_hash,
    rechain,
    record_hash,
)
from persistence.rulings import (
    AnyRuling,
    DisputeOpened,
    DisputeSettled,
    ErasureFinished,
    EventVoided,
    MemberErased,
    MemberHidden,
    MemberRemoved,
    MemberShown,
    Place,
    ProfileSet,
    Row,
    RowChange,
)
from tests.persistence.log_samples import (
    CHANGES,
    closing,
    definition,
    ends,
    events,
    opened,
    ruling,
    seeded,
    window,
)

int64 = st.integers(-(2**63), 2**63 - 1)
sequences = st.integers(1, SEQUENCE_MAX - 100)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)

definitions = st.builds(
    DefinitionRecord,
    first_sequence=sequences,
    recorded_at_us=int64,
    board=st.text(max_size=20),
    incarnation=st.text(max_size=20),
    hash_key=st.binary(min_size=16, max_size=16),
    created_at_us=int64,
    definition=st.dictionaries(st.text(max_size=9), plain, max_size=5),
)
windows = st.builds(
    WindowOpenedRecord,
    first_sequence=sequences,
    recorded_at_us=int64,
    window=st.text(max_size=20),
    start_us=st.none() | int64,
    end_us=st.none() | int64,
)
closings = st.builds(
    WindowClosedRecord,
    first_sequence=sequences,
    recorded_at_us=int64,
    window=st.text(max_size=20),
    members=st.integers(0, 2**63),
    digest=hashes,
)
openings = st.builds(
    OpenedWindow, st.text(max_size=20), start_us=st.none() | int64, end_us=st.none() | int64
)

names = st.binary(max_size=12)
rows = st.builds(
    Row, st.lists(int64, min_size=1, max_size=4).map(tuple), int64, st.integers(0, 255)
)
changes = st.lists(
    st.builds(RowChange, st.text(max_size=20), st.none() | rows, st.none() | rows), max_size=3
).map(tuple)
window_names = st.lists(st.text(max_size=20), max_size=3).map(tuple)
places = st.lists(st.builds(Place, st.text(max_size=20), st.none() | rows), max_size=3).map(tuple)
decisions = st.one_of(
    st.builds(EventVoided, names, sequences, changes),
    st.builds(MemberHidden, names, window_names),
    st.builds(MemberShown, names),
    st.builds(MemberRemoved, names, changes),
    st.builds(ProfileSet, names, st.binary(max_size=40)),
    st.builds(DisputeOpened, names, sequences, st.text(max_size=12), window_names),
    st.builds(DisputeSettled, names, sequences, st.booleans(), changes),
    st.builds(MemberErased, names, st.integers(-1, 2**31), st.binary(max_size=16), places),
    st.builds(ErasureFinished, names),
)
rulings = st.builds(
    RulingRecord,
    first_sequence=sequences,
    recorded_at_us=int64,
    actor=st.text(max_size=12),
    reason=st.text(max_size=30),
    key=st.none() | st.text(max_size=12),
    ruling=decisions,
)


@st.composite
def event_batches(draw: st.DrawFn) -> EventsRecord:
    count = draw(st.integers(1, 9))
    width = draw(st.integers(1, 4))
    first = draw(sequences)

    def column(items: st.SearchStrategy[int], size: int = count) -> list[int]:
        return draw(st.lists(items, min_size=size, max_size=size))

    members = draw(st.lists(st.binary(max_size=12), min_size=count, max_size=count))
    keys = draw(st.lists(st.binary(max_size=12), min_size=count, max_size=count))
    sources = tuple(draw(st.lists(st.text(max_size=9), max_size=3)))
    return EventsRecord(
        first_sequence=first,
        recorded_at_us=draw(int64),
        keys_per_value=width,
        previous_sequences=array("q", column(st.integers(0, first - 1))),
        occurred_at_us=array("q", column(int64)),
        received_at_us=array("q", column(int64)),
        values=array("q", column(int64, count * width)),
        member_ends=ends(members),
        key_ends=ends(keys),
        source_indexes=array("H", column(st.integers(0, len(sources)))),
        flags=bytes(column(st.integers(0, FLAG_OCCURRED_AT_GIVEN | FLAG_KEY_HASHED))),
        members=b"".join(members),
        keys=b"".join(keys),
        sources=sources,
        opened=tuple(draw(st.lists(openings, max_size=3))),
    )


records = definitions | windows | closings | event_batches() | rulings
DECISIONS: list[AnyRuling] = [
    EventVoided(b"m3", 3, CHANGES),
    MemberHidden(b"m3", ("daily:2026-11-30", "cup")),
    MemberShown(b"m3"),
    MemberRemoved(b"m3", CHANGES[1:]),
    ProfileSet(b"m3", b'{"display_name":"M"}'),
    DisputeOpened(b"m3", 3, "referee", ("all_time",)),
    DisputeSettled(b"m3", 9, True, CHANGES),
    MemberErased(b"m3", 2, b"", (Place("all_time", Row((7,), 10, 3)), Place("cup", None))),
    MemberErased(b"m3", -1, bytes(range(16)), ()),
    ErasureFinished(b"m3"),
]
SAMPLES = [
    definition(), window(2), events(3, 5), events(100, 1), opened(200, 2), closing(300),
    *(ruling(400, decision) for decision in DECISIONS),
]  # fmt: skip


def kind_of(record: Record) -> str:
    return type(record.ruling if isinstance(record, RulingRecord) else record).__name__


def resealed(data: bytes) -> bytes:
    """Give edited bytes the hash that makes them intact, so that the inner checks are reached."""
    body = data[:-HASH_BYTES]
    return body + hashlib.blake2b(body, digest_size=HASH_BYTES, person=b"ranknode record").digest()


@given(records, hashes)
def test_round_trip(record, chain):
    """What is decoded is what was encoded, whatever the kind, and the chain's hashes with it."""
    data = encode(record, chain)
    assert decode(data) == record
    assert previous_hash(data) == chain
    assert record_hash(data) == data[-HASH_BYTES:]
    assert encode(decode(data), chain) == data


def test_row_is_the_event():
    """A row gives every field of its event, and columns are aligned views, not copies."""
    record = events(5, 4)
    decoded = decode(encode(record, EMPTY_HASH))
    assert isinstance(decoded, EventsRecord)
    for index in range(4):
        event = decoded.row(index)
        sequence = 5 + index
        assert event.sequence == sequence
        assert event.previous_sequence == max(sequence - 7, 0)
        assert event.member == f"m{sequence}".ljust(12, ".").encode()
        assert event.values == (sequence, -sequence)
        assert event.idempotency_key == f"key/{sequence}".encode()
        assert (event.occurred_at_us, event.received_at_us) == (10 * sequence, 10 * sequence + 1)
        assert event.source == (None, "match-server-1", "match-server-2")[sequence % 3]
        assert event.occurred_at_given == bool(sequence % 2)
        assert record.row(index) == event
    for index in (-1, 4):
        with pytest.raises(IndexError):
            decoded.row(index)
    assert isinstance(decoded.values, memoryview)
    assert decoded.values.format == "q"
    assert HEADER_BYTES % 8 == 0


@pytest.mark.parametrize("record", SAMPLES, ids=kind_of)
def test_every_flipped_bit_is_noticed(record):
    """No record with one flipped bit decodes: each of them is DamagedError."""
    data = encode(record, bytes(range(16)))
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedError):
                decode(bytes(flipped))


@pytest.mark.parametrize("record", SAMPLES, ids=kind_of)
def test_every_cut_and_extension_is_noticed(record):
    """No record cut short, extended, or with bytes swapped decodes."""
    data = encode(record, EMPTY_HASH)
    for end in range(len(data)):
        with pytest.raises(DamagedError):
            decode(data[:end])
    for tail in (b"\0", b"\0" * 16, data):
        with pytest.raises(DamagedError):
            decode(data + tail)
    with pytest.raises(DamagedError):
        decode(data[1:])


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_noise_is_damage(noise):
    """Bytes that were never a record are DamagedError, with or without a plausible beginning."""
    for data in (noise, encode(window(1), EMPTY_HASH)[:HEADER_BYTES] + noise):
        with pytest.raises(DamagedError):
            decode(data)


def test_edited_content_is_checked_behind_the_hash():
    """Even with a hash that fits, edited bytes give a record that holds together, or an error."""
    rng = seeded(1)
    decoded = 0
    for _ in range(5_000):
        data = bytearray(encode(rng.choice(SAMPLES), EMPTY_HASH))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data) - HASH_BYTES)] = rng.choice((0, 1, 0x7F, 0xFF))
        try:
            record = decode(resealed(bytes(data)))
        except (DamagedError, FormatTooNewError):
            continue
        decoded += 1
        assert record.first_sequence <= record.last_sequence <= SEQUENCE_MAX
        if isinstance(record, EventsRecord):
            rows = [record.row(index) for index in range(record.count)]
            assert b"".join(row.member for row in rows) == bytes(record.members)
            assert b"".join(row.idempotency_key for row in rows) == bytes(record.keys)
    assert decoded


@pytest.mark.parametrize(("offset", "item"), [(4, "<H"), (6, "<H")])
def test_newer_formats_and_kinds_are_told_from_damage(offset, item):
    """An intact record of a later format or kind is FormatTooNewError, not DamagedError."""
    data = bytearray(encode(window(1), EMPTY_HASH))
    struct.pack_into(item, data, offset, 999)
    with pytest.raises(FormatTooNewError):
        decode(resealed(bytes(data)))


@pytest.mark.parametrize(
    "unknown",
    [
        ["MemberPraised", b"m3", 7],
        ["EventVoided", b"m3", "three", []],
        ["MemberErased", b"m3", 2, "a text", []],
        [7, b"m3"],
        {"praised": 1},
    ],
)
def test_an_unknown_ruling_is_too_new(unknown):
    """An intact ruling of a kind or shape of later versions is FormatTooNewError, not damage."""
    assert decode(with_payload(msgspec.msgpack.encode(("m", "", None, DECISIONS[2])))).ruling
    with pytest.raises(FormatTooNewError, match="ruling"):
        decode(with_payload(msgspec.msgpack.encode(("m", "", None, unknown))))


def with_payload(payload: bytes) -> bytes:
    """Make an intact record of a ruling with another payload."""
    header = bytearray(encode(ruling(1), EMPTY_HASH)[:HEADER_BYTES])
    struct.pack_into("<Q", header, 32, len(payload))
    return resealed(bytes(header) + payload + bytes(HASH_BYTES))


def test_a_ruling_that_ends_early_is_damage():
    """An intact record whose payload is no MessagePack is DamagedError."""
    payload = encode(ruling(1), EMPTY_HASH)[HEADER_BYTES:-HASH_BYTES]
    for cut in (payload[:-1], payload[: len(payload) // 2], b"\xc1", payload + b"\0"):
        with pytest.raises(DamagedError):
            decode(with_payload(cut))


FLAGS = HEADER_BYTES + 32 + 3 * (3 * 8 + 2 * 8 + 2 * 4 + 2)  # where they begin, of three events


@pytest.mark.parametrize("flag", [4, 8, 0x80])
def test_unknown_flags_are_too_new(flag):
    """An event with a flag of a later version is refused, not read without it."""
    record = events(1, 3)
    data = bytearray(encode(record, EMPTY_HASH))
    assert bytes(data[FLAGS : FLAGS + 3]) == record.flags
    data[FLAGS] |= flag
    with pytest.raises(FormatTooNewError):
        decode(resealed(bytes(data)))


@pytest.mark.parametrize("flags", [b"\0\1\2", b"\3\2\0"])
def test_a_key_that_is_a_hash_is_told_from_a_text(flags):
    """Each event says whether its key was hashed and whether its time was given, each by itself."""
    data = encode(replace(events(1, 3), flags=flags), EMPTY_HASH)
    decoded = decode(data)
    assert isinstance(decoded, EventsRecord)
    rows = [decoded.row(index) for index in range(3)]
    assert [row.key_hashed for row in rows] == [bool(flag & FLAG_KEY_HASHED) for flag in flags]
    given = [bool(flag & FLAG_OCCURRED_AT_GIVEN) for flag in flags]
    assert [row.occurred_at_given for row in rows] == given
    assert [peek(data, sequence) for sequence in (1, 2, 3)] == rows


@given(records, hashes, hashes)
def test_a_record_can_follow_another_one(record, chain, other):
    """Behind another hash a record has the bytes that encoding it there makes, and no others."""
    data = encode(record, chain)
    assert rechain(data, other) == encode(record, other)
    assert rechain(rechain(data, other), chain) == data
    assert decode(rechain(data, other)) == record
    assert previous_hash(rechain(data, other)) == other


@pytest.mark.parametrize(
    "change",
    [
        {"member_ends": array("I", [1, 2])},
        {"member_ends": array("I", [5, 3, 36])},
        {"key_ends": array("I", [0, 0, 0])},
        {"source_indexes": array("H", [0, 0, 3])},
        {"flags": b"\4\0\0"},
        {"flags": b""},
        {"values": array("q", [1, 2, 3])},
        {"keys_per_value": 5},
        {"previous_sequences": array("q", [0, 2, 0])},
        {"previous_sequences": array("q", [0, -1, 0])},
        {"first_sequence": 0},
        {"first_sequence": SEQUENCE_MAX - 1},
    ],
)
def test_what_could_not_be_read_is_not_written(change):
    """Columns that contradict each other are an AssertionError at encoding."""
    with pytest.raises(AssertionError):
        encode(replace(events(1, 3), **change), EMPTY_HASH)


@pytest.mark.parametrize("change", [{"digest": b"short"}, {"digest": bytes(17)}])
def test_a_closing_that_could_not_be_read_is_not_written(change):
    """A closing whose digest has another size is an AssertionError at encoding."""
    with pytest.raises(AssertionError):
        encode(replace(closing(1), **change), EMPTY_HASH)


def test_openings_ride_with_their_events():
    """The windows that a batch opens come back in their order, beside its sources."""
    record = opened(5, 3)
    decoded = decode(encode(record, EMPTY_HASH))
    assert isinstance(decoded, EventsRecord)
    assert decoded.opened == record.opened
    assert [each.window for each in decoded.opened] == ["daily:2026-11-30", "weekly:2026-11-30"]
    assert decoded.sources == record.sources
    assert decode(encode(replace(record, opened=()), EMPTY_HASH)).opened == ()


def test_packed_bytes_serve_as_columns():
    """A column may be any buffer of the right bytes."""
    record = events(1, 3)
    packed = replace(
        record,
        values=memoryview(record.values).tobytes(),
        flags=bytearray(record.flags),
        members=memoryview(record.members),
    )
    assert encode(packed, EMPTY_HASH) == encode(record, EMPTY_HASH)
