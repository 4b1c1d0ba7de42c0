"""A batch of events as columns, and its layout inside a record.

The payload is a small header followed by the columns, widest items first, so that each is aligned
to its items without padding (a payload begins at a multiple of 8):

    previous_sequences, occurred_at_us, received_at_us  int64 [n]
    values                                              int64 [n * keys_per_value], row by row
    member_ends, key_ends                               uint32 [n]
    source_indexes                                      uint16 [n]
    flags                                               uint8 [n]
    members, keys                                       text, one after another
    tail                                                MessagePack: sources, windows opened

The same checks run before writing and after reading. Knows nothing of hashes, chains and files.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from functools import lru_cache
from operator import le
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, cast

import msgspec

from persistence.errors import DamagedError, written_by_newer

if TYPE_CHECKING:
    from array import array

    from _typeshed import ReadableBuffer

    Column: TypeAlias = array[int] | memoryview[int] | bytes | bytearray
    Blob: TypeAlias = bytes | bytearray | memoryview
    ItemFormat: TypeAlias = Literal["q", "I", "H", "B"]

if sys.byteorder != "little":
    raise ImportError("ranknode maps its columns from disk as they are: little-endian only")

EVENTS_PER_RECORD_MAX = 65_536
KEYS_PER_VALUE_MAX = 4
SOURCES_MAX = 65_535  # an index into them is 16 bits, and 0 stands for none
FLAG_OCCURRED_AT_GIVEN = 1  # the client said when; otherwise occurred_at is the time of receipt
FLAG_KEY_HASHED = 2  # the key is a keyed hash of what it was: its member was erased
_PLACES_CACHED = 1_024  # for the sizes of records that come again and again
_FLAGS = FLAG_OCCURRED_AT_GIVEN | FLAG_KEY_HASHED

_LAYOUT = struct.Struct("<IIQQQ")  # keys per value, 0, bytes of members, of keys, of the tail


class OpenedWindow(msgspec.Struct, frozen=True, array_like=True):
    """A window with its bounds [start_us, end_us) as they are from here on; None is unbounded."""

    window: str
    start_us: int | None
    end_us: int | None


_encode_tail = msgspec.msgpack.Encoder().encode
_decode_tail = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[OpenedWindow, ...]]).decode


class Event(NamedTuple):
    """One event as it is in the log; member and idempotency_key are UTF-8, times microseconds.

    previous_sequence is that of the member's event before this one, 0 where there is none. A key
    that is hashed is no text any more.
    """

    sequence: int
    previous_sequence: int
    member: bytes
    values: tuple[int, ...]
    idempotency_key: bytes
    occurred_at_us: int
    received_at_us: int
    source: str | None
    occurred_at_given: bool
    key_hashed: bool = False


class EventColumnValues(TypedDict):
    """The fields of EventColumns by name."""

    keys_per_value: int
    previous_sequences: Column
    occurred_at_us: Column
    received_at_us: Column
    values: Column
    member_ends: Column
    key_ends: Column
    source_indexes: Column
    flags: Column
    members: Blob
    keys: Blob
    sources: tuple[str, ...]
    opened: tuple[OpenedWindow, ...]


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """The columns of n events; any contiguous buffers of the items named in the module's text.

    The text of event i is members[member_ends[i - 1]:member_ends[i]], from 0 for the first, and
    the same for its key. source_indexes holds 0 for none, else 1 + the index in sources. opened
    are the windows that exist from this record on, because one of its events is their first.
    Columns that were read are memoryviews into the bytes of their record.
    """

    keys_per_value: int
    previous_sequences: Column
    occurred_at_us: Column
    received_at_us: Column
    values: Column
    member_ends: Column
    key_ends: Column
    source_indexes: Column
    flags: Column
    members: Blob
    keys: Blob
    sources: tuple[str, ...]
    opened: tuple[OpenedWindow, ...] = ()

    def event_at(self, index: int, sequence: int) -> Event:
        """Return the event at `index` (0-based), which has `sequence`. Complexity: O(1)."""
        width = self.keys_per_value
        member_start = self.member_ends[index - 1] if index else 0
        key_start = self.key_ends[index - 1] if index else 0
        source = self.source_indexes[index]
        return Event(
            sequence=sequence,
            previous_sequence=self.previous_sequences[index],
            member=bytes(self.members[member_start : self.member_ends[index]]),
            values=tuple(self.values[index * width : (index + 1) * width]),
            idempotency_key=bytes(self.keys[key_start : self.key_ends[index]]),
            occurred_at_us=self.occurred_at_us[index],
            received_at_us=self.received_at_us[index],
            source=self.sources[source - 1] if source else None,
            occurred_at_given=bool(self.flags[index] & FLAG_OCCURRED_AT_GIVEN),
            key_hashed=bool(self.flags[index] & FLAG_KEY_HASHED),
        )

    def pack(self, first_sequence: int) -> list[ReadableBuffer]:
        """Return the parts of the payload; raise AssertionError if the columns do not fit."""
        count = len(self.flags)
        columns: dict[str, Any] = {"members": memoryview(self.members).cast("B")}
        columns |= {"keys": memoryview(self.keys).cast("B")}
        for name, item_format, items in _shape(count, self.keys_per_value):
            packed = memoryview(getattr(self, name)).cast("B")
            if packed.nbytes != items * struct.calcsize(item_format):
                raise AssertionError(f"{name} has {packed.nbytes} bytes for {count} events")
            columns[name] = packed.cast(item_format)
        views = EventColumns(keys_per_value=self.keys_per_value, sources=self.sources, **columns)
        complaint = views.complaint(count, first_sequence)
        if complaint or max(self.flags) > _FLAGS:
            raise AssertionError(complaint or "an event has an unknown flag")
        members, keys = columns.pop("members"), columns.pop("keys")
        tail = _encode_tail((self.sources, self.opened))
        layout = _LAYOUT.pack(self.keys_per_value, 0, len(members), len(keys), len(tail))
        return [layout, *columns.values(), members, keys, tail]

    @classmethod
    def unpack(cls, payload: memoryview, count: int, first_sequence: int) -> EventColumnValues:
        """Return the columns of an intact payload as views into it; DamagedError if they fail."""
        if len(payload) < _LAYOUT.size:
            raise DamagedError("an events record is shorter than its layout")
        width, reserved, member_bytes, key_bytes, tail_bytes = _LAYOUT.unpack_from(payload)
        if reserved or not 1 <= width <= KEYS_PER_VALUE_MAX:
            raise DamagedError("an events record's layout holds values that no version writes")
        columns: dict[str, Any] = {"keys_per_value": width}
        places, members_start = _places(count, width)
        keys_start = members_start + member_bytes
        tail_start = keys_start + key_bytes
        end = tail_start + tail_bytes
        if end > len(payload):
            raise DamagedError("an events record ends inside its columns")
        if end < len(payload):
            raise DamagedError("an events record goes on after its columns")
        for name, item_format, start, column_end in places:
            columns[name] = payload[start:column_end].cast(item_format)
        columns["members"] = payload[members_start:keys_start]
        columns["keys"] = payload[keys_start:tail_start]
        columns["sources"], columns["opened"] = _decode_tail(payload[tail_start:])
        unpacked = cls(**columns)
        complaint = unpacked.complaint(count, first_sequence)
        if complaint:
            raise DamagedError(complaint)
        if max(unpacked.flags) > _FLAGS:
            raise written_by_newer("an event has flags", _FLAGS)
        return cast("EventColumnValues", columns)

    @classmethod
    def peek(cls, payload: memoryview, count: int, index: int, sequence: int) -> Event:
        """Return one event of a payload without looking at the others. Complexity: O(1).

        Nothing is checked but that all lies inside: IndexError, ValueError or TypeError otherwise.
        """
        if not 0 <= index < count:
            raise IndexError(f"event {index} of {count}")
        width, _, member_bytes, key_bytes, tail_bytes = _LAYOUT.unpack_from(payload)
        columns: dict[str, Any] = {"keys_per_value": width}
        places, members_start = _places(count, width)
        for name, item_format, start, end in places:
            columns[name] = payload[start:end].cast(item_format)
        members_end = members_start + member_bytes
        columns["members"] = payload[members_start:members_end]
        columns["keys"] = payload[members_end : members_end + key_bytes]
        columns["sources"] = ()
        if columns["source_indexes"][index]:
            columns["sources"], _ = _decode_tail(payload[len(payload) - tail_bytes :])
        return cls(**columns).event_at(index, sequence)

    def complaint(self, count: int, first_sequence: int) -> str | None:
        """Say what contradicts itself in columns of the right sizes, or return None.

        Complexity: O(n), in a few passes that run in C.
        """
        if not 1 <= count <= EVENTS_PER_RECORD_MAX:
            return f"a record does not hold {count} events"
        if not 1 <= self.keys_per_value <= KEYS_PER_VALUE_MAX:
            return f"a value does not have {self.keys_per_value} score keys"
        if len(self.sources) > SOURCES_MAX or max(self.source_indexes) > len(self.sources):
            return "an event's source is not in the record's list"
        for ends, blob, what in (
            (self.member_ends, self.members, "members"),
            (self.key_ends, self.keys, "idempotency keys"),
        ):
            listed = list(ends)
            if listed != sorted(listed) or listed[-1] != len(blob):
                return f"the ends of {what} do not divide their text"
        if min(self.previous_sequences) < 0 or any(
            map(le, range(first_sequence, first_sequence + count), self.previous_sequences)
        ):
            return "an event follows one of its member that is not before it"
        return None


def _shape(count: int, width: int) -> tuple[tuple[str, ItemFormat, int], ...]:
    """Return the name, item format and number of items of each column, in their order."""
    return (
        ("previous_sequences", "q", count),
        ("occurred_at_us", "q", count),
        ("received_at_us", "q", count),
        ("values", "q", count * width),
        ("member_ends", "I", count),
        ("key_ends", "I", count),
        ("source_indexes", "H", count),
        ("flags", "B", count),
    )


@lru_cache(maxsize=_PLACES_CACHED)
def _places(count: int, width: int) -> tuple[list[tuple[str, ItemFormat, int, int]], int]:
    """Return name, item format, start and end of each column in a payload, and the last end."""
    places, end = [], _LAYOUT.size
    for name, item_format, items in _shape(count, width):
        start, end = end, end + items * struct.calcsize(item_format)
        places.append((name, item_format, start, end))
    return places, end
