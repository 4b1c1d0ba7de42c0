/* Changing the order of a window: inserting, removing, splitting, merging, loading.
 *
 * A full leaf splits in two, a small one merges with a neighbour; both cost O(leaves), once in a
 * hundred changes or more. order_reserve makes room first, so that no change fails half way. */
#ifndef RANKNODE_ORDER_CHANGE_H
#define RANKNODE_ORDER_CHANGE_H

#include "order.h"

#define LEAF_SMALL (LEAF_ENTRIES / 4)
#define LEAF_MERGED (LEAF_ENTRIES * 3 / 4)
#define LEAF_LOADED (LEAF_ENTRIES * 9 / 10)
#define NO_BLOCK UINT32_MAX

static inline void remember_first(Order *o, uint32_t leaf) {
    const int64_t *row = order_row(o, order_leaf(o, leaf)[0] & ENTRY_BITS);
    for (int i = 0; i < o->words; i++)
        o->leaf_first[(size_t)leaf * o->words + i] = row[i] ^ o->masks[i];
}

static inline void order_build_trees(Order *o) {
    tree_build(o->size_tree, o->leaf_size, o->leaf_count);
    if (o->runs)
        tree_build(o->run_tree, o->leaf_runs, o->leaf_count);
}

/* Make sure of room for `leaves` more; false, and nothing lost, when memory is short. */
static inline int order_reserve(Order *o, uint64_t leaves) {
    uint64_t wanted = o->leaf_count + leaves;
    if (wanted > o->leaf_capacity) {
        uint64_t capacity = grown(o->leaf_capacity, wanted);
        if (!resize_array(&o->leaf_block, capacity, 4) || !resize_array(&o->leaf_size, capacity, 4)
            || !resize_array(&o->size_tree, capacity, 4)
            || !resize_array(&o->leaf_first, capacity, 8 * (uint64_t)o->words)
            || (o->runs && (!resize_array(&o->leaf_runs, capacity, 4)
                            || !resize_array(&o->run_tree, capacity, 4))))
            return 0;
        o->leaf_capacity = (uint32_t)capacity;
    }
    /* Blocks not in a leaf are on the free list or not yet touched: either can be taken. */
    if (wanted > o->block_capacity) {
        uint64_t capacity = grown(o->block_capacity, wanted);
        if (!resize_array(&o->blocks, capacity, 4 * LEAF_ENTRIES))
            return 0;
        o->block_capacity = (uint32_t)capacity;
    }
    return 1;
}

static inline uint64_t order_bytes(const Order *o) {
    uint64_t leaf = 12 + 8 * (uint64_t)o->words + (o->runs ? 8 : 0);
    return o->leaf_capacity * leaf + (uint64_t)o->block_capacity * 4 * LEAF_ENTRIES;
}

static inline void order_free(Order *o) {
    free(o->blocks);
    free(o->leaf_block);
    free(o->leaf_size);
    free(o->leaf_runs);
    free(o->size_tree);
    free(o->run_tree);
    free(o->leaf_first);
}

/* Open `step` = 1 leaf at `leaf` in the arrays, or close it with -1. */
static inline void shift_leaves(Order *o, uint32_t leaf, int step) {
    uint32_t from = step > 0 ? leaf : leaf + 1;
    size_t moved = o->leaf_count - from, words = o->words;
    memmove(o->leaf_block + from + step, o->leaf_block + from, 4 * moved);
    memmove(o->leaf_size + from + step, o->leaf_size + from, 4 * moved);
    if (o->runs)
        memmove(o->leaf_runs + from + step, o->leaf_runs + from, 4 * moved);
    memmove(o->leaf_first + (from + step) * words, o->leaf_first + from * words,
            8 * words * moved);
    o->leaf_count += step;
}

/* After entries moved between leaves: bring what is known about one of them up to date. */
static inline void leaf_refresh(Order *o, uint32_t leaf, uint32_t size) {
    o->leaf_size[leaf] = size;
    if (o->runs)
        o->leaf_runs[leaf] = count_runs(order_leaf(o, leaf), size);
    remember_first(o, leaf);
}

