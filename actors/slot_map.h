/* The map of a sparse window, from slots of `Members` to its own rows.
 *
 * A row's slot stands in an array of the window; here are tables back from slots to rows: open
 * addressing with linear probing over row numbers plus 1, 0 being an empty place. A slot is looked
 * up by comparing it with the slots of the rows found. There are 64 tables, chosen by the top bits
 * of the hash, that grow one at a time, by a quarter, so that growing never holds up the board for
 * long. Slots are hashed with a secret, so that whoever chooses who plays cannot choose collisions.
 *
 * Taking one out shifts back those that follow it (D. E. Knuth, "The Art of Computer Programming",
 * volume 3, section 6.4, algorithm R); nothing marks the place. */
#ifndef RANKNODE_SLOT_MAP_H
#define RANKNODE_SLOT_MAP_H

#include <stdlib.h>

#include "siphash.h"

#define ROW_TABLES 64
#define ROW_TABLE_MIN 4

typedef struct {
    uint32_t *rows;
    uint32_t size, used;
} RowTable;

typedef struct {
    uint64_t secret;
    RowTable tables[ROW_TABLES];
} SlotMap;

/* G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number generators", 2014. */
static inline uint64_t hash_slot(const SlotMap *m, uint32_t slot) {
    uint64_t x = slot + m->secret;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline RowTable *row_table(SlotMap *m, uint64_t hashed) {
    return &m->tables[hashed >> 58];
}

static inline uint32_t row_home(const RowTable *t, uint64_t hashed) {
    return bucket_of((uint32_t)(hashed >> 26), t->size);
}

static inline uint32_t row_after(const RowTable *t, uint32_t place) {
    return place + 1 < t->size ? place + 1 : 0;
}

/* The place that holds the row of a slot, or NULL. */
static inline uint32_t *map_cell(SlotMap *m, const uint32_t *slots, uint32_t slot) {
    uint64_t hashed = hash_slot(m, slot);
    RowTable *t = row_table(m, hashed);
    if (!t->size)
        return NULL;
    for (uint32_t place = row_home(t, hashed); t->rows[place]; place = row_after(t, place))
        if (slots[t->rows[place] - 1] == slot)
            return t->rows + place;
    return NULL;
}

/* The row of a slot, or -1. */
static inline int64_t map_row(SlotMap *m, const uint32_t *slots, uint32_t slot) {
    const uint32_t *cell = map_cell(m, slots, slot);
    return cell ? (int64_t)*cell - 1 : -1;
}

static inline void row_put(RowTable *t, uint64_t hashed, uint32_t row) {
    uint32_t place = row_home(t, hashed);
    while (t->rows[place])
        place = row_after(t, place);
    t->rows[place] = row + 1;
    t->used++;
}

/* Make sure of a place for one more slot at a load within 0.8; false, and nothing lost, when memory
 * is short. */
static inline int map_reserve(SlotMap *m, const uint32_t *slots, uint32_t slot) {
    RowTable *t = row_table(m, hash_slot(m, slot)), fresh = {NULL, 0, 0};
    if (((uint64_t)t->used + 1) * 5 <= (uint64_t)t->size * 4)
        return 1;
    fresh.size = t->size + t->size / 4 + ROW_TABLE_MIN;
    if (!(fresh.rows = calloc(fresh.size, sizeof(uint32_t))))
        return 0;
    for (uint32_t i = 0; i < t->size; i++) {
        if (i + 8 < t->size && t->rows[i + 8])
            __builtin_prefetch(slots + t->rows[i + 8] - 1);
        if (t->rows[i])
            row_put(&fresh, hash_slot(m, slots[t->rows[i] - 1]), t->rows[i] - 1);
    }
    free(t->rows);
    *t = fresh;
    return 1;
}

/* Add a slot that is not in the map; map_reserve has made room. */
static inline void map_add(SlotMap *m, uint32_t slot, uint32_t row) {
    uint64_t hashed = hash_slot(m, slot);
    row_put(row_table(m, hashed), hashed, row);
}

/* Take out a slot that is in the map; `slots` still holds it. */
static inline void map_drop(SlotMap *m, const uint32_t *slots, uint32_t slot) {
    RowTable *t = row_table(m, hash_slot(m, slot));
    uint32_t hole = (uint32_t)(map_cell(m, slots, slot) - t->rows);
    for (uint32_t at = row_after(t, hole); t->rows[at]; at = row_after(t, at)) {
        uint32_t home = row_home(t, hash_slot(m, slots[t->rows[at] - 1]));
        uint32_t from_home = at >= home ? at - home : at + t->size - home;
        uint32_t from_hole = at >= hole ? at - hole : at + t->size - hole;
        if (from_home >= from_hole) {
            t->rows[hole] = t->rows[at];
            hole = at;
        }
    }
    t->rows[hole] = 0;
    t->used--;
}

/* Look up the rows of a batch, -1 where a slot has none; tells whether all have one. Places, and
 * nearer by the slots they lead to, are fetched ahead, so that the cache misses overlap. */
static inline int map_rows(SlotMap *m, const uint32_t *slots, const int *batch, size_t n,
                           int *rows) {
    int known = 1;
    for (size_t i = 0; i < n; i++) {
        if (i + 16 < n) {
            uint64_t hashed = hash_slot(m, batch[i + 16]);
            const RowTable *t = row_table(m, hashed);
            if (t->size)
                __builtin_prefetch(t->rows + row_home(t, hashed));
        }
        if (i + 8 < n) {
            uint64_t hashed = hash_slot(m, batch[i + 8]);
            const RowTable *t = row_table(m, hashed);
            uint32_t row = t->size ? t->rows[row_home(t, hashed)] : 0;
            if (row)
                __builtin_prefetch(slots + row - 1);
        }
        rows[i] = (int)map_row(m, slots, batch[i]);
        known &= rows[i] >= 0;
    }
    return known;
}

static inline uint64_t map_bytes(const SlotMap *m) {
    uint64_t total = sizeof(SlotMap);
    for (int i = 0; i < ROW_TABLES; i++)
        total += (uint64_t)m->tables[i].size * sizeof(uint32_t);
    return total;
}

static inline void map_free(SlotMap *m) {
    for (int i = 0; m && i < ROW_TABLES; i++)
        free(m->tables[i].rows);
    free(m);
}

/* Tell whether the map leads from the slot of each row to that row and holds nothing else. */
static inline int map_is_sound(SlotMap *m, const uint32_t *slots, uint64_t rows) {
    uint64_t used = 0;
    for (int i = 0; i < ROW_TABLES; i++) {
        const RowTable *t = &m->tables[i];
        uint32_t taken = 0;
        for (uint32_t place = 0; place < t->size; place++)
            taken += t->rows[place] != 0;
        if (taken != t->used || (uint64_t)t->used * 5 > (uint64_t)t->size * 4)
            return 0;
        used += taken;
    }
    for (uint64_t row = 0; row < rows; row++)
        if (map_row(m, slots, slots[row]) != (int64_t)row)
            return 0;
    return used == rows;
}

#endif
