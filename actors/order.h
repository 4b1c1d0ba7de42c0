/* The order of a window: a two-level sorted list of 32-bit entries that answers rank and select.
 *
 * An entry is the number of a row. In a window that holds all members that is the member's slot;
 * a sparse window numbers its rows itself, and `slots` tells the slot of each (slot_map.h).
 *
 * Entries stand in leaves of up to LEAF_ENTRIES. A copy of each leaf's first row lies in one small
 * array, so that the search for a leaf stays in cache; Fenwick trees over the leaves' counts turn a
 * place into an index and back in O(log n).
 *
 * Rows are `keys` scores and achieved_at, as sent; a mask of -1 turns a column's order around
 * (~x < ~y if and only if x > y, for every int64). Ties in the compared words go by name.
 *
 * The top bit of an entry in a leaf marks the first of a run of equal scores, where runs are
 * counted.
 *
 * Owns the leaves, borrows the rows, slots and names. This file only reads; order_change.h
 * changes. */
#ifndef RANKNODE_ORDER_H
#define RANKNODE_ORDER_H

#include <string.h>

#include "fenwick.h"
#include "memory.h"

#define LEAF_ENTRIES 512
#define SCAN_ENTRIES 32
#define RUN_START UINT32_C(0x80000000)
#define ENTRY_BITS UINT32_C(0x7fffffff)
#define WORDS_MAX 5

typedef struct {
    int64_t *rows;
    uint32_t *slots; /* NULL: an entry is its slot */
    const uint8_t *arena;
    const uint32_t *offsets;
    int keys, words, runs;
    int64_t masks[WORDS_MAX];
    uint64_t members;
    uint32_t *blocks;
    uint32_t block_count, block_capacity, block_free;
    uint32_t leaf_count, leaf_capacity;
    uint32_t *leaf_block, *leaf_size, *leaf_runs, *size_tree, *run_tree;
    int64_t *leaf_first;
} Order;

/* What a search looks for: some leading words, already masked, and a name or none. */
typedef struct {
    int64_t words[WORDS_MAX];
    int count;
    const uint8_t *name;
    size_t name_size;
    int after_equals;
} Probe;

typedef struct {
    uint32_t leaf, offset;
} Place;

static inline uint32_t *order_leaf(const Order *o, uint32_t leaf) {
    return o->blocks + (size_t)o->leaf_block[leaf] * LEAF_ENTRIES;
}

/* The slot of an entry's member. */
static inline uint32_t order_slot(const Order *o, uint32_t entry) {
    return o->slots ? o->slots[entry] : entry;
}

static inline int64_t *order_row(const Order *o, uint32_t entry) {
    return o->rows + (size_t)entry * (o->keys + 1);
}

static inline const uint8_t *order_name(const Order *o, uint32_t entry, size_t *size) {
    const uint8_t *stored = o->arena + o->offsets[order_slot(o, entry)];
    *size = stored[0];
    return stored + 1;
}

/* Fetch ahead what later events of a batch will read: an entry's row, and nearer by, its name. */
static inline void order_fetch(const Order *o, uint32_t soon, uint32_t sooner) {
    __builtin_prefetch(order_row(o, soon));
    __builtin_prefetch(o->offsets + order_slot(o, soon));
    __builtin_prefetch(o->arena + o->offsets[order_slot(o, sooner)]);
}

static inline int compare_names(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size) {
    int sign = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return sign ? sign : (a_size > b_size) - (a_size < b_size);
}

static inline int same_score(const Order *o, uint32_t a, uint32_t b) {
    return !memcmp(order_row(o, a), order_row(o, b), sizeof(int64_t) * o->keys);
}

/* Tell whether an entry stands before the place that the probe asks for. */
static inline int entry_before(const Order *o, uint32_t entry, const Probe *p) {
    const int64_t *row = order_row(o, entry);
    for (int i = 0; i < p->count; i++) {
        int64_t word = row[i] ^ o->masks[i];
        if (word != p->words[i])
            return word < p->words[i];
    }
    if (p->name) {
        size_t size;
        const uint8_t *name = order_name(o, entry, &size);
        int sign = compare_names(name, size, p->name, p->name_size);
        if (sign)
            return sign < 0;
    }
    return p->after_equals;
}

