# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The standings of one window: each member's score, and who stands where.

Owns rows (score keys, achieved_at, a byte of flags) and their order (order.h); applies the
aggregation and tie rules. There is a row for each slot of `Members`, or in sparse standings, of
windows that hold a part of the members, one for each member standing and a map from slots to rows
(slot_map.h). Knows nothing of events, logs, decimals beyond the digests, or time. 64-bit
little-endian machines only.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

cdef dict AGGREGATIONS = {
    "best": AGGREGATE_BEST, "sum": AGGREGATE_SUM, "latest": AGGREGATE_LATEST
}
cdef set COLUMNS = {"rows", "flags", "order", "digest"}
cdef int64_t NO_ROW = -1


cdef class Standings:
    """The ordered scores of one window over the slots of a board's `Members`.

    Standings(members, aggregation, directions, tie_rule, distinct=False, decimals=(),
    sparse=False): aggregation is 'best', 'sum' or 'latest'; directions hold 'asc' or 'desc' for
    each of 1 to 4 score keys; tie_rule is 'earliest', 'latest' or 'member'; distinct counts
    distinct scores, for dense ranks; decimals (0 to 9 a key, all 0 if left out) only let the digest
    compare values rather than their scaled integers; sparse standings take memory for the members
    standing only, 9 to 12 bytes more for each of those, and answer the same. A score is a tuple of
    int64, times are int64 microseconds.

    Change: `apply`, `put`, `remove`.
    A member: `in`, `score`, `achieved_at`, `row`, `index`.
    Places: `slot_at`, `page`, `better`, `better_distinct`, `place`, `seek`, `len()`.
    Compare and keep: `digest`, `dump`, `load`.
    Seal: `listing`, and the functions `from_listing` and `listing_digest`.
    Look inside: `magnitude`, `nbytes`, `_check`.

    n is the number of members standing. A change costs O(log n) comparisons and a move within one
    leaf of 512 entries, and now and then O(n / 512) for a split or merge.

    >>> from array import array
    >>> from actors.members import Members
    >>> members = Members(bytes(16))
    >>> standings = Standings(members, "sum", ("desc",), "earliest")
    >>> ends, blob = array("I", [3, 6, 9]), b"annbobann"
    >>> slots = members.record(ends, blob, members.plan(ends, blob, 1), 1)
    >>> standings.apply(slots, array("q", [5, 7, 5]), array("q", [100, 200, 300]))
    b'\\x01\\x01\\x01'
    >>> standings.page(0, 10)
    [(b'ann', (10,), 300), (b'bob', (7,), 200)]
    >>> standings.index(members.find(b"bob")), standings.place((7,)), standings.better((7,))
    (1, 2, 1)
    """

    def __cinit__(
        self, Members members not None, str aggregation, tuple directions, str tie_rule,
        bint distinct=False, tuple decimals=(), bint sparse=False,
    ):
        cdef int i
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"no aggregation {aggregation!r}")
        if tie_rule not in ("earliest", "latest", "member"):
            raise ValueError(f"no tie rule {tie_rule!r}")
        if not 1 <= len(directions) <= 4 or not set(directions) <= {"asc", "desc"}:
            raise ValueError("directions are 1 to 4 of 'asc' and 'desc'")
        if not decimals:
            decimals = (0,) * len(directions)
        if len(decimals) != len(directions) or not set(decimals) <= set(range(10)):
            raise ValueError("decimals are 0 to 9 for each score key")
        self.members = members
        self.aggregation = AGGREGATIONS[aggregation]
        self.latest_first = tie_rule == "latest"
        self.order.keys = len(directions)
        self.order.words = self.order.keys + (tie_rule != "member")
        self.order.runs = distinct
        self.order.block_free = NO_BLOCK
        for i in range(self.order.keys):
            self.order.masks[i] = -(directions[i] == "desc")
            self.units[i] = 10 ** decimals[i]
        self.order.masks[self.order.keys] = -self.latest_first
        if sparse:
            self.map = <SlotMap *>calloc(1, sizeof(SlotMap))
            if self.map == NULL:
                raise MemoryError
            memcpy(&self.map.secret, members.names.key, sizeof(self.map.secret))

    def __dealloc__(self):
        map_free(self.map)
        free(self.order.slots)
        free(self.order.rows)
        free(self.flags)
        order_free(&self.order)

    cdef void _look(self) noexcept nogil:
        """Take the names from where they are now: interning moves them."""
        self.order.arena = self.members.names.arena
        self.order.offsets = self.members.names.offsets

    cdef int _cover(self, uint64_t rows) except -1:
        """Have so many rows; new ones are 0 and do not stand."""
        cdef uint64_t capacity = grown(self.capacity, rows), width = self.order.keys + 1
        if rows > self.capacity:
            if not (resize_array(&self.order.rows, capacity, width * sizeof(int64_t))
                    and resize_array(&self.flags, capacity, 1)
                    and (self.map == NULL
                         or resize_array(&self.order.slots, capacity, sizeof(uint32_t)))):
                raise MemoryError
            self.capacity = capacity
        if rows > self.rows:
            memset(self.order.rows + self.rows * width, 0,
                   (rows - self.rows) * width * sizeof(int64_t))
            memset(self.flags + self.rows, 0, rows - self.rows)
            self.rows = rows
        return 0

    def __len__(self):
        return self.order.members

    cdef int64_t _find(self, int64_t slot) noexcept nogil:
        """Return the row of a member that stands, or NO_ROW."""
        if self.map != NULL:
            return map_row(self.map, self.order.slots, slot) if 0 <= slot <= ENTRY_BITS else NO_ROW
        return slot if 0 <= slot < <int64_t>self.rows and self.flags[slot] & STANDS else NO_ROW

    def __contains__(self, slot):
        return self._find(slot) != NO_ROW

    cdef uint32_t _standing(self, slot) except? 0xffffffff:
        cdef int64_t entry = self._find(slot)
        if entry == NO_ROW:
            raise KeyError(slot)
        self._look()
        return entry

    cdef tuple _score(self, uint32_t entry):
        cdef const int64_t *row = order_row(&self.order, entry)
        return tuple([row[i] for i in range(self.order.keys)])

    def score(self, slot):
        """Return a member's score; KeyError if it does not stand. O(1)."""
        return self._score(self._standing(slot))

    def achieved_at(self, slot):
        """Return when a member's score was achieved; KeyError if it does not stand. O(1)."""
        return order_row(&self.order, self._standing(slot))[self.order.keys]

    def index(self, slot):
        """Return a member's 0-based place; KeyError if it does not stand. O(log n)."""
        return order_index(&self.order, order_find(&self.order, self._standing(slot)))

    def slot_at(self, Py_ssize_t index):
        """Return the slot at a 0-based place; IndexError if there is none. O(log n)."""
        if not 0 <= index < <Py_ssize_t>self.order.members:
            raise IndexError(f"no entry has index {index}")
        cdef Place place = order_select(&self.order, index)
        return order_slot(
            &self.order, order_leaf(&self.order, place.leaf)[place.offset] & ENTRY_BITS)

    def page(self, Py_ssize_t index, Py_ssize_t count):
        """Return (name, score, achieved_at) of up to `count` entries from a 0-based place on.

        O(log n + count); an index at the end gives none, a negative one ValueError.
        """
        cdef list entries = []
        cdef Place place
        cdef uint32_t entry
        cdef size_t size
        cdef const uint8_t *name
        if index < 0 or count < 0:
            raise ValueError("an index and a count are not negative")
        if index >= <Py_ssize_t>self.order.members:
            return entries
        self._look()
        place = order_select(&self.order, index)
        for _ in range(min(count, <Py_ssize_t>self.order.members - index)):
            if place.offset == self.order.leaf_size[place.leaf]:
                place.leaf, place.offset = place.leaf + 1, 0
            entry = order_leaf(&self.order, place.leaf)[place.offset] & ENTRY_BITS
            name = order_name(&self.order, entry, &size)
            entries.append((
                PyBytes_FromStringAndSize(<const char *>name, size),
                self._score(entry),
                order_row(&self.order, entry)[self.order.keys],
            ))
            place.offset += 1
        return entries

    cdef Probe _probe(self, tuple score, int after_equals) except *:
        """Return what to look for to find the place before or after all entries with a score."""
        cdef Probe probe
        cdef int i
        cdef int64_t key
        if len(score) != self.order.keys:
            raise ValueError(f"a score has {self.order.keys} keys")
        for i in range(self.order.keys):
            key = score[i]
            probe.words[i] = key ^ self.order.masks[i]
        probe.count, probe.name, probe.name_size = self.order.keys, NULL, 0
        probe.after_equals = after_equals
        return probe

    def better(self, tuple score not None):
        """Return how many entries have a better score: the competition rank - 1. O(log n)."""
        cdef Probe probe = self._probe(score, False)
        return order_index(&self.order, order_search(&self.order, &probe))

    def better_distinct(self, tuple score not None):
        """Return how many distinct scores are better: the dense rank - 1. O(log n).

        ValueError where distinct scores are not counted.
        """
        if not self.order.runs:
            raise ValueError("distinct scores are not counted here")
        cdef Probe probe = self._probe(score, False)
        return order_runs(&self.order, order_search(&self.order, &probe))

    def place(self, tuple score not None):
        """Return the index at which a new member with that score, achieved now, would stand.

        That is after its equals, or before them where the latest stands first. O(log n).
        """
        cdef Probe probe = self._probe(score, not self.latest_first)
        return order_index(&self.order, order_search(&self.order, &probe))

    def seek(self, tuple score not None, int64_t achieved_at, bytes name not None):
        """Return the index of the first entry after that key; its member need not stand. O(log n).

        What a cursor needs: the entry itself, should it still stand there, is passed.
        """
        cdef Probe probe = self._probe(score, True)
        probe.words[self.order.keys] = achieved_at ^ self.order.masks[self.order.keys]
        probe.count = self.order.words
        probe.name, probe.name_size = <const uint8_t *>PyBytes_AS_STRING(name), len(name)
        self._look()
        return order_index(&self.order, order_search(&self.order, &probe))

    def apply(
        self, const int[::1] slots, const int64_t[::1] values, const int64_t[::1] occurred_at
    ):
        """Count a batch of events in order; return a byte for each: 1 if it improved the score.

        values holds the score keys of each event in a row. An event improves when the member's
        score is now better than before, by the directions, or is its first. OverflowError, and
        nothing is changed, when a sum would leave int64; MemoryError leaves the events before
        counted. O(log n) an event.
        """
        cdef Py_ssize_t i, n = slots.shape[0]
        cdef bytes improved
        cdef int *rows
        if values.shape[0] != n * self.order.keys or occurred_at.shape[0] != n:
            raise ValueError("each event needs a slot, a value per score key and a time")
        for i in range(n):
            if slots[i] < 0 or slots[i] >= <int64_t>self.members.count:
                raise IndexError(f"no member has slot {slots[i]}")
        if self.dumping:
            raise RuntimeError("the standings are being dumped")
        self._look()
        improved = PyBytes_FromStringAndSize(NULL, n)
        if self.map == NULL:
            self._cover(self.members.count)
            self._count(&slots[0], n, &values[0], &occurred_at[0], PyBytes_AS_STRING(improved))
            return improved
        rows = <int *>malloc((n + 1) * sizeof(int))
        if rows == NULL:
            raise MemoryError
        try:
            if not map_rows(self.map, self.order.slots, &slots[0], n, rows):
                self._admit(&slots[0], n, rows)
            self._count(rows, n, &values[0], &occurred_at[0], PyBytes_AS_STRING(improved))
        finally:
            free(rows)
            while self.rows and not self.flags[self.rows - 1] & STANDS:
                self._release(self.rows - 1)
        return improved

    cdef int _admit(self, const int *slots, Py_ssize_t n, int *rows) except -1:
        """Give each slot of a batch that has no row the next one."""
        cdef Py_ssize_t i
        for i in range(n):
            if rows[i] < 0:
                rows[i] = <int>map_row(self.map, self.order.slots, slots[i])
            if rows[i] < 0:
                if not map_reserve(self.map, self.order.slots, slots[i]):
                    raise MemoryError
                rows[i] = <int>self.rows
                self._cover(self.rows + 1)
                self.order.slots[rows[i]] = slots[i]
                map_add(self.map, slots[i], rows[i])
        return 0

    cdef void _release(self, uint32_t entry) noexcept nogil:
        """Give up a row of sparse standings that no longer stands; the last takes its number."""
        cdef uint32_t last = <uint32_t>self.rows - 1
        map_drop(self.map, self.order.slots, self.order.slots[entry])
        if entry != last:
            map_cell(self.map, self.order.slots, self.order.slots[last])[0] = entry + 1
            order_renumber(&self.order, last, entry)
            self.flags[entry] = self.flags[last]
        self.rows = last

    cdef int _count(
        self, const int *rows, Py_ssize_t n, const int64_t *values, const int64_t *occurred_at,
        char *improved,
    ) except -1:
        """Count events of members whose rows are known, as `apply` says."""
        cdef Py_ssize_t i
        cdef int keys = self.order.keys, outcome
        cdef int64_t row[WORDS_MAX]
        if self.aggregation == AGGREGATE_SUM and not sums_fit(
            &self.order, self.largest, rows, values, n * keys
        ):
            raise OverflowError("a sum leaves the range of 64-bit integers")
        for i in range(n):
            if i + 8 < n:
                order_fetch(&self.order, rows[i + 8], rows[i + 4])
            outcome = next_row(
                &self.order, self.aggregation, rows[i], self.flags + rows[i],
                values + i * keys, occurred_at[i], row,
            )
            if outcome & CHANGED:
                self._move(rows[i], row)
            improved[i] = (outcome & IMPROVED) != 0
        return 0

    cdef int _move(self, uint32_t entry, const int64_t *row) except -1:
        """Give a member its new row and place; room is made before anything changes."""
        if not order_reserve(&self.order, 1):
            raise MemoryError
        if self.flags[entry] & STANDS:
            sum_subtract(&self.sum, digest_term(&self.order, self.units, entry))
            order_remove(&self.order, entry)
        memcpy(order_row(&self.order, entry), row, (self.order.keys + 1) * sizeof(int64_t))
        self.flags[entry] |= STANDS
        order_insert(&self.order, entry)
        sum_add(&self.sum, digest_term(&self.order, self.units, entry))
        self.largest = largest_key(&self.order, row, self.largest)
        return 0

    def row(self, slot):
        """Return (score, achieved_at, flags), all that is kept of a member; None if it does not
        stand. O(1).

        What flags mean stands in scores.h; `put` takes them back.
        """
        cdef int64_t entry = self._find(slot)
        if entry == NO_ROW:
            return None
        return self._score(entry), order_row(&self.order, entry)[self.order.keys], self.flags[entry]

    def put(self, int slot, tuple score not None, int64_t achieved_at, int flags):
        """Let a member stand with a row that `row` returned, in place of its own if it has one.

        ValueError for a row that cannot be one. O(log n).
        """
        cdef int64_t row[WORDS_MAX]
        cdef int i, entry
        if len(score) != self.order.keys or not 0 <= slot < <int64_t>self.members.count:
            raise ValueError(f"a row has {self.order.keys} score keys and a member's slot")
        for i in range(self.order.keys):
            row[i] = score[i]
        row[self.order.keys] = achieved_at
        if not row_fits(&self.order, self.aggregation, row, flags):
            raise ValueError("the flags do not fit the score")
        if self.dumping:
            raise RuntimeError("the standings are being dumped")
        self._look()
        entry = <int>self._find(slot)
        if self.map == NULL:
            self._cover(self.members.count)
            entry = slot
        elif entry < 0:
            self._admit(&slot, 1, &entry)
        try:
            self._move(entry, row)
        except BaseException:
            if self.map != NULL and not self.flags[entry] & STANDS:
                self._release(entry)
            raise
        self.flags[entry] = flags

    def remove(self, slot):
        """Take a member out, as if it had no events; KeyError if it does not stand. O(log n)."""
        cdef uint32_t entry = self._standing(slot)
        if self.dumping:
            raise RuntimeError("the standings are being dumped")
        sum_subtract(&self.sum, digest_term(&self.order, self.units, entry))
        order_remove(&self.order, entry)
        if self.map != NULL:
            self._release(entry)
        else:
            memset(order_row(&self.order, entry), 0, (self.order.keys + 1) * sizeof(int64_t))
            self.flags[entry] = 0

    @property
    def digest(self):
        """The 16 bytes of the sum of hashes of (name, score, achieved_at): equal for equals."""
        return (<const uint8_t *>&self.sum)[:16]

    @property
    def magnitude(self):
        """An upper bound of the size of any key of any score held since made or loaded."""
        return self.largest

    @property
    def nbytes(self):
        """The bytes allocated, this object and the members apart."""
        cdef uint64_t row = 8 * <uint64_t>(self.order.keys + 1) + 1
        if self.map == NULL:
            return self.capacity * row + order_bytes(&self.order)
        return self.capacity * (row + 4) + order_bytes(&self.order) + map_bytes(self.map)

    def dump(self):
        """Return [(column, bytes)] that `load` takes; copied without the GIL. O(n).

        Until it returns, a change by another thread is refused with RuntimeError.
        """
        return copy_columns(self)

    def listing(self):
        """Return [(column, bytes)] in rank order that `from_listing` takes. O(n).

        What the columns hold stands in listing.h. Until it returns, a change of these standings by
        another thread is refused with RuntimeError; their members may go on growing, and other
        standings changing: rows are copied without the GIL, names under it, because interning
        moves them, in slices of 2,048 entries (a fraction of a millisecond each).
        """
        return list_entries(self)

    @classmethod
    def load(
        cls, columns, members, aggregation, directions, tie_rule, distinct=False, decimals=(),
        sparse=False,
    ):
        """Make the standings that a dump holds; ValueError if it is none, or not of these rules.

        columns is what `dump` returned, or a mapping of the same; the rest is what the
        constructor takes. Leaves are filled to nine tenths. Until it returns, a change of the
        members by another thread is refused with RuntimeError. O(n).
        """
        cdef Standings standings = cls(
            members, aggregation, directions, tie_rule, distinct, decimals, sparse)
        cdef dict parts = dict(columns)
        cdef const uint8_t[::1] order
        if set(parts) != (COLUMNS | {"slots"} if sparse else COLUMNS):
            raise ValueError("the columns are not those of a dump of such standings")
        order = parts["order"]
        restore(standings, parts["rows"], parts["flags"], parts.get("slots", b""),
                &order[0], order.shape[0])
        if standings.digest != bytes(parts["digest"]):
            raise ValueError("the standings differ from their digest")
        return standings

    def _check(self):
        """Assert every invariant. O(n)."""
        cdef Order *order = &self.order
        cdef Place place
        cdef uint32_t entry, slot
        cdef uint64_t standing = 0
        cdef Hash128 total = Hash128(0, 0)
        self._look()
        assert self.rows <= self.capacity and self.rows <= self.members.count
        assert order.leaf_count <= min(order.block_count, order.leaf_capacity)
        assert len({order.leaf_block[place.leaf] for place.leaf in range(order.leaf_count)}) == (
            order.leaf_count), "no two leaves share a block"
        if self.map:
            assert self.rows == order.members, "each row stands"
            assert map_is_sound(self.map, order.slots, self.rows), "each slot leads to its row"
        for entry in range(self.rows):
            standing += self.flags[entry] & STANDS
            assert row_is_sound(order, self.aggregation, entry, self.flags[entry])
            if self.flags[entry] & STANDS:
                slot = order_slot(order, entry)
                assert slot < self.members.count
                sum_add(&total, digest_term(order, self.units, entry))
                assert self.slot_at(self.index(slot)) == slot, "an index leads back to its slot"
        assert standing == order.members and order_is_sound(order), "the order is one of entries"
        assert total.low == self.sum.low and total.high == self.sum.high, "the digest is kept"


include "dump.pxi"
include "listing.pxi"
