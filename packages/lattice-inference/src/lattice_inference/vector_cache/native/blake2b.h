/* BLAKE2b (RFC 7693) with a digest of 32 bytes, of short messages that all begin alike.
 *
 * Written to be small rather than fast: between two calls a model has gone through the processor's caches, and every line of
 * code comes from memory again. A text of ten tokens is one block, half a microsecond.
 */
#ifndef LATTICE_VECTOR_CACHE_BLAKE2B_H
#define LATTICE_VECTOR_CACHE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LB_BLOCK_BYTES = 128, LB_DIGEST_BYTES = 32 };

typedef struct {
    uint64_t state[8];
    uint64_t counted; /* bytes that have gone into the state */
    size_t waiting;   /* bytes in the block: a last block is not known as such before the end */
    uint8_t block[LB_BLOCK_BYTES];
} lb_hash;

static const uint64_t lb_initial[8] = {0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu,
                                       0xA54FF53A5F1D36F1u, 0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu,
                                       0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u};

static const uint8_t lb_order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint64_t lb_rotate(uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

static inline void lb_compress(lb_hash *hash, int last) {
    uint64_t v[16], message[16];
    memcpy(message, hash->block, sizeof message);
    memcpy(v, hash->state, sizeof hash->state);
    memcpy(v + 8, lb_initial, sizeof lb_initial);
    v[12] ^= hash->counted;
    if (last)
        v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *order = lb_order[round % 10];
        for (int step = 0; step < 8; step++) {
            /* four columns, then four diagonals */
            const int shift = step >> 2;
            uint64_t *a = v + (step & 3), *b = v + 4 + ((step + shift) & 3), *c = v + 8 + ((step + 2 * shift) & 3),
                     *d = v + 12 + ((step + 3 * shift) & 3);
            *a += *b + message[order[2 * step]];
            *d = lb_rotate(*d ^ *a, 32);
            *c += *d;
            *b = lb_rotate(*b ^ *c, 24);
            *a += *b + message[order[2 * step + 1]];
            *d = lb_rotate(*d ^ *a, 16);
            *c += *d;
            *b = lb_rotate(*b ^ *c, 63);
        }
    }
    for (int word = 0; word < 8; word++)
        hash->state[word] ^= v[word] ^ v[word + 8];
}

static inline void lb_begin(lb_hash *hash) {
    memcpy(hash->state, lb_initial, sizeof lb_initial);
    hash->state[0] ^= 0x01010000u ^ LB_DIGEST_BYTES; /* no key, fanout 1, depth 1 */
    hash->counted = 0;
    hash->waiting = 0;
}

static inline void lb_update(lb_hash *hash, const void *data, size_t size) {
    const uint8_t *bytes = data;
    while (size) {
        if (hash->waiting == LB_BLOCK_BYTES) {
            hash->counted += LB_BLOCK_BYTES;
            lb_compress(hash, 0);
            hash->waiting = 0;
        }
        size_t part = LB_BLOCK_BYTES - hash->waiting;
        part = part < size ? part : size;
        memcpy(hash->block + hash->waiting, bytes, part);
        hash->waiting += part;
        bytes += part;
        size -= part;
    }
}

static inline void lb_finish(lb_hash *hash, uint8_t *digest) {
    hash->counted += hash->waiting;
    memset(hash->block + hash->waiting, 0, LB_BLOCK_BYTES - hash->waiting);
    lb_compress(hash, 1);
    memcpy(digest, hash->state, LB_DIGEST_BYTES);
}

#endif
