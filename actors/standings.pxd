from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from actors.members cimport (
    Hash128,
    Members,
    Names,
    empty_column,
    grown,
    resize_array,
    sum_add,
    sum_subtract,
)


cdef extern from "order.h" nogil:
    enum:
        WORDS_MAX
        ENTRY_BITS

    ctypedef struct Order:
        int64_t *rows
        uint32_t *slots
        const uint8_t *arena
        const uint32_t *offsets
        int keys
        int words
        int runs
        int64_t masks[WORDS_MAX]
        uint64_t members
        uint32_t block_count
        uint32_t block_capacity
        uint32_t block_free
        uint32_t leaf_count
        uint32_t leaf_capacity
        uint32_t *leaf_block
        uint32_t *leaf_size
        uint32_t *leaf_runs
        uint32_t *size_tree
        uint32_t *run_tree
        int64_t *leaf_first

    ctypedef struct Probe:
        int64_t words[WORDS_MAX]
        int count
        const uint8_t *name
        size_t name_size
        int after_equals

    ctypedef struct Place:
        uint32_t leaf
        uint32_t offset

    uint32_t order_slot(const Order *order, uint32_t entry)
    int64_t *order_row(const Order *order, uint32_t entry)
    const uint8_t *order_name(const Order *order, uint32_t entry, size_t *size)
    uint32_t *order_leaf(const Order *order, uint32_t leaf)
    void order_fetch(const Order *order, uint32_t soon, uint32_t sooner)
    Place order_search(const Order *order, const Probe *probe)
    Place order_find(const Order *order, uint32_t entry)
    uint64_t order_index(const Order *order, Place place)
    uint64_t order_runs(const Order *order, Place place)
    Place order_select(const Order *order, uint64_t index)


cdef extern from "order_change.h" nogil:
    enum:
        LEAF_LOADED
        NO_BLOCK

    int order_reserve(Order *order, uint64_t leaves)
    uint64_t order_bytes(const Order *order)
    void order_free(Order *order)
    void order_insert(Order *order, uint32_t entry)
    void order_remove(Order *order, uint32_t entry)
    void order_renumber(Order *order, uint32_t entry, uint32_t number)
    int order_is_sound(const Order *order)
    uint32_t listed_entry(const uint8_t *order, uint64_t index)
    uint64_t order_fill(Order *order, const uint8_t *entries, uint64_t n)


cdef extern from "scores.h" nogil:
    enum:
        AGGREGATE_BEST
        AGGREGATE_SUM
        AGGREGATE_LATEST
        STANDS
        CHANGED
        IMPROVED

    int next_row(
        const Order *order, int aggregation, uint32_t entry, uint8_t *flags, const int64_t *value,
        int64_t occurred_at, int64_t *row,
    )
    int sums_fit(
        const Order *order, uint64_t largest, const int *entries, const int64_t *values,
        size_t count,
    )
    int row_fits(const Order *order, int aggregation, const int64_t *row, uint8_t flags)
    int row_is_sound(const Order *order, int aggregation, uint32_t entry, uint8_t flags)
    uint64_t largest_key(const Order *order, const int64_t *row, uint64_t largest)
    Hash128 digest_term(const Order *order, const int64_t *units, uint32_t entry)


cdef extern from "slot_map.h" nogil:
    ctypedef struct SlotMap:
        uint64_t secret

    uint32_t *map_cell(SlotMap *slot_map, const uint32_t *slots, uint32_t slot)
    int64_t map_row(SlotMap *slot_map, const uint32_t *slots, uint32_t slot)
    int map_rows(
        SlotMap *slot_map, const uint32_t *slots, const int *batch, size_t n, int *rows
    )
    int map_reserve(SlotMap *slot_map, const uint32_t *slots, uint32_t slot)
    void map_add(SlotMap *slot_map, uint32_t slot, uint32_t row)
    void map_drop(SlotMap *slot_map, const uint32_t *slots, uint32_t slot)
    uint64_t map_bytes(const SlotMap *slot_map)
    void map_free(SlotMap *slot_map)
    int map_is_sound(SlotMap *slot_map, const uint32_t *slots, uint64_t rows)


cdef extern from "listing.h" nogil:
    enum:
        NAME_MAX_BYTES
        TEXT_MAX_BYTES

    ctypedef struct Listing:
        const uint8_t *ends
        const uint8_t *names
        const uint8_t *rows
        const uint8_t *flags
        uint64_t entries
        uint64_t names_size

    int names_are_sound(const Listing *listing)
    void names_with_lengths(const Listing *listing, uint8_t *to)
    size_t listing_text(
        const Listing *listing, const int64_t *units, int keys, uint64_t entry, uint64_t count,
        uint8_t *text,
    )
    void list_rows(
        const Order *order, const uint8_t *flags, Place *place, uint32_t count, int64_t *rows_to,
        uint8_t *flags_to, uint32_t *slots_to,
    )
    uint64_t list_names(
        const Names *names, const uint32_t *slots, uint32_t count, uint8_t *blob, uint64_t end,
        uint32_t *ends_to,
    )


cdef class Standings:
    cdef Members members
    cdef Order order
    cdef SlotMap *map
    cdef uint8_t *flags
    cdef uint64_t rows, capacity
    cdef int aggregation, latest_first, dumping
    cdef int64_t units[WORDS_MAX]
    cdef uint64_t largest
    cdef Hash128 sum

    cdef int _cover(self, uint64_t rows) except -1
    cdef void _look(self) noexcept nogil
    cdef int64_t _find(self, int64_t slot) noexcept nogil
    cdef int _admit(self, const int *slots, Py_ssize_t n, int *rows) except -1
    cdef void _release(self, uint32_t entry) noexcept nogil
    cdef int _count(
        self, const int *rows, Py_ssize_t n, const int64_t *values, const int64_t *occurred_at,
        char *improved,
    ) except -1
    cdef int _move(self, uint32_t entry, const int64_t *row) except -1
    cdef uint32_t _standing(self, slot) except? 0xffffffff
    cdef Probe _probe(self, tuple score, int after_equals) except *
    cdef tuple _score(self, uint32_t entry)