/* Add an empty leaf at `leaf`; order_reserve has made room, the caller fills and refreshes it. */
static inline void leaf_add(Order *o, uint32_t leaf) {
    shift_leaves(o, leaf, 1);
    if (o->block_free != NO_BLOCK) {
        o->leaf_block[leaf] = o->block_free;
        o->block_free = order_leaf(o, leaf)[0];
    } else {
        o->leaf_block[leaf] = o->block_count++;
    }
    o->leaf_size[leaf] = 0;
    if (o->runs)
        o->leaf_runs[leaf] = 0;
}

static inline void leaf_drop(Order *o, uint32_t leaf) {
    order_leaf(o, leaf)[0] = o->block_free;
    o->block_free = o->leaf_block[leaf];
    shift_leaves(o, leaf, -1);
}

static inline void leaf_split(Order *o, uint32_t leaf) {
    uint32_t kept = LEAF_ENTRIES / 2, size = o->leaf_size[leaf];
    leaf_add(o, leaf + 1);
    memcpy(order_leaf(o, leaf + 1), order_leaf(o, leaf) + kept, 4 * (size - kept));
    leaf_refresh(o, leaf, kept);
    leaf_refresh(o, leaf + 1, size - kept);
    order_build_trees(o);
}

/* Merge a small leaf with a neighbour when both fit well into one. */
static inline void leaf_merge(Order *o, uint32_t leaf) {
    for (uint32_t left = leaf ? leaf - 1 : 0; left <= leaf && left + 1 < o->leaf_count; left++) {
        uint32_t size = o->leaf_size[left], more = o->leaf_size[left + 1];
        if (size + more > LEAF_MERGED)
            continue;
        memcpy(order_leaf(o, left) + size, order_leaf(o, left + 1), 4 * more);
        leaf_refresh(o, left, size + more);
        leaf_drop(o, left + 1);
        order_build_trees(o);
        return;
    }
}

static inline void set_run(Order *o, uint32_t leaf, uint32_t offset, int start) {
    uint32_t *cell = order_leaf(o, leaf) + offset;
    uint32_t change = (uint32_t)start - (*cell >> 31);
    if (!change)
        return;
    *cell ^= RUN_START;
    o->leaf_runs[leaf] += change;
    tree_add(o->run_tree, o->leaf_count, leaf, change);
}

/* Mark anew whether the entry at a place, if there is one, begins a run. */
static inline void mark_run(Order *o, Place place) {
    if (place.leaf < o->leaf_count && place.offset == o->leaf_size[place.leaf]) {
        place.leaf++;
        place.offset = 0;
    }
    if (place.leaf >= o->leaf_count)
        return;
    const uint32_t *cell = order_leaf(o, place.leaf) + place.offset, *before = cell - 1;
    if (!place.offset) {
        if (!place.leaf) {
            set_run(o, 0, 0, 1);
            return;
        }
        before = order_leaf(o, place.leaf - 1) + o->leaf_size[place.leaf - 1] - 1;
    }
    int start = !same_score(o, *before & ENTRY_BITS, *cell & ENTRY_BITS);
    set_run(o, place.leaf, place.offset, start);
}

/* Insert an entry that does not stand yet; order_reserve(o, 1) has made room. O(log n + leaf). */
static inline void order_insert(Order *o, uint32_t entry) {
    Probe p = probe_entry(o, entry, 0);
    Place place = order_search(o, &p);
    if (!o->leaf_count) {
        leaf_add(o, 0);
        order_build_trees(o);
    } else if (o->leaf_size[place.leaf] == LEAF_ENTRIES) {
        leaf_split(o, place.leaf);
        if (place.offset > LEAF_ENTRIES / 2) {
            place.leaf++;
            place.offset -= LEAF_ENTRIES / 2;
        }
    }
    uint32_t *cell = order_leaf(o, place.leaf) + place.offset;
    memmove(cell + 1, cell, 4 * (size_t)(o->leaf_size[place.leaf]++ - place.offset));
    *cell = entry;
    o->members++;
    tree_add(o->size_tree, o->leaf_count, place.leaf, 1);
    if (!place.offset)
        remember_first(o, place.leaf);
    if (o->runs) {
        mark_run(o, place);
        place.offset++;
        mark_run(o, place);
    }
}

