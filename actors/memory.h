/* How arrays grow: by an eighth, in place where the allocator can; what is not yet touched of a
 * large array takes no memory. */
#ifndef RANKNODE_MEMORY_H
#define RANKNODE_MEMORY_H

#include <stdint.h>
#include <stdlib.h>

/* The capacity to give an array that needs at least `wanted`. */
static inline uint64_t grown(uint64_t capacity, uint64_t wanted) {
    uint64_t larger = capacity + capacity / 8 + 8;
    return larger > wanted ? larger : wanted;
}

/* Resize the array that a pointer points to; false, and nothing lost, when memory is short. */
static inline int resize_array(void *pointer, uint64_t count, uint64_t size) {
    void *moved, *array;
    __builtin_memcpy(&array, pointer, sizeof(array));
    if (count > INT64_MAX / size || !(moved = realloc(array, count * size)))
        return 0;
    __builtin_memcpy(pointer, &moved, sizeof(moved));
    return 1;
}

#endif
