from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "siphash.h" nogil:
    ctypedef struct Hash128:
        uint64_t low
        uint64_t high

    uint64_t siphash_64(const uint8_t *key, const uint8_t *data, size_t size)
    Hash128 siphash_128(const uint8_t *key, const uint8_t *data, size_t size)
    void sum_add(Hash128 *sum, Hash128 term)
    void sum_subtract(Hash128 *sum, Hash128 term)


cdef extern from "memory.h" nogil:
    uint64_t grown(uint64_t capacity, uint64_t wanted)
    int resize_array(void *pointer, uint64_t count, uint64_t size)
    void advise_huge(void *array, uint64_t bytes)
    void discard_pages(void *array, uint64_t bytes)


cdef inline bytes empty_column(uint64_t size):
    """Return so many bytes for the caller to fill: touched first by a copy, huge pages halve it."""
    cdef bytes column = PyBytes_FromStringAndSize(NULL, size)
    advise_huge(PyBytes_AS_STRING(column), size)
    return column


cdef extern from "name_table.h" nogil:
    ctypedef struct NameTable:
        uint32_t *slots
        uint8_t *tags
        uint32_t size
        uint32_t used

    ctypedef struct Names:
        uint8_t *arena
        uint32_t *offsets
        uint8_t key[16]

    int has_room(const NameTable *table)
    int64_t find_name(
        const NameTable *table, const Names *names, const uint8_t *name, size_t size,
        uint64_t hashed,
    )
    void place_name(NameTable *table, uint32_t slot, uint64_t hashed)
    void take_name(NameTable *table, const Names *names, uint32_t slot, uint64_t hashed)
    void fetch_place(const NameTable *table, uint64_t hashed)
    int resize_table(NameTable *table, const Names *names, uint32_t size)


cdef int check_batch(
    const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence
) except -1


cdef class Members:
    cdef Names names
    cdef int64_t *heads
    cdef uint32_t count
    cdef uint64_t arena_used, arena_capacity, capacity
    cdef NameTable tables[64]
    cdef Hash128 sum
    cdef int dumping

    cdef int64_t _lookup(self, const uint8_t *name, size_t size, uint64_t hashed) noexcept nogil
    cdef int _reserve(self, uint64_t members, uint64_t name_bytes) except -1
    cdef int64_t _intern(
        self, const uint8_t *name, size_t size, uint64_t hashed, int64_t head
    ) except -1
    cdef uint32_t _append(
        self, const uint8_t *name, size_t size, uint64_t hashed, int64_t head
    ) noexcept nogil
    cdef void _plan(
        self, const uint32_t[::1] ends, const uint8_t[::1] blob, int64_t first_sequence,
        uint64_t *hashes, uint32_t *seen, uint64_t mask, int64_t *previous,
        uint64_t *new_members, uint64_t *new_bytes,
    ) noexcept nogil
    cdef int _restore(self, const uint8_t[::1] names, const uint8_t[::1] heads) except -1
    cdef Hash128 _term(self, uint32_t slot) noexcept nogil
