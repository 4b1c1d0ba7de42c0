"""Every kind of log record: what it holds, and the one codec that makes bytes of it and back.

A record takes the sequences [first_sequence, first_sequence + count). On disk it is, little-endian:

    header   magic, format version, kind, count, first sequence, recorded at, payload length, and
             the hash of the record before it
    payload  MessagePack, or for events the layout of `event_columns`
    hash     BLAKE2b-128 of all of the above

The hash is checksum and chain in one: since it covers the predecessor's hash, the last hash of a
log vouches for every byte of it. The place of the hash, the last 16 bytes, and what it covers
hold for every format version, so that a newer record is told from a damaged one.

Knows no file, no clock and no board: bytes in, frozen values out. Whatever the bytes, `decode`
returns the record that was encoded, or raises DamagedError or FormatTooNewError.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from persistence.errors import DamagedError, written_by_newer
from persistence.event_columns import (
    EVENTS_PER_RECORD_MAX,
    Event,
    EventColumns,
    OpenedWindow,
)
from persistence.rulings import AnyRuling, decode_ruling, encode_ruling

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

__all__ = [
    "EMPTY_HASH", "EVENTS_PER_RECORD_MAX", "FORMAT_VERSION", "HASH_BYTES", "HASH_KEY_BYTES",
    "HEADER_BYTES", "MAGIC", "RECORD_BYTES_MAX", "SEQUENCES_LOST_MAX", "SEQUENCE_MAX",
    "DefinitionRecord", "Event", "EventsRecord", "Link", "OpenedWindow", "Record", "RulingRecord",
    "SequencesLostRecord", "WindowClosedRecord", "WindowOpenedRecord", "decode", "encode",
    "link_of", "peek", "previous_hash", "rechain", "record_bytes", "record_hash",
]  # fmt: skip

FORMAT_VERSION = 1
HASH_BYTES = 16
HASH_KEY_BYTES = 16
EMPTY_HASH = bytes(HASH_BYTES)  # what the first record of a log follows
RECORD_BYTES_MAX = 32 << 20  # 65,536 events of four score keys, each text at its longest, fit
SEQUENCE_MAX = (1 << 63) - 1  # sequences travel in signed 64-bit columns
SEQUENCES_LOST_MAX = (1 << 32) - 1  # of one record: the header counts in 32 bits

MAGIC = b"RNKR"
_HEADER = struct.Struct("<4sHHIIQqQ16s")  # the second I is reserved and 0; the sum is 8-aligned
HEADER_BYTES = _HEADER.size
_LINK = struct.Struct("<8xI4xQ16x16s")  # what of a header makes the chain
_PERSONALISATION = b"ranknode record"  # no other use of BLAKE2b can collide with this one


@dataclass(frozen=True, kw_only=True)
class _RecordBase:
    """What all kinds share.

    recorded_at_us is when the record was made, in microseconds since the epoch; replay uses it
    and never a clock.
    """

    KIND: ClassVar[int]

    first_sequence: int
    recorded_at_us: int

    @property
    def count(self) -> int:
        """Return how many sequences the record takes."""
        return 1

    @property
    def last_sequence(self) -> int:
        """Return the last sequence that the record takes."""
        return self.first_sequence + self.count - 1


@dataclass(frozen=True, kw_only=True)
class DefinitionRecord(_RecordBase):
    """A board's creation, or a change: always the whole definition that holds from here on.

    incarnation tells boards of one name apart that were removed and created again; hash_key, 16
    secret bytes, keys the board's fingerprints and digests.
    """

    KIND: ClassVar[int] = 1

    board: str
    incarnation: str
    hash_key: bytes
    created_at_us: int
    definition: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WindowOpenedRecord(_RecordBase):
    """A window that exists from here on, with its bounds [start_us, end_us); None is unbounded."""

    KIND: ClassVar[int] = 2

    window: str
    start_us: int | None
    end_us: int | None


@dataclass(frozen=True, kw_only=True)
class EventsRecord(_RecordBase, EventColumns):
    """A batch of events, one sequence each, as columns: see EventColumns."""

    KIND: ClassVar[int] = 3

    @property
    def count(self) -> int:
        """Return how many events the record holds."""
        return len(self.flags)

    def row(self, index: int) -> Event:
        """Return the event at `index` (0-based) of the record. Complexity: O(1)."""
        if not 0 <= index < len(self.flags):
            raise IndexError(f"event {index} of {len(self.flags)}")
        return self.event_at(index, self.first_sequence + index)


@dataclass(frozen=True, kw_only=True)
class WindowClosedRecord(_RecordBase):
    """A window that counts nothing any more: what is before this record counts, the rest does not.

    members and digest, 16 bytes, are those of the standings at that place of the log, so that a
    replay that reached others is noticed.
    """

    KIND: ClassVar[int] = 4

    window: str
    members: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class SequencesLostRecord(_RecordBase):
    """Sequences that a repair could not keep: what had them is gone, and nothing else gets them.

    It changes nothing of a board but its sequence. lost: how many they are. why: what was found,
    for whoever reads the log; recorded_at_us is when it was repaired.
    """

    KIND: ClassVar[int] = 5

    lost: int
    why: str

    @property
    def count(self) -> int:
        """Return how many sequences were lost."""
        return self.lost


@dataclass(frozen=True, kw_only=True)
class RulingRecord(_RecordBase):
    """A moderator's decision, with who gave it and what follows from it: see `rulings`."""

    KIND: ClassVar[int] = 6

    actor: str
    reason: str
    key: str | None
    ruling: AnyRuling