/* Take an entry out; its row must still be the one it was inserted with. O(log n + leaf). */
static inline void order_remove(Order *o, uint32_t entry) {
    Place place = order_find(o, entry);
    uint32_t *cell = order_leaf(o, place.leaf) + place.offset;
    if (o->runs)
        set_run(o, place.leaf, place.offset, 0);
    memmove(cell, cell + 1, 4 * (size_t)(--o->leaf_size[place.leaf] - place.offset));
    o->members--;
    tree_add(o->size_tree, o->leaf_count, place.leaf, (uint32_t)-1);
    if (!o->leaf_size[place.leaf]) {
        leaf_drop(o, place.leaf);
        order_build_trees(o);
    } else if (!place.offset) {
        remember_first(o, place.leaf);
    }
    if (o->runs)
        mark_run(o, place);
    if (place.leaf < o->leaf_count && o->leaf_size[place.leaf] < LEAF_SMALL)
        leaf_merge(o, place.leaf);
}

/* Give an entry that stands another number, with the same row, slot and place. O(log n + leaf). */
static inline void order_renumber(Order *o, uint32_t entry, uint32_t number) {
    Place place = order_find(o, entry);
    uint32_t *cell = order_leaf(o, place.leaf) + place.offset;
    memcpy(order_row(o, number), order_row(o, entry), sizeof(int64_t) * (o->keys + 1));
    o->slots[number] = o->slots[entry];
    *cell = (*cell & RUN_START) | number;
}

/* The entry at an index of an order that may lie unaligned; NULL is that of the rows. */
static inline uint32_t listed_entry(const uint8_t *order, uint64_t index) {
    uint32_t entry = (uint32_t)index;
    if (order)
        memcpy(&entry, order + index * 4, 4);
    return entry;
}

/* Add the leaves of an order that is known, filled evenly and to nine tenths, so that the next
 * inserts do not split all of them. Each entry of `order` has a row.
 * Returns the index of the first entry that is not behind the one before it, or n if there is
 * none; then the order holds each entry once. order_reserve has made room for the leaves. */
static inline uint64_t order_fill(Order *o, const uint8_t *order, uint64_t n) {
    uint64_t leaves = (n + LEAF_LOADED - 1) / LEAF_LOADED, i = 0;
    for (uint64_t leaf = 0; leaf < leaves; leaf++) {
        leaf_add(o, (uint32_t)leaf);
        uint32_t *entries = order_leaf(o, (uint32_t)leaf), size = 0, before;
        for (; i < n * (leaf + 1) / leaves; i++) {
            uint32_t entry = listed_entry(order, i), start = o->runs ? RUN_START : 0;
            if (i) {
                Probe p = probe_entry(o, entry, 0);
                before = listed_entry(order, i - 1);
                if (!entry_before(o, before, &p))
                    return i;
                if (same_score(o, before, entry))
                    start = 0;
            }
            entries[size++] = entry | start;
        }
        leaf_refresh(o, (uint32_t)leaf, size);
    }
    o->members = n;
    order_build_trees(o);
    return n;
}

/* Tell whether every invariant holds: entries rise, runs are marked, first rows are copied, counts
 * and trees agree, no leaf is empty. Each entry has a row. O(n). */
static inline int order_is_sound(const Order *o) {
    uint64_t done = 0, runs = 0;
    uint32_t before = 0;
    for (uint32_t leaf = 0; leaf < o->leaf_count; leaf++) {
        uint32_t size = o->leaf_size[leaf];
        const uint32_t *entries = order_leaf(o, leaf);
        if (!size || size > LEAF_ENTRIES || tree_sum(o->size_tree, leaf) != done)
            return 0;
        if (o->runs && (tree_sum(o->run_tree, leaf) != runs
                        || o->leaf_runs[leaf] != count_runs(entries, size)))
            return 0;
        Probe first = probe_entry(o, entries[0] & ENTRY_BITS, 0);
        if (memcmp(o->leaf_first + (size_t)leaf * o->words, first.words, 8 * (size_t)o->words))
            return 0;
        for (uint32_t i = 0; i < size; i++, done++) {
            Probe p = probe_entry(o, entries[i] & ENTRY_BITS, 0);
            uint32_t starts = o->runs && (!done || !same_score(o, before, entries[i] & ENTRY_BITS));
            if ((done && !entry_before(o, before, &p)) || entries[i] >> 31 != starts)
                return 0;
            before = entries[i] & ENTRY_BITS;
        }
        runs += count_runs(entries, size);
    }
    return done == o->members;
}

#endif
