# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Submitted events as columns: a row each, from a client's texts to the cells of a record.

Owns the shape of one event, which is what can be said of it without looking at the board; which
rows are plain, so that no rule has to be asked about them one by one; and whether two events have
the same content. What the rules say of the rows that are left is for `actors.judge`. Nothing here
looks at a board, a log or a clock. 64-bit little-endian machines only.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from actors.exact cimport checked_name, scaled_decimal, time_us
from actors.members cimport grown, resize_array, siphash_64

import array

from msgspec import UNSET

from actors.errors import Refusal, invalid_field
from actors.exact import NotANumberError, PrecisionError, RangeError
from actors.keyset import KEY_HASHED, hash_key_text
from actors.submission import (
    NAME_BYTES_MAX,
    SOURCE_BYTES_MAX,
    Cells,
    Event,
    check_member,
    number_text,
    numbers,
)
from persistence.event_columns import FLAG_OCCURRED_AT_GIVEN, SOURCES_MAX

cdef array.array LONGS = array.array("q")
cdef array.array ENDS = array.array("I")
cdef array.array SHORTS = array.array("H")

cdef enum:
    WIDTH_MAX = 4

cdef enum:
    IS_UNDECIDED
    IS_APPLIED
    IS_DUPLICATE
    IS_REJECTED

UNDECIDED, APPLIED, DUPLICATE, REJECTED = IS_UNDECIDED, IS_APPLIED, IS_DUPLICATE, IS_REJECTED

cdef uint8_t GIVEN = FLAG_OCCURRED_AT_GIVEN
cdef uint8_t HASHED = KEY_HASHED
cdef Py_ssize_t NAME_MAX = NAME_BYTES_MAX
cdef Py_ssize_t SOURCE_MAX = SOURCE_BYTES_MAX


include "event_columns.pxi"
include "event_content.pxi"
include "event_shape.pxi"