Record: TypeAlias = (
    DefinitionRecord
    | WindowOpenedRecord
    | EventsRecord
    | WindowClosedRecord
    | SequencesLostRecord
    | RulingRecord
)


class _DefinitionPayload(msgspec.Struct, frozen=True, array_like=True):
    board: str
    incarnation: str
    hash_key: Annotated[bytes, msgspec.Meta(min_length=HASH_KEY_BYTES, max_length=HASH_KEY_BYTES)]
    created_at_us: int
    definition: dict[str, Any]


class _ClosingPayload(msgspec.Struct, frozen=True, array_like=True):
    window: str
    members: Annotated[int, msgspec.Meta(ge=0)]
    digest: Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]


class _LostPayload(msgspec.Struct, frozen=True, array_like=True):
    lost: Annotated[int, msgspec.Meta(ge=1, le=SEQUENCES_LOST_MAX)]
    why: str


class _Header(NamedTuple):
    magic: bytes
    version: int
    kind: int
    sequences: int
    reserved: int
    first_sequence: int
    recorded_at_us: int
    payload_bytes: int
    previous_hash: bytes


_encode_payload = msgspec.msgpack.Encoder().encode
_decode_definition = msgspec.msgpack.Decoder(_DefinitionPayload).decode
_decode_window = msgspec.msgpack.Decoder(OpenedWindow).decode
_decode_closing = msgspec.msgpack.Decoder(_ClosingPayload).decode
_decode_lost = msgspec.msgpack.Decoder(_LostPayload).decode


def encode(record: Record, previous_hash: bytes) -> bytes:
    """Return the bytes of `record` that follow a record whose hash is `previous_hash`.

    Raises AssertionError for a record that breaks a limit or whose columns do not fit together:
    what could not be decoded is not written.
    """
    if len(previous_hash) != HASH_BYTES:
        raise AssertionError(f"a hash has {HASH_BYTES} bytes, not {len(previous_hash)}")
    if not 1 <= record.first_sequence <= record.last_sequence <= SEQUENCE_MAX:
        raise AssertionError(f"no record takes the sequences from {record.first_sequence}")
    parts = _payload_parts(record)
    payload_bytes = sum(memoryview(part).nbytes for part in parts)
    if HEADER_BYTES + payload_bytes + HASH_BYTES > RECORD_BYTES_MAX:
        raise AssertionError(f"a record of {payload_bytes} bytes is over the limit")
    header = _HEADER.pack(
        MAGIC, FORMAT_VERSION, record.KIND, record.count, 0, record.first_sequence,
        record.recorded_at_us, payload_bytes, previous_hash,
    )  # fmt: skip
    body = b"".join([header, *parts])
    return body + _hash(body)


