"""The listing of a window: what is sealed when it closes. Part of standings.pyx."""

import hashlib

cdef enum:
    SLICE_ENTRIES = 2048

cdef set LISTING_COLUMNS = {"ends", "names", "rows", "flags"}


cdef list list_entries(Standings standings):
    """Make the columns of a listing, slice by slice, as `Standings.listing` says."""
    cdef Order *order = &standings.order
    cdef uint64_t n = order.members, width = order.keys + 1, done = 0, used = 0, capacity = 0
    cdef uint32_t count
    cdef uint32_t slots[SLICE_ENTRIES]
    cdef uint8_t *blob = NULL
    cdef Place place = Place(0, 0)
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, n * sizeof(uint32_t))
    cdef bytes rows = PyBytes_FromStringAndSize(NULL, n * width * sizeof(int64_t))
    cdef bytes flags = PyBytes_FromStringAndSize(NULL, n)
    cdef bytes names
    cdef uint32_t *ends_to = <uint32_t *>PyBytes_AS_STRING(ends)
    cdef int64_t *rows_to = <int64_t *>PyBytes_AS_STRING(rows)
    cdef uint8_t *flags_to = <uint8_t *>PyBytes_AS_STRING(flags)
    cdef char *names_to
    standings.dumping += 1
    try:
        while done < n:
            count = <uint32_t>min(n - done, <uint64_t>SLICE_ENTRIES)
            if used + SLICE_ENTRIES * NAME_MAX_BYTES > capacity:
                capacity = grown(capacity, used + SLICE_ENTRIES * NAME_MAX_BYTES)
                if not resize_array(&blob, capacity, 1):
                    raise MemoryError
            with nogil:
                list_rows(order, standings.flags, &place, count, rows_to + done * width,
                          flags_to + done, slots)
            used = list_names(&standings.members.names, slots, count, blob, used, ends_to + done)
            done += count
        names = PyBytes_FromStringAndSize(NULL, used)
        names_to = PyBytes_AS_STRING(names)
        with nogil:
            if used:
                memcpy(names_to, blob, used)
    finally:
        standings.dumping -= 1
        free(blob)
    return [("ends", ends), ("names", names), ("rows", rows), ("flags", flags)]


cdef class _Columns:
    """The columns of a listing, held while they are read; each is checked to fit the others."""

    cdef const uint8_t[::1] ends, names, rows, flags
    cdef Listing listing

    def __cinit__(self, columns, uint64_t keys):
        cdef dict parts = dict(columns)
        cdef bint sound
        if set(parts) != LISTING_COLUMNS:
            raise ValueError("the columns are not those of a listing")
        self.ends, self.names = parts["ends"], parts["names"]
        self.rows, self.flags = parts["rows"], parts["flags"]
        self.listing.entries, self.listing.names_size = self.flags.shape[0], self.names.shape[0]
        self.listing.ends, self.listing.names = &self.ends[0], &self.names[0]
        self.listing.rows, self.listing.flags = &self.rows[0], &self.flags[0]
        if <uint64_t>self.ends.shape[0] != self.listing.entries * 4 or (
            <uint64_t>self.rows.shape[0] != self.listing.entries * 8 * (keys + 1)
        ):
            raise ValueError("a column's length is not that of its entries")
        with nogil:
            sound = names_are_sound(&self.listing)
        if not sound:
            raise ValueError("the ends do not cut the names into names of members")


def from_listing(
    columns, bytes hash_key not None, str aggregation, tuple directions, str tie_rule,
    distinct=False, decimals=(),
):
    """Return the (Members, Standings) that a listing holds; ValueError if it is none. O(n).

    columns is what `Standings.listing` returned, or a mapping of the same; the rest is what the
    constructors take. Slots follow the rank order, heads are 0. The listing has to be in the order
    that the rules give, each name once. Releases the GIL for nearly all of its time.

    >>> columns = {"ends": b"\\3\\0\\0\\0", "names": b"ann", "rows": bytes(16), "flags": b"\\1"}
    >>> members, standings = from_listing(columns, bytes(16), "best", ("desc",), "earliest")
    >>> standings.page(0, 9), members.find(b"ann")
    ([(b'ann', (0,), 0)], 0)
    """
    cdef Members members = Members(hash_key)
    cdef Standings standings = Standings(
        members, aggregation, directions, tie_rule, distinct, decimals)
    cdef _Columns parts = _Columns(columns, standings.order.keys)
    cdef uint64_t n = parts.listing.entries
    cdef bytes arena = PyBytes_FromStringAndSize(NULL, parts.listing.names_size + n)
    cdef uint8_t *arena_to = <uint8_t *>PyBytes_AS_STRING(arena)
    with nogil:
        names_with_lengths(&parts.listing, arena_to)
    members._restore(arena, bytes(n * sizeof(int64_t)))
    restore(standings, parts.rows, parts.flags, b"", NULL, n * 4)
    return members, standings


def listing_digest(columns, tuple decimals not None):
    """Return the 32 bytes of SHA-256 of a listing's canonical text (listing.h). O(n).

    columns is what `Standings.listing` returned, or a mapping of the same; decimals has 0 to 9 for
    each score key, and values that are equal under them have equal texts. ValueError if it is no
    listing of so many keys; its order is not looked at. Releases the GIL for all but microseconds.
    """
    cdef int64_t units[WORDS_MAX]
    cdef int keys = len(decimals)
    cdef uint64_t done = 0, count
    cdef size_t size
    cdef _Columns parts
    cdef uint8_t[::1] text = bytearray(SLICE_ENTRIES * TEXT_MAX_BYTES)
    if not 1 <= keys <= 4 or not set(decimals) <= set(range(10)):
        raise ValueError("decimals are 0 to 9 for each of 1 to 4 score keys")
    for i in range(keys):
        units[i] = 10 ** decimals[i]
    parts = _Columns(columns, keys)
    sha = hashlib.sha256()
    while done < parts.listing.entries:
        count = min(parts.listing.entries - done, <uint64_t>SLICE_ENTRIES)
        with nogil:
            size = listing_text(&parts.listing, units, keys, done, count, &text[0])
        sha.update(text[:size])
        done += count
    return sha.digest()