static inline int leaf_before(const Order *o, uint32_t leaf, const Probe *p) {
    const int64_t *first = o->leaf_first + (size_t)leaf * o->words;
    for (int i = 0; i < p->count; i++)
        if (first[i] != p->words[i])
            return first[i] < p->words[i];
    return p->name ? entry_before(o, order_leaf(o, leaf)[0] & ENTRY_BITS, p) : p->after_equals;
}

static inline Probe probe_entry(const Order *o, uint32_t entry, int after_equals) {
    Probe p = {.count = o->words, .after_equals = after_equals};
    const int64_t *row = order_row(o, entry);
    for (int i = 0; i < o->words; i++)
        p.words[i] = row[i] ^ o->masks[i];
    p.name = order_name(o, entry, &p.name_size);
    return p;
}

/* How many leaves begin before the probe. */
static inline uint32_t leaves_before(const Order *o, const Probe *p) {
    uint32_t low = 0, high = o->leaf_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (leaf_before(o, middle, p))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The place of the probe. The two rows that the next step is about to read, or their neighbours
 * in the last steps, are fetched ahead. */
static inline Place order_search(const Order *o, const Probe *p) {
    Place place = {leaves_before(o, p), 0};
    if (!place.leaf)
        return place;
    const uint32_t *entries = order_leaf(o, --place.leaf);
    uint32_t low = 1, high = o->leaf_size[place.leaf];
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        __builtin_prefetch(order_row(o, entries[(low + middle) / 2] & ENTRY_BITS));
        __builtin_prefetch(order_row(o, entries[(middle + high) / 2] & ENTRY_BITS));
        if (entry_before(o, entries[middle] & ENTRY_BITS, p))
            low = middle + 1;
        else
            high = middle;
    }
    place.offset = low;
    return place;
}

/* The place of an entry that stands. Its leaf is scanned: 2 KiB in a row cost less than the nine
 * scattered rows that a binary search would read. */
static inline Place order_find(const Order *o, uint32_t entry) {
    Probe p = probe_entry(o, entry, 1);
    Place place = {leaves_before(o, &p) - 1, 0};
    const uint32_t *entries = order_leaf(o, place.leaf);
    for (uint32_t found = 0; place.offset < LEAF_ENTRIES; place.offset += SCAN_ENTRIES) {
        for (uint32_t i = 0; i < SCAN_ENTRIES; i++)
            found |= (entries[place.offset + i] & ENTRY_BITS) == entry;
        if (found)
            break;
    }
    while ((entries[place.offset] & ENTRY_BITS) != entry)
        place.offset++;
    return place;
}

static inline uint64_t order_index(const Order *o, Place place) {
    return tree_sum(o->size_tree, place.leaf) + place.offset;
}

static inline uint32_t count_runs(const uint32_t *entries, uint32_t size) {
    uint32_t runs = 0;
    for (uint32_t i = 0; i < size; i++)
        runs += entries[i] >> 31;
    return runs;
}

/* How many runs of equal scores begin before a place. */
static inline uint64_t order_runs(const Order *o, Place place) {
    uint64_t runs = tree_sum(o->run_tree, place.leaf);
    return place.offset ? runs + count_runs(order_leaf(o, place.leaf), place.offset) : runs;
}

/* The place of an index below `members`: a descent of the tree. */
static inline Place order_select(const Order *o, uint64_t index) {
    uint32_t leaf = 0, step = 1;
    while (step <= o->leaf_count / 2)
        step *= 2;
    for (; step; step /= 2)
        if (leaf + step <= o->leaf_count && o->size_tree[leaf + step - 1] <= index) {
            leaf += step;
            index -= o->size_tree[leaf - 1];
        }
    Place place = {leaf, (uint32_t)index};
    return place;
}

#endif