def _payload_parts(record: Record) -> list[ReadableBuffer]:
    if isinstance(record, EventsRecord):
        return record.pack(record.first_sequence)
    if isinstance(record, WindowOpenedRecord):
        return [_encode_payload((record.window, record.start_us, record.end_us))]
    if isinstance(record, WindowClosedRecord):
        if len(record.digest) != HASH_BYTES:
            raise AssertionError(f"a digest has {HASH_BYTES} bytes, not {len(record.digest)}")
        return [_encode_payload((record.window, record.members, record.digest))]
    if isinstance(record, SequencesLostRecord):
        if record.lost > SEQUENCES_LOST_MAX:
            raise AssertionError(f"no record takes {record.lost} sequences")
        return [_encode_payload((record.lost, record.why))]
    if isinstance(record, RulingRecord):
        return [encode_ruling((record.actor, record.reason, record.key, record.ruling))]
    if len(record.hash_key) != HASH_KEY_BYTES:
        raise AssertionError(f"a hash key has {HASH_KEY_BYTES} bytes, not {len(record.hash_key)}")
    fields = (record.board, record.incarnation, record.hash_key, record.created_at_us)
    return [_encode_payload((*fields, record.definition))]


def decode(data: bytes) -> Record:
    """Return the record whose bytes are `data`, the columns of events as views into them.

    Raises DamagedError when the bytes are not those of a record as it was encoded, and
    FormatTooNewError when they are intact but of a format, a kind or with flags of later versions.
    """
    _verify_hash(data)
    header = _Header._make(_HEADER.unpack_from(data))
    if header.version > FORMAT_VERSION:
        raise written_by_newer(f"a record is of format {header.version}", FORMAT_VERSION)
    payload = memoryview(data)[HEADER_BYTES:-HASH_BYTES]
    if len(payload) != header.payload_bytes:
        raise DamagedError("a record's length is not the one in its header")
    sequences_left = SEQUENCE_MAX - header.first_sequence
    if (
        header.version < 1
        or header.reserved
        or header.first_sequence < 1
        or not 0 < header.sequences <= sequences_left + 1
    ):
        raise DamagedError("a record's header holds values that no version writes")
    decode_payload = _DECODERS.get(header.kind)
    if decode_payload is None:
        raise written_by_newer(f"a record is of kind {header.kind}", max(_DECODERS))
    try:
        record = decode_payload(header, payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"a record's payload: {error}") from error
    if record.count != header.sequences:
        raise DamagedError("a record does not take as many sequences as its header says")
    return record


def peek(data: ReadableBuffer, sequence: int) -> Event | None:
    """Return the event of a record that has `sequence`; None if the record holds no events.

    For reading many events that lie in as many records: the hash is not checked, which would cost
    a look at every byte. Raises DamagedError where the bytes cannot be a record that holds the
    sequence. Complexity: O(1).
    """
    try:
        header = _Header._make(_HEADER.unpack_from(data))
        if header.kind != EventsRecord.KIND or header.version > FORMAT_VERSION:
            return None
        payload = memoryview(data)[HEADER_BYTES:-HASH_BYTES]
        index = sequence - header.first_sequence
        return EventColumns.peek(payload, header.sequences, index, sequence)
    except (struct.error, IndexError, ValueError, TypeError) as error:
        raise DamagedError(f"the record at sequence {sequence}: {error}") from error


def _decode_definition_record(header: _Header, payload: memoryview) -> Record:
    return DefinitionRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        **msgspec.structs.asdict(_decode_definition(payload)),
    )


def _decode_window_record(header: _Header, payload: memoryview) -> Record:
    return WindowOpenedRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        **msgspec.structs.asdict(_decode_window(payload)),
    )


