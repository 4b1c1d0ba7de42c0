/* The listing of a window: its entries in rank order, as columns that can be read without the
 * board's `Members`.
 *
 *   ends    uint32: where each entry's name ends in `names`
 *   names   the names, one after another
 *   rows    int64: the score keys and achieved_at of each entry
 *   flags   a byte for each entry, as in scores.h
 *
 * Its canonical text, of which a digest is made, is for each entry in rank order: the length of
 * the name (uint32), the name, for each score key its whole part and its billionths (int64 each,
 * both with the sign of the value, so that 1.5 is 1.5 whatever the decimals) and achieved_at
 * (int64); all little-endian, without gaps. */
#ifndef RANKNODE_LISTING_H
#define RANKNODE_LISTING_H

#include "name_table.h"
#include "scores.h"

#define NAME_MAX_BYTES 255
#define TEXT_MAX_BYTES (4 + NAME_MAX_BYTES + 16 * WORDS_MAX)

/* The columns, wherever they lie. Nothing in them needs to be aligned. */
typedef struct {
    const uint8_t *ends, *names, *rows, *flags;
    uint64_t entries, names_size;
} Listing;

static inline uint64_t name_end(const Listing *l, uint64_t entry) {
    uint32_t end;
    memcpy(&end, l->ends + entry * 4, 4);
    return end;
}

static inline uint64_t name_start(const Listing *l, uint64_t entry) {
    return entry ? name_end(l, entry - 1) : 0;
}

/* Tell whether the ends cut the names into names of a member's size. */
static inline int names_are_sound(const Listing *l) {
    uint64_t start = 0, end;
    for (uint64_t entry = 0; entry < l->entries; entry++, start = end) {
        end = name_end(l, entry);
        if (end < start || end - start > NAME_MAX_BYTES)
            return 0;
    }
    return start == l->names_size;
}

/* Write the names as `Members` keeps them, each behind its length. */
static inline void names_with_lengths(const Listing *l, uint8_t *to) {
    for (uint64_t entry = 0; entry < l->entries; entry++) {
        uint64_t start = name_start(l, entry), size = name_end(l, entry) - start;
        *to++ = (uint8_t)size;
        memcpy(to, l->names + start, size);
        to += size;
    }
}

/* Write the canonical text of some entries; returns its size. `units` has 10^decimals by key. */
static inline size_t listing_text(const Listing *l, const int64_t *units, int keys,
                                  uint64_t entry, uint64_t count, uint8_t *text) {
    uint8_t *to = text;
    for (; count--; entry++) {
        uint64_t start = name_start(l, entry);
        uint32_t size = (uint32_t)(name_end(l, entry) - start);
        int64_t row[WORDS_MAX];
        memcpy(row, l->rows + entry * 8 * (keys + 1), 8 * (size_t)(keys + 1));
        memcpy(to, &size, 4);
        memcpy(to + 4, l->names + start, size);
        to += 4 + size;
        for (int i = 0; i < keys; i++, to += 16) {
            int64_t parts[2] = {whole_part(row[i], units[i]), billionths(row[i], units[i])};
            memcpy(to, parts, 16);
        }
        memcpy(to, row + keys, 8);
        to += 8;
    }
    return (size_t)(to - text);
}

/* Copy rows and flags of the next entries of an order, and tell their slots; moves the place. */
static inline void list_rows(const Order *o, const uint8_t *flags, Place *place, uint32_t count,
                             int64_t *rows_to, uint8_t *flags_to, uint32_t *slots_to) {
    size_t width = o->keys + 1;
    for (uint32_t i = 0; i < count; i++, place->offset++) {
        if (place->offset == o->leaf_size[place->leaf]) {
            place->leaf++;
            place->offset = 0;
        }
        const uint32_t *cell = order_leaf(o, place->leaf) + place->offset;
        if (place->offset + 8 < o->leaf_size[place->leaf]) {
            uint32_t soon = cell[8] & ENTRY_BITS;
            __builtin_prefetch(order_row(o, soon));
            __builtin_prefetch(flags + soon);
        }
        uint32_t entry = *cell & ENTRY_BITS;
        memcpy(rows_to + i * width, order_row(o, entry), width * sizeof(int64_t));
        flags_to[i] = flags[entry];
        slots_to[i] = order_slot(o, entry);
    }
}

/* Copy the names of slots to the end of a blob with room for them; returns where they end. */
static inline uint64_t list_names(const Names *names, const uint32_t *slots, uint32_t count,
                                  uint8_t *blob, uint64_t end, uint32_t *ends_to) {
    for (uint32_t i = 0; i < count; i++) {
        if (i + 16 < count)
            __builtin_prefetch(names->offsets + slots[i + 16]);
        if (i + 8 < count)
            __builtin_prefetch(names->arena + names->offsets[slots[i + 8]]);
        const uint8_t *stored = names->arena + names->offsets[slots[i]];
        memcpy(blob + end, stored + 1, stored[0]);
        end += stored[0];
        ends_to[i] = (uint32_t)end;
    }
    return end;
}

#endif
