# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The standings of one window: each member's score, and who stands where.

Owns a row per slot of `Members` (score keys, achieved_at, a byte of flags) and their order
(order.h); applies the aggregation and tie rules. Knows nothing of events, logs, decimals beyond
the digest, or time. 64-bit little-endian machines only.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

cdef dict AGGREGATIONS = {
    "best": AGGREGATE_BEST, "sum": AGGREGATE_SUM, "latest": AGGREGATE_LATEST
}
cdef set COLUMNS = {"rows", "flags", "order", "digest"}


cdef class Standings:
    """The ordered scores of one window over the slots of a board's `Members`.

    Standings(members, aggregation, directions, tie_rule, distinct=False, decimals=()):
    aggregation is 'best', 'sum' or 'latest'; directions hold 'asc' or 'desc' for each of 1 to 4
    score keys; tie_rule is 'earliest', 'latest' or 'member'; distinct counts distinct scores, for
    dense ranks; decimals (0 to 9 a key, all 0 if left out) only let the digest compare values
    rather than their scaled integers. A score is a tuple of int64, times are int64 microseconds.

    Change: `apply`, `remove`.
    A member: `in`, `score`, `achieved_at`, `index`.
    Places: `slot_at`, `page`, `better`, `better_distinct`, `place`, `seek`, `len()`.
    Compare and keep: `digest`, `dump`, `load`.
    Look inside: `magnitude`, `nbytes`, `_check`.

    n is the number of members standing. A change costs O(log n) comparisons and a move within one
    leaf of 512 slots, and now and then O(n / 512) for a split or merge.

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
        bint distinct=False, tuple decimals=(),
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

    def __dealloc__(self):
        free(self.order.rows)
        free(self.flags)
        order_free(&self.order)

    cdef void _look(self) noexcept nogil:
        """Take the names from where they are now: interning moves them."""
        self.order.arena = self.members.names.arena
        self.order.offsets = self.members.names.offsets

    cdef int _cover(self, uint64_t rows) except -1:
        """Have a row for each slot below `rows`; new ones are 0 and do not stand."""
        cdef uint64_t capacity = grown(self.capacity, rows), width = self.order.keys + 1
        if rows > self.capacity:
            if not (resize_array(&self.order.rows, capacity, width * sizeof(int64_t))
                    and resize_array(&self.flags, capacity, 1)):
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

    def __contains__(self, slot):
        cdef int64_t number = slot
        return 0 <= number < <int64_t>self.rows and bool(self.flags[number] & STANDS)

    cdef uint32_t _standing(self, slot) except? 0xffffffff:
        if slot not in self:
            raise KeyError(slot)
        self._look()
        return slot

    cdef tuple _score(self, uint32_t slot):
        cdef const int64_t *row = order_row(&self.order, slot)
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
        return order_leaf(&self.order, place.leaf)[place.offset] & SLOT_BITS

    def page(self, Py_ssize_t index, Py_ssize_t count):
        """Return (name, score, achieved_at) of up to `count` entries from a 0-based place on.

        O(log n + count); an index at the end gives none, a negative one ValueError.
        """
        cdef list entries = []
        cdef Place place
        cdef uint32_t slot
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
            slot = order_leaf(&self.order, place.leaf)[place.offset] & SLOT_BITS
            name = order_name(&self.order, slot, &size)
            entries.append((
                PyBytes_FromStringAndSize(<const char *>name, size),
                self._score(slot),
                order_row(&self.order, slot)[self.order.keys],
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
        cdef int keys = self.order.keys, outcome
        cdef int64_t row[WORDS_MAX]
        if values.shape[0] != n * keys or occurred_at.shape[0] != n:
            raise ValueError("each event needs a slot, a value per score key and a time")
        for i in range(n):
            if slots[i] < 0 or slots[i] >= <int64_t>self.members.count:
                raise IndexError(f"no member has slot {slots[i]}")
        if self.dumping:
            raise RuntimeError("the standings are being dumped")
        self._look()
        self._cover(self.members.count)
        if self.aggregation == AGGREGATE_SUM and not sums_fit(
            &self.order, self.largest, &slots[0], &values[0], n * keys
        ):
            raise OverflowError("a sum leaves the range of 64-bit integers")
        cdef bytes improved = PyBytes_FromStringAndSize(NULL, n)
        cdef char *out = PyBytes_AS_STRING(improved)
        for i in range(n):
            if i + 8 < n:
                order_fetch(&self.order, slots[i + 8], slots[i + 4])
            outcome = next_row(
                &self.order, self.aggregation, slots[i], self.flags + slots[i],
                &values[i * keys], occurred_at[i], row,
            )
            if outcome & CHANGED:
                self._move(slots[i], row)
            out[i] = (outcome & IMPROVED) != 0
        return improved

    cdef int _move(self, uint32_t slot, const int64_t *row) except -1:
        """Give a member its new row and place; room is made before anything changes."""
        if not order_reserve(&self.order, 1):
            raise MemoryError
        if self.flags[slot] & STANDS:
            sum_subtract(&self.sum, digest_term(&self.order, self.units, slot))
            order_remove(&self.order, slot)
        memcpy(order_row(&self.order, slot), row, (self.order.keys + 1) * sizeof(int64_t))
        self.flags[slot] |= STANDS
        order_insert(&self.order, slot)
        sum_add(&self.sum, digest_term(&self.order, self.units, slot))
        self.largest = largest_key(&self.order, row, self.largest)
        return 0

    def remove(self, slot):
        """Take a member out, as if it had no events; KeyError if it does not stand. O(log n)."""
        cdef uint32_t number = self._standing(slot)
        if self.dumping:
            raise RuntimeError("the standings are being dumped")
        sum_subtract(&self.sum, digest_term(&self.order, self.units, number))
        order_remove(&self.order, number)
        memset(order_row(&self.order, number), 0, (self.order.keys + 1) * sizeof(int64_t))
        self.flags[number] = 0

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
        return self.capacity * row + order_bytes(&self.order)

    def dump(self):
        """Return [(column, bytes)] that `load` takes; copied without the GIL. O(n).

        Until it returns, a change by another thread is refused with RuntimeError.
        """
        cdef size_t row = (self.order.keys + 1) * sizeof(int64_t), done = 0
        cdef bytes rows = PyBytes_FromStringAndSize(NULL, self.rows * row)
        cdef bytes flags = PyBytes_FromStringAndSize(NULL, self.rows)
        cdef bytes order = PyBytes_FromStringAndSize(NULL, self.order.members * 4)
        cdef char *rows_to = PyBytes_AS_STRING(rows)
        cdef char *flags_to = PyBytes_AS_STRING(flags)
        cdef uint32_t *order_to = <uint32_t *>PyBytes_AS_STRING(order)
        cdef uint32_t leaf, i
        self.dumping += 1
        with nogil:
            if self.rows:
                memcpy(rows_to, self.order.rows, self.rows * row)
                memcpy(flags_to, self.flags, self.rows)
            for leaf in range(self.order.leaf_count):
                for i in range(self.order.leaf_size[leaf]):
                    order_to[done + i] = order_leaf(&self.order, leaf)[i] & SLOT_BITS
                done += self.order.leaf_size[leaf]
        self.dumping -= 1
        return [("rows", rows), ("flags", flags), ("order", order), ("digest", self.digest)]

    @classmethod
    def load(
        cls, columns, members, aggregation, directions, tie_rule, distinct=False, decimals=()
    ):
        """Make the standings that a dump holds; ValueError if it is none, or not of these rules.

        columns is what `dump` returned, or a mapping of the same; the rest is what the
        constructor takes. Leaves are filled to nine tenths. O(n).
        """
        cdef Standings standings = cls(
            members, aggregation, directions, tie_rule, distinct, decimals)
        cdef dict parts = dict(columns)
        if set(parts) != COLUMNS:
            raise ValueError("the columns are not those of a dump of standings")
        standings._restore(parts["rows"], parts["flags"])
        standings._restore_order(parts["order"])
        if standings.digest != bytes(parts["digest"]):
            raise ValueError("the standings differ from their digest")
        return standings

    cdef int _restore(self, const uint8_t[::1] rows, const uint8_t[::1] flags) except -1:
        """Take over the rows, check each on its own, and sum up what the whole of them give."""
        cdef uint32_t slot
        cdef uint64_t count = flags.shape[0], row = 8 * <uint64_t>(self.order.keys + 1)
        if count > self.members.count:
            raise ValueError("there are more rows than members")
        if <uint64_t>rows.shape[0] != count * row:
            raise ValueError("a column's length is not that of its rows")
        self._look()
        self._cover(count)
        if count:
            memcpy(self.order.rows, &rows[0], count * row)
            memcpy(self.flags, &flags[0], count)
        for slot in range(self.rows):
            if not row_is_sound(&self.order, self.aggregation, slot, self.flags[slot]):
                raise ValueError(f"slot {slot} has flags that do not fit its score")
            if self.flags[slot] & STANDS:
                self.order.members += 1
                self.largest = largest_key(&self.order, order_row(&self.order, slot), self.largest)
                sum_add(&self.sum, digest_term(&self.order, self.units, slot))
        return 0

    cdef int _restore_order(self, const uint8_t[::1] order) except -1:
        """Fill the order: one that rises and has as many slots as stand has each of them once."""
        cdef uint64_t n = order.shape[0] // 4, i
        cdef uint32_t slot
        if n != self.order.members or order.shape[0] % 4:
            raise ValueError("the order has not one entry for each member standing")
        for i in range(n):
            memcpy(&slot, &order[i * 4], 4)
            if slot >= self.rows or not self.flags[slot] & STANDS:
                raise ValueError(f"the order names slot {slot}, which does not stand")
        if not order_reserve(&self.order, n // LEAF_LOADED + 1):
            raise MemoryError
        i = order_fill(&self.order, &order[0], n)
        if i < n:
            raise ValueError(f"entry {i} of the order is out of place")
        return 0

    def _check(self):
        """Assert every invariant. O(n)."""
        cdef Order *order = &self.order
        cdef Place place
        cdef uint32_t slot
        cdef uint64_t standing = 0
        cdef Hash128 total = Hash128(0, 0)
        self._look()
        assert self.rows <= self.capacity and self.rows <= self.members.count
        assert order.leaf_count <= min(order.block_count, order.leaf_capacity)
        assert len({order.leaf_block[place.leaf] for place.leaf in range(order.leaf_count)}) == (
            order.leaf_count), "no two leaves share a block"
        for slot in range(self.rows):
            standing += self.flags[slot] & STANDS
            assert row_is_sound(order, self.aggregation, slot, self.flags[slot])
            if self.flags[slot] & STANDS:
                sum_add(&total, digest_term(order, self.units, slot))
                assert self.slot_at(self.index(slot)) == slot, "an index leads back to its slot"
        assert standing == order.members and order_is_sound(order), "the order is one of slots"
        assert total.low == self.sum.low and total.high == self.sum.high, "the digest is kept"