def _decode_closing_record(header: _Header, payload: memoryview) -> Record:
    return WindowClosedRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        **msgspec.structs.asdict(_decode_closing(payload)),
    )


def _decode_lost_record(header: _Header, payload: memoryview) -> Record:
    return SequencesLostRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        **msgspec.structs.asdict(_decode_lost(payload)),
    )


def _decode_events_record(header: _Header, payload: memoryview) -> Record:
    return EventsRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        **EventColumns.unpack(payload, header.sequences, header.first_sequence),
    )


def _decode_ruling_record(header: _Header, payload: memoryview) -> Record:
    try:
        fields = decode_ruling(payload)
    except msgspec.ValidationError as error:
        # The record is intact, so it is a later version's ruling.
        raise written_by_newer(f"a ruling ({error})", RulingRecord.KIND) from error
    return RulingRecord(
        first_sequence=header.first_sequence,
        recorded_at_us=header.recorded_at_us,
        actor=fields.actor,
        reason=fields.reason,
        key=fields.key,
        ruling=fields.ruling,
    )


_DECODERS: dict[int, Callable[[_Header, memoryview], Record]] = {
    DefinitionRecord.KIND: _decode_definition_record,
    WindowOpenedRecord.KIND: _decode_window_record,
    EventsRecord.KIND: _decode_events_record,
    WindowClosedRecord.KIND: _decode_closing_record,
    SequencesLostRecord.KIND: _decode_lost_record,
    RulingRecord.KIND: _decode_ruling_record,
}


def _verify_hash(data: bytes) -> None:
    """Raise DamagedError unless `data` is intact, of whatever format version it is."""
    if not HEADER_BYTES + HASH_BYTES <= len(data) <= RECORD_BYTES_MAX:
        raise DamagedError(f"no record has {len(data)} bytes")
    if data[: len(MAGIC)] != MAGIC:
        raise DamagedError("a record does not begin as records do")
    if _hash(memoryview(data)[:-HASH_BYTES]) != record_hash(data):
        raise DamagedError("a record's hash is not that of its content")


class Link(NamedTuple):
    """A record's place in the chain, as its bytes claim it."""

    first_sequence: int
    last_sequence: int
    previous_hash: bytes
    hash: bytes


def link_of(data: ReadableBuffer) -> Link:
    """Return the place that an encoded record claims; nothing of it is verified.

    Raises DamagedError where it is too short for one.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES + HASH_BYTES:
        raise DamagedError(f"no record has {len(view)} bytes")
    sequences, first_sequence, previous = _LINK.unpack_from(view)
    return Link(first_sequence, first_sequence + sequences - 1, previous, bytes(view[-HASH_BYTES:]))


def record_bytes(start: ReadableBuffer) -> int:
    """Return how long the record is whose header's bytes begin `start`, 0 where none begins."""
    header = _Header._make(_HEADER.unpack_from(start))
    total = HEADER_BYTES + header.payload_bytes + HASH_BYTES
    return total if header.magic == MAGIC and total <= RECORD_BYTES_MAX else 0


def record_hash(data: bytes) -> bytes:
    """Return the hash of the encoded record `data`, which the next record's header repeats."""
    return bytes(data[-HASH_BYTES:])


def rechain(data: bytes, previous: bytes) -> bytes:
    """Return the encoded record `data` as it is behind a record with the hash `previous`.

    Its content is not verified: whoever does this to a damaged record makes it look intact.
    """
    body = data[: HEADER_BYTES - HASH_BYTES] + previous + data[HEADER_BYTES:-HASH_BYTES]
    return body + _hash(body)


def previous_hash(data: bytes) -> bytes:
    """Return the hash of the record that the encoded record `data` follows."""
    return bytes(data[HEADER_BYTES - HASH_BYTES : HEADER_BYTES])


def _hash(content: ReadableBuffer) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES, person=_PERSONALISATION).digest()
