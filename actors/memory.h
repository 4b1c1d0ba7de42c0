/* How arrays grow: by an eighth, in place where the allocator can; what is not yet touched of a
 * large array takes no memory. Large ones lie on huge pages: on small ones, what is read at random
 * misses the caches twice, once to find its page. */
#ifndef RANKNODE_MEMORY_H
#define RANKNODE_MEMORY_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096
#define HUGE_FROM_BYTES (4 << 20) /* below, half of an array may lie outside of any huge page */

/* The capacity to give an array that needs at least `wanted`. */
static inline uint64_t grown(uint64_t capacity, uint64_t wanted) {
    uint64_t larger = capacity + capacity / 8 + 8;
    return larger > wanted ? larger : wanted;
}

/* Ask for huge pages under a large array; a system that has none refuses, which changes nothing.
 * Whole pages are asked for, as the allocator has mapped them: a mapping in two parts, one with huge
 * pages, could not grow in place of being copied. */
static inline void advise_huge(void *array, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t start = (uintptr_t)array / PAGE_BYTES * PAGE_BYTES;
    uintptr_t end = ((uintptr_t)array + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (bytes >= HUGE_FROM_BYTES)
        (void)madvise((void *)start, end - start, MADV_HUGEPAGE);
#else
    (void)array;
    (void)bytes;
#endif
}

/* Give the whole pages inside an array back to the system, and with them what they hold. */
static inline void discard_pages(void *array, uint64_t bytes) {
    uintptr_t start = ((uintptr_t)array + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    uintptr_t end = ((uintptr_t)array + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (start < end)
        (void)madvise((void *)start, end - start, MADV_DONTNEED);
}

/* Resize the array that a pointer points to; false, and nothing lost, when memory is short. */
static inline int resize_array(void *pointer, uint64_t count, uint64_t size) {
    void *moved, *array;
    __builtin_memcpy(&array, pointer, sizeof(array));
    if (count > INT64_MAX / size || !(moved = realloc(array, count * size)))
        return 0;
    advise_huge(moved, count * size);
    __builtin_memcpy(pointer, &moved, sizeof(moved));
    return 1;
}

#endif
