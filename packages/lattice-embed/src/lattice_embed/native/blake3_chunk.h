/* BLAKE3 with a digest of 32 bytes, of messages of at most one chunk (1,024 bytes) that all begin alike.
 *
 * Written to be small rather than fast: between two calls a model has gone through the processor's caches, and every line of
 * code comes from memory again. A short text is two blocks, less than a microsecond. Longer messages are left to the library
 * `blake3`, which works on several chunks at once.
 */
#ifndef LATTICE_EMBED_BLAKE3_CHUNK_H
#define LATTICE_EMBED_BLAKE3_CHUNK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LK_BLOCK_BYTES = 64, LK_CHUNK_BYTES = 1024, LK_DIGEST_BYTES = 32 };

enum { LK_CHUNK_START = 1, LK_CHUNK_END = 2, LK_ROOT = 8 };

typedef struct {
    uint32_t state[8];
    size_t compressed; /* bytes that have gone into the state */
    size_t waiting;    /* bytes in the block: a last block is not known as such before the end */
    uint8_t block[LK_BLOCK_BYTES];
} lk_hash;

static const uint32_t lk_initial[8] = {0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au,
                                       0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu, 0x5BE0CD19u};

static const uint8_t lk_permutation[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};

static inline uint32_t lk_rotate(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static inline void lk_compress(lk_hash *hash, uint32_t flags) {
    uint32_t v[16], message[16], permuted[16];
    memcpy(message, hash->block, sizeof message);
    memcpy(v, hash->state, sizeof hash->state);
    memcpy(v + 8, lk_initial, 4 * sizeof *v);
    v[12] = v[13] = 0; /* number of the chunk */
    v[14] = (uint32_t)hash->waiting;
    v[15] = flags | (hash->compressed ? 0 : LK_CHUNK_START);
    for (int round = 0; round < 7; round++) {
        for (int step = 0; step < 8; step++) {
            /* four columns, then four diagonals */
            const int shift = step >> 2;
            uint32_t *a = v + (step & 3), *b = v + 4 + ((step + shift) & 3), *c = v + 8 + ((step + 2 * shift) & 3),
                     *d = v + 12 + ((step + 3 * shift) & 3);
            *a += *b + message[2 * step];
            *d = lk_rotate(*d ^ *a, 16);
            *c += *d;
            *b = lk_rotate(*b ^ *c, 12);
            *a += *b + message[2 * step + 1];
            *d = lk_rotate(*d ^ *a, 8);
            *c += *d;
            *b = lk_rotate(*b ^ *c, 7);
        }
        for (int word = 0; word < 16; word++)
            permuted[word] = message[lk_permutation[word]];
        memcpy(message, permuted, sizeof message);
    }
    for (int word = 0; word < 8; word++)
        hash->state[word] = v[word] ^ v[word + 8];
    hash->compressed += hash->waiting;
    hash->waiting = 0;
}

static inline void lk_begin(lk_hash *hash) {
    memcpy(hash->state, lk_initial, sizeof lk_initial);
    hash->compressed = hash->waiting = 0;
}

/* Whether so many bytes more are still one chunk. */
static inline int lk_has_room(const lk_hash *hash, size_t size) {
    return size <= LK_CHUNK_BYTES - hash->compressed - hash->waiting;
}

static inline void lk_update(lk_hash *hash, const void *data, size_t size) {
    const uint8_t *bytes = data;
    while (size) {
        if (hash->waiting == LK_BLOCK_BYTES)
            lk_compress(hash, 0);
        size_t part = LK_BLOCK_BYTES - hash->waiting;
        part = part < size ? part : size;
        memcpy(hash->block + hash->waiting, bytes, part);
        hash->waiting += part;
        bytes += part;
        size -= part;
    }
}

static inline void lk_finish(lk_hash *hash, uint8_t *digest) {
    memset(hash->block + hash->waiting, 0, LK_BLOCK_BYTES - hash->waiting);
    lk_compress(hash, LK_CHUNK_END | LK_ROOT);
    memcpy(digest, hash->state, LK_DIGEST_BYTES);
}

#endif