cdef class EventRows:
    """The events of some submissions, a row each in their order, and what becomes of them.

    EventRows(decimals, count): the decimals of the score keys; how many rows there will be.

    Fill: `take`.
    Compare with what was before: `repeats`, `confirm_logged`, `confirm_within`.
    Decide: `accept_plain`, `reconsider`, `apply`, `refuse`, `number`; `undecided` is what is left.
    Look: `statuses`, `sequences`, `refusals`, `cells`, `member`, `keys`, `key_ends`, `magnitude`,
    `occurred_at_us`, `received_at_us`, `len()`.
    Go on: `applied_columns`, of the record.

    A row without shape is refused at once, and holds empty texts. broken: by row, what the rules
    will say of a value that has the shape of one. statuses: UNDECIDED, APPLIED, DUPLICATE or
    REJECTED. sequences: of the applied rows that were numbered; of duplicates the first event's.
    occurred_at_us: as given, else the time of receipt; of duplicates, as the first event's is.
    """

    cdef readonly dict broken, refusals
    cdef readonly bytearray statuses
    cdef readonly array.array sequences, occurred_at_us, received_at_us, key_ends
    cdef array.array member_ends, values, source_indexes
    cdef bytearray flags
    cdef dict sources
    cdef list source_names
    cdef str newest_source
    cdef int newest_index
    cdef tuple decimals
    cdef int width
    cdef Texts members, key_texts
    cdef Py_ssize_t count, capacity, numbered
    cdef int64_t applied

    def __cinit__(self, tuple decimals not None, Py_ssize_t count):
        self.decimals, self.width = decimals, len(decimals)
        if not 1 <= self.width <= WIDTH_MAX:
            raise ValueError("a value has 1 to 4 score keys")
        self.capacity = count
        self.broken, self.refusals, self.sources, self.source_names = {}, {}, {}, []
        self.statuses, self.flags = bytearray(count), bytearray(count)
        self.sequences = array.clone(LONGS, count, zero=True)
        self.occurred_at_us = array.clone(LONGS, count, zero=True)
        self.received_at_us = array.clone(LONGS, count, zero=True)
        self.values = array.clone(LONGS, count * self.width, zero=True)
        self.member_ends = array.clone(ENDS, count, zero=True)
        self.key_ends = array.clone(ENDS, count, zero=True)
        self.source_indexes = array.clone(SHORTS, count, zero=True)

    def __dealloc__(self):
        free(self.members.bytes)
        free(self.key_texts.bytes)

    def __len__(self):
        return self.count

    # Filling

    def take(self, list events not None, bint packed, int64_t received_at_us):
        """Check the shape of events, and let each have the next row.

        A Refusal among them has its row, too. packed: numbers are MessagePack. IndexError beyond
        the rows there are. O(bytes).
        """
        cdef Py_ssize_t row
        for event in events:
            row = self.count
            if row == self.capacity:
                raise IndexError(f"there are {row} rows")
            longs(self.occurred_at_us)[row] = longs(self.received_at_us)[row] = received_at_us
            if not isinstance(event, Event):
                self.refuse(row, event)
            else:
                try:
                    self._take(row, event, packed)
                except Refusal as refusal:
                    self.refuse(row, refusal)
            ends_in(self.member_ends)[row] = <uint32_t>self.members.used
            ends_in(self.key_ends)[row] = <uint32_t>self.key_texts.used
            self.count += 1

    cdef int _take(self, Py_ssize_t row, event, bint packed) except -1:
        """Check one event by itself. Errors: Refusal invalid_field, and the row is empty."""
        cdef str member = event.member, key = event.idempotency_key, field = "occurred_at"
        cdef object occurred_at = event.occurred_at, source = event.source
        cdef const char *member_text
        cdef const char *key_text
        cdef Py_ssize_t member_size, key_size, source_size
        cdef int64_t occurred_at_us = 0
        cdef int64_t values[WIDTH_MAX]
        try:
            if occurred_at is not UNSET:
                occurred_at_us = time_us(occurred_at)
            field = "source"
            if source is not UNSET:
                checked_name(source, SOURCE_MAX, &source_size)
            field = "member"
            member_text = checked_name(member, NAME_MAX, &member_size)
            if member_text[0] == c'.' and member_size <= 2:
                check_member(member)
            field = "idempotency_key"
            key_text = checked_name(key, NAME_MAX, &key_size)
        except ValueError as error:
            raise invalid_field(field, str(error)) from None
        broken = scale(event.value, packed, self.decimals, values)
        if broken is not None:
            self.broken[row] = broken
        else:
            memcpy(longs(self.values) + row * self.width, values, self.width * sizeof(int64_t))
        append_text(&self.members, member_text, member_size)
        append_text(&self.key_texts, key_text, key_size)
        if occurred_at is not UNSET:
            longs(self.occurred_at_us)[row] = occurred_at_us
            PyByteArray_AS_STRING(self.flags)[row] = GIVEN
        if source is not UNSET:
            shorts(self.source_indexes)[row] = self._source_index(source)
        return 0

    cdef int _source_index(self, str source) except -1:
        """Number a source from 1 on, in the order of their appearance."""
        if source != self.newest_source:
            if source not in self.sources:
                if len(self.source_names) == SOURCES_MAX:
                    raise OverflowError(f"a record holds at most {SOURCES_MAX} sources")
                self.source_names.append(source)
                self.sources[source] = len(self.source_names)
            self.newest_source, self.newest_index = source, self.sources[source]
        return self.newest_index

    # Deciding

    def accept_plain(
        self, int64_t earliest_us, int64_t latest_us, tuple lowest, tuple highest, sources
    ):
        """Apply the rows that are still to be decided and within all of these bounds.

        earliest_us and latest_us, both included, bound the instants; lowest and highest each score
        key, where not None; sources holds those that are accepted, None for all and for none at
        all. A row whose value breaks a rule is not plain. O(rows).
        """
        cdef Py_ssize_t row
        cdef int key
        cdef int64_t low[WIDTH_MAX]
        cdef int64_t high[WIDTH_MAX]
        cdef const int64_t *values = longs(self.values)
        cdef const int64_t *occurred_at_us = longs(self.occurred_at_us)
        cdef char *statuses = PyByteArray_AS_STRING(self.statuses)
        cdef bytes accepted = bytes([sources is None or each in sources
                                     for each in [None, *self.source_names]])
        cdef bint plain
        for key in range(self.width):
            low[key] = -INT64_MAX if lowest is None else lowest[key]
            high[key] = INT64_MAX if highest is None else highest[key]
        for row in range(self.count):
            plain = earliest_us <= occurred_at_us[row] <= latest_us
            for key in range(self.width):
                plain &= low[key] <= values[key] <= high[key]
            plain &= PyBytes_AS_STRING(accepted)[shorts(self.source_indexes)[row]]
            if plain and statuses[row] == IS_UNDECIDED:
                statuses[row] = IS_APPLIED
            values += self.width
        for row in self.broken:
            self.reconsider(row)

    def reconsider(self, Py_ssize_t row):
        """Let a row that was applied be decided once more."""
        if self.statuses[row] == IS_APPLIED:
            self.statuses[row] = IS_UNDECIDED

    def undecided(self):
        """List the rows that are still to be decided, in order. O(rows)."""
        cdef Py_ssize_t row
        cdef const char *statuses = PyByteArray_AS_STRING(self.statuses)
        return [row for row in range(self.count) if statuses[row] == IS_UNDECIDED]

    def apply(self, Py_ssize_t row):
        """Let a row count."""
        self.statuses[row] = IS_APPLIED

    def refuse(self, Py_ssize_t row, refusal):
        """Refuse a row."""
        self.statuses[row] = IS_REJECTED
        self.refusals[row] = refusal

    def number(self, Py_ssize_t end, int64_t first_sequence):
        """Give the applied rows before `end` their sequences, from `first_sequence` on.

        All of them are decided. O(rows since the call before).
        """
        cdef const char *statuses = PyByteArray_AS_STRING(self.statuses)
        while self.numbered < end:
            if statuses[self.numbered] == IS_APPLIED:
                longs(self.sequences)[self.numbered] = first_sequence + self.applied
                self.applied += 1
            self.numbered += 1

    # Comparing

    def repeats(self, bytes hash_key not None):
        """List (row, first row) of each row whose key an earlier row has, in order.

        hash_key: a secret of 16 bytes, so that nobody can choose colliding keys. O(rows).
        """
        cdef list pairs = []
        cdef Py_ssize_t row
        cdef uint32_t size, first_size
        cdef uint64_t mask = 4, hashed, place
        cdef const uint32_t *ends = ends_in(self.key_ends)
        cdef const char *statuses = PyByteArray_AS_STRING(self.statuses)
        cdef const uint8_t *key
        cdef uint32_t *seen
        if len(hash_key) != 16:
            raise ValueError("a hash key has 16 bytes")
        while mask < 2 * <uint64_t>self.count:
            mask *= 2
        mask -= 1
        seen = <uint32_t *>calloc(mask + 1, sizeof(uint32_t))  # first rows, plus 1
        if seen == NULL:
            raise MemoryError
        try:
            for row in range(self.count):
                if statuses[row] == IS_REJECTED:
                    continue
                size = text_size(ends, row)
                key = self.key_texts.bytes + ends[row] - size
                place = siphash_64(<const uint8_t *>PyBytes_AS_STRING(hash_key), key, size) & mask
                while seen[place]:
                    first_size = text_size(ends, seen[place] - 1)
                    if same_text(key, size, self.key_texts.bytes + ends[seen[place] - 1]
                                 - first_size, first_size):
                        break
                    place = (place + 1) & mask
                if seen[place]:
                    pairs.append((row, <Py_ssize_t>seen[place] - 1))
                else:
                    seen[place] = <uint32_t>row + 1
        finally:
            free(seen)
        return pairs

    cdef Content _content(self, Py_ssize_t row) noexcept:
        cdef Content content
        content.member_size = text_size(ends_in(self.member_ends), row)
        content.member = self.members.bytes + ends_in(self.member_ends)[row]
        content.member -= content.member_size
        content.key_size = text_size(ends_in(self.key_ends), row)
        content.key = self.key_texts.bytes + ends_in(self.key_ends)[row] - content.key_size
        content.values = longs(self.values) + row * self.width
        content.occurred_at_us = longs(self.occurred_at_us)[row]
        content.flags = PyByteArray_AS_STRING(self.flags)[row]
        return content

    cdef object _source(self, Py_ssize_t row):
        cdef int index = shorts(self.source_indexes)[row]
        return self.source_names[index - 1] if index else None

    def confirm_within(self, Py_ssize_t row, Py_ssize_t earlier):
        """Let a row be a duplicate of an applied, numbered one with its key, or in conflict."""
        if not 0 <= earlier < row < self.count:
            raise IndexError(f"no row {row} follows {earlier}")
        cdef Content event = self._content(row), first = self._content(earlier)
        cdef bint same = row not in self.broken and (
            self._source(row) == self._source(earlier)
            and same_content(&event, &first, self.width))
        self._repeat(row, same, longs(self.sequences)[earlier], first.occurred_at_us)

    def confirm_logged(
        self, list candidates not None, Py_ssize_t start, LoggedRows logged not None, hash_key
    ):
        """Let rows be duplicates of a record's events that have their keys, or in conflict.

        candidates: (row, sequence of an event that may have its key); looked at from `start` on, as
        long as the record holds the sequence. Returns where that ends. hash_key: the board's
        secret, under which the keys of erased members are hashed. O(candidates).
        """
        cdef Py_ssize_t row, at
        while start < len(candidates):
            row, sequence = candidates[start]
            if not logged.first_sequence <= sequence <= logged.last_sequence:
                break
            if not 0 <= row < self.count:
                raise IndexError(f"there is no row {row}")
            at = sequence - logged.first_sequence
            if self.statuses[row] != IS_REJECTED and self._has_key(row, logged, at, hash_key):
                self._repeat(row, self._is_same(row, logged, at), sequence,
                             logged.occurred_at_us[at])
            start += 1
        return start

    cdef bint _has_key(self, Py_ssize_t row, LoggedRows logged, Py_ssize_t at, hash_key) except -1:
        cdef Content event = self._content(row), earlier = logged._content(at)
        if not earlier.flags & HASHED:
            return same_text(event.key, event.key_size, earlier.key, earlier.key_size)
        return hash_key_text(hash_key, self._text(event.key, event.key_size)) == self._text(
            earlier.key, earlier.key_size)

    cdef bint _is_same(self, Py_ssize_t row, LoggedRows logged, Py_ssize_t at) except -1:
        cdef Content event = self._content(row), earlier = logged._content(at)
        return row not in self.broken and self.width == logged.width and (
            self._source(row) == logged._source(at)
            and same_content(&event, &earlier, self.width))

    cdef int _repeat(
        self, Py_ssize_t row, bint same, int64_t sequence, int64_t occurred_at_us
    ) except -1:
        """Let a row, whose key an event has, be its duplicate or in conflict with it."""
        if not same:
            self.refuse(row, Refusal(
                "idempotency_conflict",
                "the key was used before, for an event with other content",
                sequence=sequence,
            ))
            return 0
        self.statuses[row] = IS_DUPLICATE
        longs(self.sequences)[row] = sequence
        longs(self.occurred_at_us)[row] = occurred_at_us
        return 0

    # Looking

    @property
    def keys(self):
        """The texts of the keys, one after another."""
        return self._text(self.key_texts.bytes, self.key_texts.used)

    cdef bytes _text(self, const uint8_t *text, uint64_t size):
        return PyBytes_FromStringAndSize(<const char *>text, size)

    def member(self, Py_ssize_t row):
        """Return the member of a row. O(1)."""
        if not 0 <= row < self.count:
            raise IndexError(f"there is no row {row}")
        cdef Content content = self._content(row)
        return self._text(content.member, content.member_size)

    def cells(self, Py_ssize_t row):
        """Return a row that has shape by itself. O(1)."""
        if not 0 <= row < self.count:
            raise IndexError(f"there is no row {row}")
        cdef Content content = self._content(row)
        values = tuple([content.values[key] for key in range(self.width)])
        return Cells(
            self._text(content.member, content.member_size),
            self._text(content.key, content.key_size),
            self.broken.get(row, values),
            content.occurred_at_us if content.flags & GIVEN else None,
            self._source(row),
        )

    @property
    def magnitude(self):
        """How far all rows together can move any total, at most 2^62."""
        cdef Py_ssize_t row
        cdef int key
        cdef int64_t largest, total = 0
        cdef const int64_t *values = longs(self.values)
        for row in range(self.count):
            largest = 0
            for key in range(self.width):
                largest = max(largest, abs(values[key]))
            total = min(total + largest, <int64_t>1 << 62)
            values += self.width
        return total

    # Going on

    def applied_columns(self):
        """Return the columns of the applied rows, all of which are numbered, by a record's names.

        O(rows).
        """
        cdef EventRows rows = self if self.applied == self.count else self._applied()
        return {
            "keys_per_value": rows.width,
            "occurred_at_us": rows.occurred_at_us,
            "received_at_us": rows.received_at_us,
            "values": rows.values,
            "member_ends": rows.member_ends,
            "members": rows._text(rows.members.bytes, rows.members.used),
            "key_ends": rows.key_ends,
            "keys": rows.keys,
            "sources": tuple(rows.source_names),
            "source_indexes": rows.source_indexes,
            "flags": bytes(rows.flags),
        }

    cdef EventRows _applied(self):
        """Copy the applied rows."""
        cdef EventRows rows = EventRows(self.decimals, self.applied)
        cdef Py_ssize_t row, to = 0
        cdef const char *statuses = PyByteArray_AS_STRING(self.statuses)
        cdef Content content
        for row in range(self.count):
            if statuses[row] != IS_APPLIED:
                continue
            content = self._content(row)
            append_text(&rows.members, <const char *>content.member, content.member_size)
            append_text(&rows.key_texts, <const char *>content.key, content.key_size)
            ends_in(rows.member_ends)[to] = <uint32_t>rows.members.used
            ends_in(rows.key_ends)[to] = <uint32_t>rows.key_texts.used
            memcpy(longs(rows.values) + to * self.width, content.values,
                   self.width * sizeof(int64_t))
            longs(rows.occurred_at_us)[to] = content.occurred_at_us
            longs(rows.received_at_us)[to] = longs(self.received_at_us)[row]
            rows.flags[to] = content.flags
            if shorts(self.source_indexes)[row]:
                shorts(rows.source_indexes)[to] = rows._source_index(self._source(row))
            to += 1
        rows.count = to
        return rows
