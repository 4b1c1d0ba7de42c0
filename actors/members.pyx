# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The members of a board: each name held once, found by a keyed hash, with its newest event.

Owns the names (an arena of length-prefixed bytes), the slot of each name (a dense number, given in
order of first appearance and never reused, though its name may be replaced) and the head of each member's chain of events. Knows
nothing of scores or windows; every window of a board indexes by the slots given here.

64 tables (name_table.h), chosen by the top bits of the hash, grow one at a time, by a quarter, so
that growing never holds up the board for long. 64-bit little-endian machines only.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

import array

cdef array.array LONGS = array.array("q")
cdef array.array INTS = array.array("i")

cdef enum:
    PARTS = 64
    NAME_BYTES_MAX = 255
    TABLE_SIZE_MIN = 5
    MEMBERS_MAX = 0x7ffffffe

cdef uint64_t ARENA_BYTES_MAX = 0xffffffff


def siphash64(bytes key, bytes data):
    """Return SipHash-2-4 of data under a key of 16 bytes, as an integer.

    >>> hex(siphash64(bytes(range(16)), bytes(range(15))))
    '0xa129ca6149be45e5'
    """
    if len(key) != 16:
        raise ValueError("a hash key has 16 bytes")
    return siphash_64(key, data, len(data))


def siphash128(bytes key, bytes data):
    """Return the 16 bytes of SipHash-2-4-128 of data under a key of 16 bytes.

    >>> siphash128(bytes(range(16)), b"").hex()
    'a3817f04ba25a8e66df67214c7550293'
    """
    if len(key) != 16:
        raise ValueError("a hash key has 16 bytes")
    cdef Hash128 out = siphash_128(key, data, len(data))
    return (<const uint8_t *>&out)[:16]


def give_back(columns):
    """Free the memory of a dump's columns, which nobody else may hold: their content is lost. O(n).

    Without the GIL: to drop gigabytes holds it for tenths of a second, to drop what is left of them
    takes no time. For whoever may not stand still meanwhile, called from another thread.

    >>> columns = [("names", bytes(range(100)) * 100)]
    >>> give_back(columns)
    >>> len(columns[0][1])
    10000
    """
    cdef const uint8_t[::1] column
    for _, buffer in columns:
        column = buffer
        if column.shape[0]:
            with nogil:
                discard_pages(<void *>&column[0], column.shape[0])


cdef int check_batch(
    const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence
) except -1:
    """Refuse ends that are not the cumulative lengths of names in blob, or a bad sequence."""
    cdef Py_ssize_t i
    cdef uint32_t start = 0
    for i in range(ends.shape[0]):
        if ends[i] < start or ends[i] > blob.shape[0]:
            raise ValueError(f"end {i} lies outside the blob or before its predecessor")
        if ends[i] - start > NAME_BYTES_MAX:
            raise ValueError(f"name {i} is longer than {NAME_BYTES_MAX} bytes")
        start = ends[i]
    if start != blob.shape[0]:
        raise ValueError("the blob is longer than its last end")
    if first_sequence < 1 or first_sequence > INT64_MAX - ends.shape[0]:
        raise ValueError("the first sequence lies outside 1 to 2^63 - 1")
    return 0


