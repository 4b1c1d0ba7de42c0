# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The results of a batch as JSON or MessagePack, written from columns.

Owns how the list looks that `actors.answers.Result` describes, byte for byte as msgspec would
write it; the tests hold it to that.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import msgspec

from actors.answers import Result
from actors.event_rows import DUPLICATE, REJECTED

cdef enum:
    NUMBER_BYTES_MAX = 20
    HEADER_BYTES_MAX = 5

cdef uint8_t REFUSED = REJECTED
cdef uint8_t REPEATED = DUPLICATE

# What stands before the sequence of an applied event and of a duplicate.
cdef tuple JSON = tuple(
    [msgspec.json.encode(Result(status, 0)).removesuffix(b"0}")
     for status in ("applied", "duplicate")])
cdef tuple PACKED = tuple(
    [msgspec.msgpack.encode(Result(status, 0)).removesuffix(b"\x00")
     for status in ("applied", "duplicate")])


cdef char *write_big_endian(char *to, uint64_t number, int size) noexcept:
    while size:
        size -= 1
        to[0] = <char>(number >> (8 * size))
        to += 1
    return to


cdef char *write_packed(char *to, uint64_t number) noexcept:
    """Write MessagePack's shortest integer."""
    cdef int power = (number > 0xff) + (number > 0xffff) + (number > 0xffffffff)
    if number < 0x80:
        return write_big_endian(to, number, 1)
    to[0] = <char>(0xcc + power)
    return write_big_endian(to + 1, number, 1 << power)


cdef char *write_decimal(char *to, uint64_t number) noexcept:
    cdef char digits[NUMBER_BYTES_MAX]
    cdef int at = NUMBER_BYTES_MAX
    while True:
        at -= 1
        digits[at] = <char>(c'0' + number % 10)
        number //= 10
        if not number:
            break
    memcpy(to, digits + at, NUMBER_BYTES_MAX - at)
    return to + NUMBER_BYTES_MAX - at


cdef char *write_bytes(char *to, bytes text) noexcept:
    memcpy(to, PyBytes_AS_STRING(text), len(text))
    return to + len(text)


cdef char *write_header(char *to, uint64_t count) noexcept:
    """Begin MessagePack's shortest array of `count` items."""
    if count < 16:
        to[0] = <char>(0x90 | count)
        return to + 1
    to[0] = <char>(0xdc + (count > 0xffff))
    return write_big_endian(to + 1, count, 4 if count > 0xffff else 2)


def write_results(rows, Py_ssize_t start, Py_ssize_t end, dict rejected not None, bint packed):
    """Write the list of the results of decided and numbered rows, of those from start to end.

    rows: an EventRows. rejected: the Result of each refused row, written already. O(rows).
    """
    cdef const uint8_t[::1] statuses = rows.statuses
    cdef const int64_t[::1] sequences = rows.sequences
    cdef tuple openings = PACKED if packed else JSON
    cdef bytes applied = openings[0], duplicate = openings[1]
    cdef Py_ssize_t row
    cdef char *text
    cdef char *to
    if not 0 <= start <= end <= statuses.shape[0]:
        raise IndexError(f"there are no rows {start} to {end}")
    cdef Py_ssize_t room = HEADER_BYTES_MAX + sum(map(len, rejected.values())) + (
        (end - start) * (len(duplicate) + NUMBER_BYTES_MAX + 2))
    cdef char *first = <char *>malloc(room)
    if first == NULL:
        raise MemoryError
    try:
        to = first
        if packed:
            to = write_header(to, end - start)
        else:
            to[0] = c'['
            to += 1
        for row in range(start, end):
            if not packed and row > start:
                to[0] = c','
                to += 1
            if statuses[row] == REFUSED:
                to = write_bytes(to, rejected[row])
                continue
            to = write_bytes(to, duplicate if statuses[row] == REPEATED else applied)
            if packed:
                to = write_packed(to, sequences[row])
            else:
                to = write_decimal(to, sequences[row])
                to[0] = c'}'
                to += 1
        if not packed:
            to[0] = c']'
            to += 1
        return PyBytes_FromStringAndSize(first, to - first)
    finally:
        free(first)
