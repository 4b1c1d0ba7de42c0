/* A table from names to 32-bit slots: open addressing with linear probing.
 *
 * The names lie elsewhere, in an arena of length-prefixed bytes; a byte of each slot's hash, its
 * tag, stands in the table, so that a probe seldom has to look at a name. A tag of 0 is an empty
 * place. The top six bits of a hash choose among tables, the next 32 the place, the low 7 the
 * tag. */
#ifndef RANKNODE_NAME_TABLE_H
#define RANKNODE_NAME_TABLE_H

#include <stdlib.h>

#include "siphash.h"

/* `size` slots and behind them, in the same allocation, `size` tags. */
typedef struct {
    uint32_t *slots;
    uint8_t *tags;
    uint32_t size, used;
} NameTable;

/* Where the names are, and the secret they are hashed with. */
typedef struct {
    uint8_t *arena;
    uint32_t *offsets;
    uint8_t key[16];
} Names;

static inline uint32_t place_of(const NameTable *t, uint64_t hashed) {
    return bucket_of((uint32_t)(hashed >> 26), t->size);
}

static inline uint8_t tag_of(uint64_t hashed) {
    return (uint8_t)hashed | 0x80;
}

/* Tell whether one more name keeps the load within 0.8. */
static inline int has_room(const NameTable *t) {
    return ((uint64_t)t->used + 1) * 5 <= (uint64_t)t->size * 4;
}

/* The slot of a name, or -1. */
static inline int64_t find_name(const NameTable *t, const Names *names, const uint8_t *name,
                                size_t size, uint64_t hashed) {
    if (!t->size)
        return -1;
    for (uint32_t place = place_of(t, hashed); t->tags[place];) {
        if (t->tags[place] == tag_of(hashed)) {
            const uint8_t *stored = names->arena + names->offsets[t->slots[place]];
            if (stored[0] == size && !memcmp(stored + 1, name, size))
                return t->slots[place];
        }
        place = place + 1 < t->size ? place + 1 : 0;
    }
    return -1;
}

/* Put a slot whose name is not in the table where there is room. */
static inline void place_name(NameTable *t, uint32_t slot, uint64_t hashed) {
    uint32_t place = place_of(t, hashed);
    while (t->tags[place])
        place = place + 1 < t->size ? place + 1 : 0;
    t->slots[place] = slot;
    t->tags[place] = tag_of(hashed);
    t->used++;
}

/* Take out a slot that is in the table. What was pushed behind it moves up, as far as its own place
 * (Knuth, The Art of Computer Programming 3, 6.4, Algorithm R): no mark of it is left. */
static inline void take_name(NameTable *t, const Names *names, uint32_t slot, uint64_t hashed) {
    uint32_t hole = place_of(t, hashed);
    while (!t->tags[hole] || t->slots[hole] != slot)
        hole = hole + 1 < t->size ? hole + 1 : 0;
    for (uint32_t place = hole;;) {
        place = place + 1 < t->size ? place + 1 : 0;
        if (!t->tags[place])
            break;
        const uint8_t *stored = names->arena + names->offsets[t->slots[place]];
        uint32_t home = place_of(t, siphash_64(names->key, stored + 1, stored[0]));
        uint32_t from_home = place >= home ? place - home : place + t->size - home;
        uint32_t from_hole = place >= hole ? place - hole : place + t->size - hole;
        if (from_home >= from_hole) {
            t->slots[hole] = t->slots[place];
            t->tags[hole] = t->tags[place];
            hole = place;
        }
    }
    t->tags[hole] = 0;
    t->used--;
}

/* Fetch ahead the place of a hash, so that the cache misses of a batch overlap. */
static inline void fetch_place(const NameTable *t, uint64_t hashed) {
    if (t->size) {
        __builtin_prefetch(t->tags + place_of(t, hashed));
        __builtin_prefetch(t->slots + place_of(t, hashed));
    }
}

/* Move the slots into a table of another size; false, and nothing lost, when memory is short.
 * Their names lie scattered and have to be hashed again: they are fetched ahead, in two steps. */
static inline int resize_table(NameTable *t, const Names *names, uint32_t size) {
    uint8_t *memory = calloc(size, sizeof(uint32_t) + 1);
    if (!memory)
        return 0;
    NameTable fresh = {(uint32_t *)memory, memory + (size_t)size * sizeof(uint32_t), size, 0};
    for (uint32_t i = 0; i < t->size; i++) {
        if (i + 16 < t->size && t->tags[i + 16])
            __builtin_prefetch(names->offsets + t->slots[i + 16]);
        if (i + 8 < t->size && t->tags[i + 8])
            __builtin_prefetch(names->arena + names->offsets[t->slots[i + 8]]);
        if (t->tags[i]) {
            const uint8_t *stored = names->arena + names->offsets[t->slots[i]];
            place_name(&fresh, t->slots[i], siphash_64(names->key, stored + 1, stored[0]));
        }
    }
    free(t->slots);
    *t = fresh;
    return 1;
}

#endif
