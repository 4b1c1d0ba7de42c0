/* Prefix sums over counts that change: P. M. Fenwick, "A new data structure for cumulative
 * frequency tables", 1994. tree[i - 1] holds the sum of the last (i & -i) counts up to the i-th. */
#ifndef RANKNODE_FENWICK_H
#define RANKNODE_FENWICK_H

#include <stdint.h>
#include <string.h>

static inline void tree_add(uint32_t *tree, uint32_t leaves, uint32_t leaf, uint32_t change) {
    for (uint32_t i = leaf + 1; i <= leaves; i += i & -i)
        tree[i - 1] += change;
}

static inline uint64_t tree_sum(const uint32_t *tree, uint32_t leaves) {
    uint64_t sum = 0;
    for (uint32_t i = leaves; i; i &= i - 1)
        sum += tree[i - 1];
    return sum;
}

static inline void tree_build(uint32_t *tree, const uint32_t *counts, uint32_t leaves) {
    memcpy(tree, counts, sizeof(uint32_t) * leaves);
    for (uint32_t i = 1; i <= leaves; i++)
        if (i + (i & -i) <= leaves)
            tree[i + (i & -i) - 1] += tree[i - 1];
}

#endif
