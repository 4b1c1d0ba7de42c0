# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The dedupe set: which idempotency keys a board remembers, and at which sequence.

Owns a keyed 64-bit fingerprint and a sequence for each key received, in buckets by day of receipt.
Does not hold the keys: a hit is a candidate that the caller confirms in the log, and several
sequences may share a fingerprint. Knows no clock; days are numbers that the caller counts.

256 tables (fingerprints.h), chosen by the top byte of the fingerprint, grow one at a time, by a
quarter, so that growing never holds up the board for long. 64-bit little-endian machines only.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from actors.members cimport (
    Hash128,
    check_batch,
    empty_column,
    grown,
    resize_array,
    siphash_64,
    siphash_128,
    sum_add,
    sum_subtract,
)

cdef extern from "fingerprints.h" nogil:
    ctypedef struct Entry:
        uint64_t fingerprint
        int64_t sequence

    ctypedef struct Fingerprints:
        Entry *entries
        uint32_t size
        uint32_t used

    uint32_t home_of(const Fingerprints *table, uint64_t fingerprint)
    void fetch_home(const Fingerprints *table, uint64_t fingerprint)
    uint32_t next_place(const Fingerprints *table, uint32_t place)
    uint32_t distance_at(const Fingerprints *table, uint32_t place)
    int goes_past(const Fingerprints *table, uint32_t place, uint32_t distance)
    uint32_t room_of(const Fingerprints *table)
    uint32_t count_live(const Fingerprints *table, int64_t live_from)
    void insert_entry(Fingerprints *table, Entry entry)
    Entry *copy_live(const Fingerprints *table, int64_t live_from, Entry *to)
    int rebuild(Fingerprints *table, int64_t live_from, uint32_t size)


cdef enum:
    PARTS = 256
    HASHED_BYTES = 24
    HASHED = 2

KEY_HASHED = HASHED

cdef struct Day:
    int64_t day
    int64_t first_sequence
    int64_t count
    Hash128 sum


def hash_key_text(bytes hash_key, bytes key):
    """Return the 24 bytes that take the place of a key whose text is to be forgotten.

    Its fingerprint, and a hash of 128 bits to confirm it by, both under the board's secret.
    """
    cdef Hash128 out
    cdef uint64_t fingerprint
    if len(hash_key) != 16:
        raise ValueError("a hash key has 16 bytes")
    fingerprint = siphash_64(hash_key, key, len(key))
    out = siphash_128(hash_key, key, len(key))
    return (<const uint8_t *>&fingerprint)[:8] + (<const uint8_t *>&out)[:16]


