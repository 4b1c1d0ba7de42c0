/* A table of (fingerprint, sequence) by open addressing in robin-hood order.
 *
 * P. Celis, "Robin Hood hashing", 1986: among colliding entries, the one farther from its home
 * stands first, so an absent fingerprint is known absent soon even at nine tenths load. Entries of
 * one home stand in the order of their arrival, those of one fingerprint hence by sequence. Runs
 * go on from the last place to the first. An entry of sequence 0 is an empty place; entries below
 * the smallest live sequence are dead, and go when the table is rebuilt. */
#ifndef RANKNODE_FINGERPRINTS_H
#define RANKNODE_FINGERPRINTS_H

#include <stdlib.h>

#include "siphash.h"

typedef struct {
    uint64_t fingerprint;
    int64_t sequence;
} Entry;

/* `used` counts dead entries, too. */
typedef struct {
    Entry *entries;
    uint32_t size, used;
} Fingerprints;

/* The place where a fingerprint would like to be. The top byte has chosen the table. */
static inline uint32_t home_of(const Fingerprints *t, uint64_t fingerprint) {
    return bucket_of((uint32_t)(fingerprint >> 24), t->size);
}

/* Fetch ahead the home of a fingerprint, so that the cache misses of a batch overlap. */
static inline void fetch_home(const Fingerprints *t, uint64_t fingerprint) {
    if (t->size)
        __builtin_prefetch(t->entries + home_of(t, fingerprint));
}

static inline uint32_t next_place(const Fingerprints *t, uint32_t place) {
    return place + 1 < t->size ? place + 1 : 0;
}

static inline uint32_t distance_at(const Fingerprints *t, uint32_t place) {
    uint32_t home = home_of(t, t->entries[place].fingerprint);
    return place >= home ? place - home : place + t->size - home;
}

/* Tell whether a search that is `distance` from home has to go on past a place. */
static inline int goes_past(const Fingerprints *t, uint32_t place, uint32_t distance) {
    return t->entries[place].sequence && distance_at(t, place) >= distance;
}

/* How many entries a table takes: nine tenths of its size, so that one place stays empty. */
static inline uint32_t room_of(const Fingerprints *t) {
    return (uint32_t)((uint64_t)t->size * 9 / 10);
}

static inline uint32_t count_live(const Fingerprints *t, int64_t live_from) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < t->size; i++)
        live += t->entries[i].sequence >= live_from;
    return live;
}

/* Insert where there is room: behind the entries of the same home, the run behind it moving on. */
static inline void insert_entry(Fingerprints *t, Entry entry) {
    uint32_t place = home_of(t, entry.fingerprint), last = t->size - 1, end;
    for (uint32_t distance = 0; goes_past(t, place, distance); distance++)
        place = next_place(t, place);
    for (end = place; end < t->size && t->entries[end].sequence;)
        end++;
    if (end == t->size) {
        /* The run goes on at the first place: that part moves, and takes over the last entry. */
        for (end = 0; t->entries[end].sequence;)
            end++;
        memmove(t->entries + 1, t->entries, end * sizeof(Entry));
        t->entries[0] = t->entries[last];
        end = last;
    }
    memmove(t->entries + place + 1, t->entries + place, (end - place) * sizeof(Entry));
    t->entries[place] = entry;
    t->used++;
}

/* An empty place. Walked from there on, entries of one fingerprint come by sequence. */
static inline uint32_t first_gap(const Fingerprints *t) {
    uint32_t place = 0;
    while (place < t->size && t->entries[place].sequence)
        place++;
    return place;
}

/* Write the live entries out, those of one fingerprint by sequence; returns the end of them. */
static inline Entry *copy_live(const Fingerprints *t, int64_t live_from, Entry *to) {
    for (uint32_t i = 0, place = first_gap(t); i < t->size; i++, place = next_place(t, place))
        if (t->entries[place].sequence >= live_from)
            *to++ = t->entries[place];
    return to;
}

/* Move the live entries into a table of another size; false, and nothing lost, without memory. */
static inline int rebuild(Fingerprints *t, int64_t live_from, uint32_t size) {
    Fingerprints fresh = {calloc(size, sizeof(Entry)), size, 0};
    if (!fresh.entries)
        return 0;
    for (uint32_t i = 0, place = first_gap(t); i < t->size; i++, place = next_place(t, place))
        if (t->entries[place].sequence >= live_from)
            insert_entry(&fresh, t->entries[place]);
    free(t->entries);
    *t = fresh;
    return 1;
}

#endif