cdef class Members:
    """The interned members of one board.

    Members(hash_key) with a secret of 16 bytes. A name is 0 to 255 bytes. A board holds at most
    2^31 - 2 members and 4 GiB of names (170 million of 24 bytes); beyond, OverflowError.

    Look up: `find`, `name`, `head`, `len()`.
    Take in a batch: `plan` before the commit, `record` after it. Forget a name: `rename`.
    Compare and keep: `digest`, `dump`, `load`.
    Look inside: `nbytes`, `_check`.

    A batch of names is a blob and an array('I') of the cumulative ends of the names in it.

    >>> members = Members(bytes(16))
    >>> ends, blob = array.array("I", [3, 6, 9]), b"annbobann"
    >>> previous = members.plan(ends, blob, 1)
    >>> list(previous), list(members.record(ends, blob, previous, 1))
    ([0, 0, 1], [0, 1, 0])
    >>> members.find(b"bob"), members.name(1), members.head(0), len(members)
    (1, b'bob', 3, 2)
    """

    def __cinit__(self, bytes hash_key):
        if len(hash_key) != 16:
            raise ValueError("a hash key has 16 bytes")
        memcpy(self.names.key, PyBytes_AS_STRING(hash_key), 16)

    def __dealloc__(self):
        cdef int part
        free(self.names.arena)
        free(self.names.offsets)
        free(self.heads)
        for part in range(PARTS):
            free(self.tables[part].slots)

    def __len__(self):
        return self.count

    cdef int64_t _lookup(self, const uint8_t *name, size_t size, uint64_t hashed) noexcept nogil:
        return find_name(&self.tables[hashed >> 58], &self.names, name, size, hashed)

    cdef int _reserve(self, uint64_t members, uint64_t name_bytes) except -1:
        """Make room for so many more members and bytes of names, or change nothing."""
        cdef uint64_t wanted = self.count + members
        cdef uint64_t bytes_wanted = self.arena_used + members + name_bytes
        if wanted > MEMBERS_MAX:
            raise OverflowError("a board holds at most 2^31 - 2 members")
        if bytes_wanted > ARENA_BYTES_MAX:
            raise OverflowError("a board holds at most 4 GiB of member names")
        if wanted > self.capacity:
            wanted = grown(self.capacity, wanted)
            if not (resize_array(&self.names.offsets, wanted, sizeof(uint32_t))
                    and resize_array(&self.heads, wanted, sizeof(int64_t))):
                raise MemoryError
            self.capacity = wanted
        if bytes_wanted > self.arena_capacity:
            bytes_wanted = grown(self.arena_capacity, bytes_wanted)
            if not resize_array(&self.names.arena, bytes_wanted, 1):
                raise MemoryError
            self.arena_capacity = bytes_wanted
        return 0

    cdef int64_t _intern(
        self, const uint8_t *name, size_t size, uint64_t hashed, int64_t head
    ) except -1:
        """Give a name that is not yet known the next slot; make room for it first."""
        cdef NameTable *table = &self.tables[hashed >> 58]
        self._reserve(1, size)
        if not has_room(table):
            if not resize_table(table, &self.names, table.size + table.size // 4 + TABLE_SIZE_MIN):
                raise MemoryError
        return self._append(name, size, hashed, head)

    cdef uint32_t _append(
        self, const uint8_t *name, size_t size, uint64_t hashed, int64_t head
    ) noexcept nogil:
        """Give a name that is not yet known, and for which there is room, the next slot."""
        cdef uint32_t slot = self.count
        self.names.offsets[slot] = <uint32_t>self.arena_used
        self.names.arena[self.arena_used] = <uint8_t>size
        memcpy(self.names.arena + self.arena_used + 1, name, size)
        self.arena_used += 1 + size
        self.heads[slot] = head
        self.count += 1
        place_name(&self.tables[hashed >> 58], slot, hashed)
        sum_add(&self.sum, self._term(slot))
        return slot

    cdef Hash128 _term(self, uint32_t slot) noexcept nogil:
        """Return what a member adds to the digest."""
        cdef uint8_t text[8 + NAME_BYTES_MAX]
        cdef const uint8_t *stored = self.names.arena + self.names.offsets[slot]
        memcpy(text, &self.heads[slot], 8)
        memcpy(text + 8, stored + 1, stored[0])
        return siphash_128(self.names.key, text, 8 + <size_t>stored[0])

    def find(self, bytes name not None):
        """Return the slot of a name, or -1. O(1)."""
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(name)
        cdef size_t size = len(name)
        return self._lookup(text, size, siphash_64(self.names.key, text, size))

    def name(self, Py_ssize_t slot):
        """Return the name of a slot; IndexError if there is none. O(1)."""
        if not 0 <= slot < self.count:
            raise IndexError(f"no member has slot {slot}")
        cdef const uint8_t *stored = self.names.arena + self.names.offsets[slot]
        return PyBytes_FromStringAndSize(<const char *>stored + 1, stored[0])

    def head(self, Py_ssize_t slot):
        """Return the sequence of a member's newest event, 0 before the first. O(1)."""
        if not 0 <= slot < self.count:
            raise IndexError(f"no member has slot {slot}")
        return self.heads[slot]

    def plan(self, const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence):
        """Return the previous sequence of each event of a batch, and change nothing one can see.

        Event i will have sequence first_sequence + i; its previous one is that of the member's
        last event before it in the batch, else the member's head, else 0. Makes room for the new
        members, so that what does not fit (MemoryError, OverflowError) is known before the commit.
        O(n).
        """
        cdef Py_ssize_t n = ends.shape[0]
        check_batch(ends, blob, first_sequence)
        if self.dumping:
            raise RuntimeError("the members are being dumped")
        cdef array.array previous = array.clone(LONGS, n, zero=False)
        cdef uint64_t size = 4
        while size < 2 * <uint64_t>n:
            size *= 2
        cdef uint64_t *hashes = <uint64_t *>malloc((n + 1) * sizeof(uint64_t))
        cdef uint32_t *seen = <uint32_t *>calloc(size, sizeof(uint32_t))
        cdef uint64_t new_members = 0, new_bytes = 0
        try:
            if hashes == NULL or seen == NULL:
                raise MemoryError
            self._plan(ends, blob, first_sequence, hashes, seen, size - 1,
                       <int64_t *>previous.data.as_longlongs, &new_members, &new_bytes)
            self._reserve(new_members, new_bytes)
        finally:
            free(hashes)
            free(seen)
        return previous

    cdef void _plan(
        self, const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence,
        uint64_t *hashes, uint32_t *seen, uint64_t mask, int64_t *previous,
        uint64_t *new_members, uint64_t *new_bytes,
    ) noexcept nogil:
        """Chain the events of a batch; `seen` maps a name to its latest event so far, plus 1."""
        cdef Py_ssize_t i
        cdef uint64_t bucket
        cdef uint32_t start = 0, size, other, other_start
        cdef int64_t slot
        for i in range(ends.shape[0]):
            hashes[i] = siphash_64(self.names.key, &blob[start], ends[i] - start)
            start = ends[i]
            fetch_place(&self.tables[hashes[i] >> 58], hashes[i])
        start = 0
        for i in range(ends.shape[0]):
            size = ends[i] - start
            bucket = hashes[i] & mask
            while seen[bucket]:
                other = seen[bucket] - 1
                other_start = ends[other - 1] if other else 0
                if hashes[other] == hashes[i] and ends[other] - other_start == size and (
                    not memcmp(&blob[other_start], &blob[start], size)
                ):
                    break
                bucket = (bucket + 1) & mask
            if seen[bucket]:
                previous[i] = first_sequence + seen[bucket] - 1
            else:
                slot = self._lookup(&blob[start], size, hashes[i])
                previous[i] = self.heads[slot] if slot >= 0 else 0
                new_members[0] += slot < 0
                new_bytes[0] += size if slot < 0 else 0
            seen[bucket] = <uint32_t>i + 1
            start = ends[i]

    def record(
        self, const uint32_t[::1] ends, const uint8_t[::1] blob, const int64_t[::1] previous,
        int64_t first_sequence,
    ):
        """Intern the members of a batch, move their heads and return the slot of each event.

        Each given previous sequence must equal the member's head: ValueError names the sequence
        that does not continue its chain, and nothing is changed from that event on. O(n).
        """
        cdef Py_ssize_t i, n = ends.shape[0]
        cdef uint32_t start = 0, size
        cdef int64_t slot, head
        cdef uint64_t hashed
        check_batch(ends, blob, first_sequence)
        if previous.shape[0] != n:
            raise ValueError("previous needs one sequence per event")
        if self.dumping:
            raise RuntimeError("the members are being dumped")
        cdef array.array slots = array.clone(INTS, n, zero=False)
        for i in range(n):
            size = ends[i] - start
            hashed = siphash_64(self.names.key, &blob[start], size)
            slot = self._lookup(&blob[start], size, hashed)
            head = self.heads[slot] if slot >= 0 else 0
            if previous[i] != head:
                raise ValueError(
                    f"sequence {first_sequence + i} follows {previous[i]} in its member's chain, "
                    f"whose head is {head}"
                )
            if slot < 0:
                slot = self._intern(&blob[start], size, hashed, first_sequence + i)
            else:
                sum_subtract(&self.sum, self._term(<uint32_t>slot))
                self.heads[slot] = first_sequence + i
                sum_add(&self.sum, self._term(<uint32_t>slot))
            slots.data.as_ints[i] = <int>slot
            start = ends[i]
        return slots

    def rename(self, Py_ssize_t slot, bytes name not None):
        """Give a slot another name; no byte of the former one is left among the names. O(n).

        No standings may hold the slot meanwhile, since they order equals by name. Errors:
        IndexError, ValueError where the name is too long or another slot's.
        """
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(name)
        cdef int64_t size = len(name), grow, other
        cdef uint64_t hashed, former, at, rest
        cdef uint8_t *stored
        cdef NameTable *table
        if not 0 <= slot < self.count:
            raise IndexError(f"no member has slot {slot}")
        if size > NAME_BYTES_MAX:
            raise ValueError(f"the name is longer than {NAME_BYTES_MAX} bytes")
        if self.dumping:
            raise RuntimeError("the members are being dumped")
        hashed = siphash_64(self.names.key, text, size)
        if self._lookup(text, size, hashed) >= 0:
            raise ValueError("the name is another member's")
        table = &self.tables[hashed >> 58]
        grow = size - self.names.arena[self.names.offsets[slot]]
        self._reserve(0, grow if grow > 0 else 0)
        if not has_room(table):
            if not resize_table(table, &self.names, table.size + table.size // 4 + TABLE_SIZE_MIN):
                raise MemoryError
        at = self.names.offsets[slot]
        stored = self.names.arena + at
        former = siphash_64(self.names.key, stored + 1, stored[0])
        sum_subtract(&self.sum, self._term(<uint32_t>slot))
        take_name(&self.tables[former >> 58], &self.names, <uint32_t>slot, former)
        rest = at + 1 + stored[0]
        memmove(self.names.arena + rest + grow, self.names.arena + rest, self.arena_used - rest)
        self.arena_used += grow
        if grow < 0:
            memset(self.names.arena + self.arena_used, 0, -grow)
        stored[0] = <uint8_t>size
        memcpy(stored + 1, text, size)
        for other in range(slot + 1, self.count):
            self.names.offsets[other] += <uint32_t>grow
        place_name(table, <uint32_t>slot, hashed)
        sum_add(&self.sum, self._term(<uint32_t>slot))

    @property
    def digest(self):
        """The 16 bytes of the sum of keyed hashes of (name, head): equal for equal members."""
        return (<const uint8_t *>&self.sum)[:16]

    @property
    def nbytes(self):
        """The bytes allocated, this object apart."""
        cdef int part
        cdef uint64_t total = self.arena_capacity + self.capacity * 12
        for part in range(PARTS):
            total += self.tables[part].size * <uint64_t>5
        return total

    def dump(self):
        """Return [(column, bytes)] that `load` takes; copied without the GIL. O(n).

        Until it returns, a change by another thread is refused with RuntimeError.
        """
        cdef bytes names = empty_column(self.arena_used)
        cdef bytes heads = empty_column(self.count * sizeof(int64_t))
        cdef char *names_to = PyBytes_AS_STRING(names)
        cdef char *heads_to = PyBytes_AS_STRING(heads)
        self.dumping += 1
        with nogil:
            if self.count:
                memcpy(names_to, self.names.arena, self.arena_used)
                memcpy(heads_to, self.heads, self.count * sizeof(int64_t))
        self.dumping -= 1
        return [("names", names), ("heads", heads), ("digest", self.digest)]

    @classmethod
    def load(cls, columns, bytes hash_key):
        """Make the members that a dump holds; ValueError if it is none. O(n).

        columns is what `dump` returned, or a mapping of the same; the slots are the same again.
        """
        cdef Members members = cls(hash_key)
        cdef dict parts = dict(columns)
        if set(parts) != {"names", "heads", "digest"}:
            raise ValueError("the columns are not those of a dump of members")
        members._restore(parts["names"], parts["heads"])
        if members.digest != bytes(parts["digest"]):
            raise ValueError("the members differ from their digest")
        return members

    cdef int _restore(self, const uint8_t[::1] names, const uint8_t[::1] heads) except -1:
        cdef uint64_t at = 0, end = names.shape[0], count = heads.shape[0] // 8, n = 0, size
        cdef uint32_t sizes[PARTS]
        cdef uint64_t *hashes
        cdef int64_t head
        cdef int part
        if heads.shape[0] % 8 or count > end:
            raise ValueError("the heads are not one integer for each name")
        self._reserve(count, end - count)
        hashes = <uint64_t *>malloc((count + 1) * sizeof(uint64_t))
        if hashes == NULL:
            raise MemoryError
        try:
            with nogil:
                memset(sizes, 0, sizeof(sizes))
                while n < count and at < end and at + 1 + names[at] <= end:
                    hashes[n] = siphash_64(self.names.key, &names[at] + 1, names[at])
                    sizes[hashes[n] >> 58] += 1
                    n, at = n + 1, at + 1 + names[at]
            if n < count or at < end:
                raise ValueError("the names run over their end or are not one for each head")
            for part in range(PARTS):
                if not resize_table(&self.tables[part], &self.names,
                                    sizes[part] + sizes[part] // 3 + TABLE_SIZE_MIN):
                    raise MemoryError
            at = 0
            with nogil:
                for n in range(count):
                    if n + 16 < count:
                        fetch_place(&self.tables[hashes[n + 16] >> 58], hashes[n + 16])
                    size = names[at]
                    memcpy(&head, &heads[n * 8], 8)
                    if head < 0 or self._lookup(&names[at] + 1, size, hashes[n]) >= 0:
                        break
                    self._append(&names[at] + 1, size, hashes[n], head)
                    at += 1 + size
            if self.count < count:
                raise ValueError("a head is negative, or a name occurs twice")
        finally:
            free(hashes)
        return 0

    def _check(self):
        """Assert every invariant. O(n)."""
        cdef Hash128 total = Hash128(0, 0)
        cdef uint32_t slot, used = 0, bucket
        cdef uint64_t at = 0
        cdef NameTable *table
        cdef int part
        assert self.count <= self.capacity and self.arena_used <= self.arena_capacity
        for slot in range(self.count):
            assert self.names.offsets[slot] == at, "names follow one another in order of slots"
            at += 1 + self.names.arena[at]
            assert self.heads[slot] >= 0
            assert self.find(self.name(slot)) == slot, "each name is found"
            sum_add(&total, self._term(slot))
        assert at == self.arena_used
        for part in range(PARTS):
            table = &self.tables[part]
            slot = 0
            for bucket in range(table.size):
                slot += table.tags[bucket] != 0
            assert slot == table.used, "the tags tell which buckets are taken"
            assert table.used * <uint64_t>5 <= table.size * <uint64_t>4, "load at most 0.8"
            used += table.used
        assert used == self.count
        assert total.low == self.sum.low and total.high == self.sum.high, "the digest is kept"

