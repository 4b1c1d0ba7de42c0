/* SipHash-2-4 with 64 and 128 bits of output: the one hash of the project.
 *
 * J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012, and their reference
 * implementation for the 128-bit form. Keyed, so that whoever chooses names cannot choose
 * collisions. The tests hold it to the published vectors. Little-endian machines only.
 *
 * Also here: sums of 128-bit hashes modulo 2^128, which do not depend on the order of their terms
 * and from which a term can be taken out again. */
#ifndef RANKNODE_SIPHASH_H
#define RANKNODE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ranknode's dumps and hashes are written for little-endian machines"
#endif
#if SIZE_MAX != UINT64_MAX
#error "ranknode needs 64-bit addresses"
#endif

typedef struct {
    uint64_t low, high;
} Hash128;

#define SIPHASH_ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))
#define SIPHASH_ROUND                                                                  \
    do {                                                                               \
        v0 += v1; v1 = SIPHASH_ROTATE(v1, 13); v1 ^= v0; v0 = SIPHASH_ROTATE(v0, 32);  \
        v2 += v3; v3 = SIPHASH_ROTATE(v3, 16); v3 ^= v2;                               \
        v0 += v3; v3 = SIPHASH_ROTATE(v3, 21); v3 ^= v0;                               \
        v2 += v1; v1 = SIPHASH_ROTATE(v1, 17); v1 ^= v2; v2 = SIPHASH_ROTATE(v2, 32);  \
    } while (0)

/* Both outputs share one body; `wide` is a constant at every call, so the compiler splits it. */
static inline Hash128 siphash(const uint8_t *key, const uint8_t *data, size_t size, int wide) {
    uint64_t k0, k1, word, tail = (uint64_t)size << 56;
    memcpy(&k0, key, 8);
    memcpy(&k1, key + 8, 8);
    uint64_t v0 = k0 ^ UINT64_C(0x736f6d6570736575), v1 = k1 ^ UINT64_C(0x646f72616e646f6d);
    uint64_t v2 = k0 ^ UINT64_C(0x6c7967656e657261), v3 = k1 ^ UINT64_C(0x7465646279746573);
    if (wide)
        v1 ^= 0xee;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        v3 ^= word;
        SIPHASH_ROUND;
        SIPHASH_ROUND;
        v0 ^= word;
    }
    for (size_t i = 0; i < size; i++)
        tail |= (uint64_t)data[i] << (8 * i);
    v3 ^= tail;
    SIPHASH_ROUND;
    SIPHASH_ROUND;
    v0 ^= tail;
    v2 ^= wide ? 0xee : 0xff;
    for (int i = 0; i < 4; i++)
        SIPHASH_ROUND;
    Hash128 out = {v0 ^ v1 ^ v2 ^ v3, 0};
    if (wide) {
        v1 ^= 0xdd;
        for (int i = 0; i < 4; i++)
            SIPHASH_ROUND;
        out.high = v0 ^ v1 ^ v2 ^ v3;
    }
    return out;
}

static inline uint64_t siphash_64(const uint8_t *key, const uint8_t *data, size_t size) {
    return siphash(key, data, size, 0).low;
}

static inline Hash128 siphash_128(const uint8_t *key, const uint8_t *data, size_t size) {
    return siphash(key, data, size, 1);
}

static inline void sum_add(Hash128 *sum, Hash128 term) {
    sum->low += term.low;
    sum->high += term.high + (sum->low < term.low);
}

static inline void sum_subtract(Hash128 *sum, Hash128 term) {
    uint64_t borrow = sum->low < term.low;
    sum->low -= term.low;
    sum->high -= term.high + borrow;
}

/* The bucket of a 32-bit hash among `buckets`: a multiplication in place of a division. */
static inline uint32_t bucket_of(uint32_t hash, uint32_t buckets) {
    return (uint32_t)(((uint64_t)hash * buckets) >> 32);
}

#endif