cdef class KeySet:
    """The idempotency keys of one board.

    KeySet(hash_key) with a secret of 16 bytes. A key is 0 to 255 bytes; a batch of keys is a blob
    and an array('I') of the cumulative ends of the keys in it.

    Remember and forget: `add`, `forget`.
    Ask: `find`, `find_all`, `days`, `len()`.
    Compare and keep: `digest`, `dump`, `load`.
    Look inside: `nbytes`, `_check`.

    >>> from array import array
    >>> keys = KeySet(bytes(16))
    >>> keys.add(array("I", [3, 6]), b"k-1k-2", 1, 20000)
    >>> keys.add(array("I", [3]), b"k-3", 3, 20001)
    >>> keys.find(b"k-2"), keys.find_all(array("I", [3, 6]), b"k-9k-3"), keys.days
    ((2,), [(1, 3)], [20000, 20001])
    >>> keys.forget(20001)
    >>> keys.find(b"k-2"), len(keys)
    ((), 1)
    """

    cdef Fingerprints tables[PARTS]
    cdef Day *buckets
    cdef Py_ssize_t bucket_count, bucket_capacity
    cdef int64_t live_from, next_sequence, count
    cdef int unswept, dumping
    cdef uint8_t key[16]
    cdef Hash128 sum

    def __cinit__(self, bytes hash_key):
        if len(hash_key) != 16:
            raise ValueError("a hash key has 16 bytes")
        memcpy(self.key, PyBytes_AS_STRING(hash_key), 16)
        self.live_from = self.next_sequence = 1

    def __dealloc__(self):
        cdef int part
        for part in range(PARTS):
            free(self.tables[part].entries)
        free(self.buckets)

    def __len__(self):
        return self.count

    @property
    def days(self):
        """The days of receipt that are remembered, in order."""
        return [self.buckets[i].day for i in range(self.bucket_count)]

    cdef int _resize(self, Fingerprints *table, uint64_t live) except -1:
        """Rid a table of its dead entries, and leave it room to grow by a quarter."""
        cdef uint64_t size = live + live // 4 + live // 8 + 4
        if size > 0x7fffffff:
            raise OverflowError("a key set holds at most some 2^38 keys")
        if not rebuild(table, self.live_from, <uint32_t>size):
            raise MemoryError
        return 0

    cdef int _sweep(self) except -1:
        """Sweep one of the tables that may hold dead entries."""
        cdef Fingerprints *table
        cdef uint32_t live
        if self.unswept:
            table = &self.tables[self.unswept - 1]
            live = count_live(table, self.live_from)
            if live < table.used:
                self._resize(table, live)
            self.unswept -= 1
        return 0

    cdef Day *_bucket(self, int64_t day, int64_t first_sequence) except NULL:
        """Return the bucket for a day, the newest one if the day is not newer."""
        cdef uint64_t capacity = grown(self.bucket_capacity, 0)
        if self.bucket_count and day <= self.buckets[self.bucket_count - 1].day:
            return &self.buckets[self.bucket_count - 1]
        if self.bucket_count == self.bucket_capacity:
            if not resize_array(&self.buckets, capacity, sizeof(Day)):
                raise MemoryError
            self.bucket_capacity = capacity
        cdef Day *bucket = &self.buckets[self.bucket_count]
        memset(bucket, 0, sizeof(Day))
        bucket.day, bucket.first_sequence = day, first_sequence
        self.bucket_count += 1
        return bucket

    cdef Hash128 _term(self, Entry entry) noexcept nogil:
        """Return what an entry adds to the digest."""
        return siphash_128(self.key, <const uint8_t *>&entry, sizeof(Entry))

    cdef void _take(self, Day *bucket, Entry entry) noexcept nogil:
        """Insert an entry where there is room, and count it."""
        cdef Hash128 term = self._term(entry)
        insert_entry(&self.tables[entry.fingerprint >> 56], entry)
        sum_add(&self.sum, term)
        sum_add(&bucket.sum, term)
        bucket.count += 1
        self.count += 1

    def add(
        self, const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence,
        int64_t day, const uint8_t[::1] flags=None,
    ):
        """Remember a batch of keys: key i at sequence first_sequence + i, received on a day.

        flags: a byte for each; KEY_HASHED marks those that `hash_key_text` has replaced.
        Sequences only rise (ValueError); a day below the newest one counts as the newest.
        MemoryError leaves the keys before remembered. O(1) a key; growing moves one table of 256.
        """
        cdef Py_ssize_t i
        cdef uint32_t start = 0
        cdef Fingerprints *table
        cdef Entry entry
        check_batch(ends, blob, first_sequence)
        if flags is not None and flags.shape[0] != ends.shape[0]:
            raise ValueError("flags needs one byte per key")
        if first_sequence < self.next_sequence:
            raise ValueError(f"sequence {first_sequence} does not lie after all before")
        if self.dumping:
            raise RuntimeError("the keys are being dumped")
        self._sweep()
        if not ends.shape[0]:
            return
        cdef Day *bucket = self._bucket(day, first_sequence)
        for i in range(ends.shape[0]):
            if flags is not None and flags[i] & HASHED and ends[i] - start == HASHED_BYTES:
                memcpy(&entry.fingerprint, &blob[start], sizeof(uint64_t))
            else:
                entry.fingerprint = siphash_64(self.key, &blob[start], ends[i] - start)
            entry.sequence = first_sequence + i
            table = &self.tables[entry.fingerprint >> 56]
            if table.used >= room_of(table):
                self._resize(table, count_live(table, self.live_from))
            self._take(bucket, entry)
            self.next_sequence = entry.sequence + 1
            start = ends[i]

    def forget(self, int64_t day):
        """Forget all keys received on days before `day`, at once; memory follows bit by bit.

        O(days): the smallest live sequence is raised, and each later `add` sweeps one table.
        """
        cdef Py_ssize_t dropped = 0
        if self.dumping:
            raise RuntimeError("the keys are being dumped")
        while dropped < self.bucket_count and self.buckets[dropped].day < day:
            sum_subtract(&self.sum, self.buckets[dropped].sum)
            self.count -= self.buckets[dropped].count
            dropped += 1
        if not dropped:
            return
        self.bucket_count -= dropped
        memmove(self.buckets, self.buckets + dropped, self.bucket_count * sizeof(Day))
        self.live_from = self.buckets[0].first_sequence if self.bucket_count else (
            self.next_sequence)
        self.unswept = PARTS

    cdef int _find(self, uint64_t fingerprint, object found) except -1:
        """Call `found` with each live sequence of a fingerprint, in order."""
        cdef const Fingerprints *table = &self.tables[fingerprint >> 56]
        cdef uint32_t place, distance = 0
        if not table.size:
            return 0
        place = home_of(table, fingerprint)
        while goes_past(table, place, distance):
            if (table.entries[place].fingerprint == fingerprint
                    and table.entries[place].sequence >= self.live_from):
                found(table.entries[place].sequence)
            distance += 1
            place = next_place(table, place)
        return 0

    def find(self, bytes key not None):
        """Return the sequences, rising, at which a key may have been received. O(1)."""
        cdef list sequences = []
        self._find(siphash_64(self.key, <const uint8_t *>PyBytes_AS_STRING(key), len(key)),
                   sequences.append)
        return tuple(sequences)

    def find_all(self, const uint32_t[::1] ends, const uint8_t[::1] blob):
        """Return (index, sequence) of every candidate for a batch of keys, in order. O(n)."""
        cdef Py_ssize_t i
        cdef uint32_t start = 0
        cdef list pairs = [], sequences = []
        cdef object found = sequences.append
        cdef uint64_t *fingerprints
        check_batch(ends, blob, 1)
        fingerprints = <uint64_t *>malloc((ends.shape[0] + 1) * sizeof(uint64_t))
        if fingerprints == NULL:
            raise MemoryError
        try:
            for i in range(ends.shape[0]):
                fingerprints[i] = siphash_64(self.key, &blob[start], ends[i] - start)
                fetch_home(&self.tables[fingerprints[i] >> 56], fingerprints[i])
                start = ends[i]
            for i in range(ends.shape[0]):
                self._find(fingerprints[i], found)
                if sequences:
                    pairs.extend([(i, sequence) for sequence in sequences])
                    sequences.clear()
        finally:
            free(fingerprints)
        return pairs

    @property
    def digest(self):
        """The 16 bytes of the sum of keyed hashes of (fingerprint, sequence): equal for equals."""
        return (<const uint8_t *>&self.sum)[:16]

    @property
    def nbytes(self):
        """The bytes allocated, this object apart: at most 24 a key once some thousands are in."""
        cdef int part
        cdef uint64_t total = self.bucket_capacity * sizeof(Day)
        for part in range(PARTS):
            total += self.tables[part].size * sizeof(Entry)
        return total

    def dump(self):
        """Return [(column, bytes)] that `load` takes; copied without the GIL. O(n).

        Until it returns, a change by another thread is refused with RuntimeError.
        """
        cdef bytes entries = empty_column(self.count * sizeof(Entry))
        cdef Entry *to = <Entry *>PyBytes_AS_STRING(entries)
        cdef int part
        self.dumping += 1
        with nogil:
            for part in range(PARTS):
                to = copy_live(&self.tables[part], self.live_from, to)
        self.dumping -= 1
        days = (<const uint8_t *>self.buckets)[:self.bucket_count * sizeof(Day)]
        ends = (<const uint8_t *>&self.next_sequence)[:sizeof(int64_t)]
        return [("entries", entries), ("days", days), ("next", ends), ("digest", self.digest)]

    @classmethod
    def load(cls, columns, bytes hash_key):
        """Make the key set that a dump holds; ValueError if it is none or of another secret. O(n).

        columns is what `dump` returned, or a mapping of the same.
        """
        cdef KeySet keys = cls(hash_key)
        cdef dict parts = dict(columns)
        if set(parts) != {"entries", "days", "next", "digest"}:
            raise ValueError("the columns are not those of a dump of keys")
        keys._restore_days(parts["days"], parts["next"])
        keys._restore_entries(parts["entries"], parts["days"])
        if keys.digest != bytes(parts["digest"]):
            raise ValueError("the keys differ from their digest")
        return keys

    cdef int _restore_days(
        self, const uint8_t[::1] days, const uint8_t[::1] next_sequence
    ) except -1:
        cdef Py_ssize_t i
        cdef Day day
        cdef Day *bucket
        if days.shape[0] % sizeof(Day) or next_sequence.shape[0] != sizeof(int64_t):
            raise ValueError("a column's length is not that of its rows")
        for i in range(days.shape[0] // <Py_ssize_t>sizeof(Day)):
            memcpy(&day, &days[i * <Py_ssize_t>sizeof(Day)], sizeof(Day))
            if day.first_sequence < self.next_sequence or day.count < 0:
                raise ValueError("the days do not follow one another")
            if i and day.day <= self.buckets[i - 1].day:
                raise ValueError("the days do not rise")
            if day.first_sequence > INT64_MAX - day.count:
                raise ValueError("a day's sequences run out of range")
            self._bucket(day.day, day.first_sequence)[0] = day
            self.next_sequence = day.first_sequence + day.count
        memcpy(&day.first_sequence, &next_sequence[0], sizeof(int64_t))
        if day.first_sequence < self.next_sequence:
            raise ValueError("the next sequence lies before the last")
        self.next_sequence = day.first_sequence
        self.live_from = self.buckets[0].first_sequence if self.bucket_count else (
            self.next_sequence)
        return 0

    cdef Py_ssize_t _day_of(self, int64_t sequence) noexcept nogil:
        """Return the bucket of a live sequence."""
        cdef Py_ssize_t low = 0, high = self.bucket_count, middle
        while high - low > 1:
            middle = (low + high) // 2
            if self.buckets[middle].first_sequence <= sequence:
                low = middle
            else:
                high = middle
        return low

    cdef int _restore_entries(
        self, const uint8_t[::1] entries, const uint8_t[::1] days
    ) except -1:
        """Insert the entries into tables of their size; each day must sum up to what it was."""
        cdef uint64_t n = entries.shape[0] // sizeof(Entry), i
        cdef uint64_t counts[PARTS]
        cdef Py_ssize_t day
        cdef Entry entry
        cdef int part
        if entries.shape[0] % sizeof(Entry):
            raise ValueError("the entries are no whole number of entries")
        memset(counts, 0, sizeof(counts))
        for i in range(n):
            memcpy(&entry, &entries[i * sizeof(Entry)], sizeof(Entry))
            counts[entry.fingerprint >> 56] += 1
        for part in range(PARTS):
            if counts[part]:
                self._resize(&self.tables[part], counts[part])
        for day in range(self.bucket_count):
            self.buckets[day].count = 0
            memset(&self.buckets[day].sum, 0, sizeof(Hash128))
        for i in range(n):
            memcpy(&entry, &entries[i * sizeof(Entry)], sizeof(Entry))
            if not self.live_from <= entry.sequence < self.next_sequence:
                raise ValueError(f"sequence {entry.sequence} was received on none of the days")
            self._take(&self.buckets[self._day_of(entry.sequence)], entry)
        if self.bucket_count and memcmp(self.buckets, &days[0], days.shape[0]):
            raise ValueError("a day's keys differ from its count or digest")
        return 0

    def _check(self):
        """Assert every invariant. O(n)."""
        cdef const Fingerprints *table
        cdef Hash128 total
        cdef Entry entry
        cdef uint32_t place, before, used
        cdef int64_t live = 0
        cdef int part
        memset(&total, 0, sizeof(total))
        for part in range(PARTS):
            table, used = &self.tables[part], 0
            for place in range(table.size):
                entry = table.entries[place]
                if not entry.sequence:
                    continue
                used += 1
                before = (place or table.size) - 1
                assert <int>(entry.fingerprint >> 56) == part
                assert entry.sequence < self.next_sequence
                assert distance_at(table, place) <= (
                    distance_at(table, before) + 1 if table.entries[before].sequence else 0
                ), "no entry stands behind a gap, or behind one nearer to its home"
                if entry.sequence >= self.live_from:
                    live += 1
                    sum_add(&total, self._term(entry))
            assert used == table.used and used <= room_of(table)
            live_here = count_live(table, self.live_from)
            assert part < self.unswept or live_here == used, "what is swept is live"
        assert live == self.count == sum([self.buckets[i].count for i in range(self.bucket_count)])
        assert total.low == self.sum.low and total.high == self.sum.high, "the digest is kept"
        assert self.days == sorted(set(self.days)), "days rise"
        assert not self.bucket_count or self.buckets[0].first_sequence >= self.live_from
