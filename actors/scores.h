/* What a member's score is: how one more event changes its row, and what it adds to the digest.
 *
 * best: the best value by the directions, achieved at the earliest time that reached it. sum: the
 * exact sum key by key, at the latest time of an event with a value other than 0, or of any event
 * while all are 0. latest: the value of the latest time; of equal times the one that came later.
 * Each is a function of the set of a member's events. */
#ifndef RANKNODE_SCORES_H
#define RANKNODE_SCORES_H

#include "order.h"
#include "siphash.h"

enum { AGGREGATE_BEST, AGGREGATE_SUM, AGGREGATE_LATEST };
enum { STANDS = 1, SCORED = 2 };    /* a row's flags; SCORED: a sum has seen a value other than 0 */
enum { CHANGED = 1, IMPROVED = 2 }; /* an event's outcome */

#define FRACTIONS INT64_C(1000000000)

static inline uint64_t magnitude_of(int64_t value) {
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

/* Compare two scores by the directions: negative when the first is better. */
static inline int compare_scores(const Order *o, const int64_t *a, const int64_t *b) {
    for (int i = 0; i < o->keys; i++)
        if (a[i] != b[i])
            return (a[i] ^ o->masks[i]) < (b[i] ^ o->masks[i]) ? -1 : 1;
    return 0;
}

/* Add a value to the sum in `row` (now `old`); the caller has made sure that no key overflows. */
static inline void add_value(const Order *o, const int64_t *old, uint8_t *flags, int64_t *row) {
    int scored = 0, keys = o->keys;
    for (int i = 0; i < keys; i++) {
        scored |= row[i] != 0;
        row[i] += old[i];
    }
    if (*flags & STANDS) {
        int counted = (*flags & SCORED) != 0;
        if (scored == counted ? old[keys] > row[keys] : counted)
            row[keys] = old[keys];
    }
    *flags |= scored ? SCORED : 0;
}

/* Work out a member's row after one more event; returns whether it changed and improved. */
static inline int next_row(const Order *o, int aggregation, uint32_t entry, uint8_t *flags,
                           const int64_t *value, int64_t occurred_at, int64_t *row) {
    const int64_t *old = order_row(o, entry);
    int keys = o->keys, first = !(*flags & STANDS);
    memcpy(row, value, sizeof(int64_t) * keys);
    row[keys] = occurred_at;
    if (aggregation == AGGREGATE_SUM)
        add_value(o, old, flags, row);
    if (first)
        return CHANGED | IMPROVED;
    int sign = compare_scores(o, row, old), improved = sign < 0 ? IMPROVED : 0;
    if (aggregation == AGGREGATE_BEST)
        return improved || (sign == 0 && occurred_at < old[keys]) ? CHANGED | improved : 0;
    if (aggregation == AGGREGATE_LATEST && occurred_at < old[keys])
        return 0;
    return improved | (sign || row[keys] != old[keys] ? CHANGED : 0);
}

/* Tell whether a batch keeps every sum within int64: by a bound, and exactly where that fails, by
 * adding in place and taking back. Wrapped sums wrap back, so each row ends as what it was. */
static inline int sums_fit(const Order *o, uint64_t largest, const int *entries,
                           const int64_t *values, size_t count) {
    size_t done = 0;
    int fits = 1;
    while (done < count && largest <= INT64_MAX)
        largest += magnitude_of(values[done++]);
    if (largest <= INT64_MAX)
        return 1;
    for (done = 0; fits && done < count; done++) {
        int64_t *cell = order_row(o, entries[done / o->keys]) + done % o->keys;
        fits = !__builtin_add_overflow(*cell, values[done], cell);
    }
    while (done--) {
        int64_t *cell = order_row(o, entries[done / o->keys]) + done % o->keys;
        *cell = (int64_t)((uint64_t)*cell - (uint64_t)values[done]);
    }
    return fits;
}

/* Tell whether a row can be one that stands: no unknown flags, and a sum other than 0 has seen a
 * value other than 0. */
static inline int row_fits(const Order *o, int aggregation, const int64_t *row, uint8_t flags) {
    int scored = 0;
    for (int i = 0; i < o->keys; i++)
        scored |= row[i] != 0;
    if (aggregation != AGGREGATE_SUM)
        return flags == STANDS;
    return flags == (STANDS | SCORED) || (flags == STANDS && !scored);
}

/* Tell whether a row that was loaded can be one: all 0 unless it stands. */
static inline int row_is_sound(const Order *o, int aggregation, uint32_t entry, uint8_t flags) {
    const int64_t *row = order_row(o, entry);
    if (flags & STANDS)
        return row_fits(o, aggregation, row, flags);
    for (int i = 0; i <= o->keys; i++)
        if (row[i])
            return 0;
    return !flags;
}

/* The largest size of a key of a row, or `largest` if that is larger. */
static inline uint64_t largest_key(const Order *o, const int64_t *row, uint64_t largest) {
    for (int i = 0; i < o->keys; i++)
        if (magnitude_of(row[i]) > largest)
            largest = magnitude_of(row[i]);
    return largest;
}

/* The two parts of a value in units of 10^-decimals, both with its sign; `unit` is 10^decimals. */
static inline int64_t whole_part(int64_t value, int64_t unit) {
    return value / unit;
}

static inline int64_t billionths(int64_t value, int64_t unit) {
    return value % unit * (FRACTIONS / unit);
}

/* A hash of a member's name, score and achieved_at. A key enters as its whole part and billionths
 * (`units` is 10^decimals), so that 1.5 is 1.5 whatever the decimals. */
static inline Hash128 digest_term(const Order *o, const int64_t *units, uint32_t entry) {
    static const uint8_t key[] = "ranknode ranking"; /* fixed: equal standings, equal digests */
    int64_t text[2 + 2 * WORDS_MAX + 32];
    const int64_t *row = order_row(o, entry);
    size_t name_size, words = 0;
    const uint8_t *name = order_name(o, entry, &name_size);
    text[words++] = o->keys;
    text[words++] = row[o->keys];
    for (int i = 0; i < o->keys; i++) {
        text[words++] = whole_part(row[i], units[i]);
        text[words++] = billionths(row[i], units[i]);
    }
    memcpy(text + words, name, name_size);
    return siphash_128(key, (const uint8_t *)text, words * sizeof(int64_t) + name_size);
}

#endif
