/* The memory that processes share beside the cache's database, and a filter of the keys that the database may hold.
 *
 * A journal is a file of one writer, mapped into it:
 *
 *   0   magic, 8 bytes
 *   8   generation: another one whenever the journal begins anew
 *   16  end: where its whole records end; stored last, so that whoever is killed leaves no half of one
 *   24  moved: what lies before it has been moved into the database
 *   64  records, each at a multiple of 8: its length, the vector's, a checksum of key and vector, the space's length
 *       (uint32 each), key (32 bytes), vector, space
 *
 * Everybody else reads it by system calls. That there is something new is told by the board, one more mapped file with a
 * counter of changes, so that a look-up that finds nothing new costs no system call. Numbers are those of the machine: the
 * files are never carried to another.
 *
 * The filter is a Bloom filter in blocks of one cache line: a key sets, and asks for, six bits of one block, 16 bits of
 * memory a key, and one key in 300 that was never set is taken for one that may be there.
 */
#ifndef LATTICE_VECTOR_CACHE_JOURNAL_H
#define LATTICE_VECTOR_CACHE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    LJ_GENERATION = 8,
    LJ_END = 16,
    LJ_MOVED = 24,
    LJ_HEADER_BYTES = 64,
    LJ_EPOCH = 64,
    LJ_CHANGES = 128,
    LJ_KEY_BYTES = 32,
    LJ_RECORD_HEADER_BYTES = 16 + LJ_KEY_BYTES,
    LJ_FILTER_BITS_A_KEY = 16,
};

static inline uint64_t lj_load(const uint8_t *memory) {
    return __atomic_load_n((const uint64_t *)(const void *)memory, __ATOMIC_SEQ_CST);
}

static inline void lj_store(uint8_t *memory, uint64_t value) {
    __atomic_store_n((uint64_t *)(void *)memory, value, __ATOMIC_SEQ_CST);
}

/* Add one and return what was there before. */
static inline uint64_t lj_add_one(uint8_t *memory) {
    return __atomic_fetch_add((uint64_t *)(void *)memory, 1, __ATOMIC_SEQ_CST);
}

/* A clock that costs no system call; its steps may be of some milliseconds. */
static inline int64_t lj_milliseconds(void) {
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Tells damaged bytes from whole ones. No table, as a CRC has one: it would come from memory at every store. */
static inline uint64_t lj_mix(uint64_t sum, const uint8_t *bytes, size_t size) {
    for (; size >= 8; bytes += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
        sum ^= sum >> 32;
    }
    uint64_t rest = size; /* so that zeros at the end count */
    memcpy(&rest, bytes, size);
    sum = (sum ^ rest ^ (uint64_t)size << 56) * 0x9E3779B97F4A7C15u;
    return sum ^ sum >> 32;
}

static inline uint32_t lj_checksum(const uint8_t *key, const uint8_t *vector, size_t vector_bytes) {
    return (uint32_t)lj_mix(lj_mix(vector_bytes, key, LJ_KEY_BYTES), vector, vector_bytes);
}

static inline size_t lj_record_bytes(size_t vector, size_t space) {
    return (LJ_RECORD_HEADER_BYTES + vector + space + 7) & ~(size_t)7;
}

/* Write a record where lj_record_bytes() are free. */
static inline void lj_write_record(uint8_t *place, const uint8_t *key, const uint8_t *vector, size_t vector_bytes,
                                   const uint8_t *space, size_t space_bytes) {
    const uint32_t fields[4] = {(uint32_t)lj_record_bytes(vector_bytes, space_bytes), (uint32_t)vector_bytes,
                                lj_checksum(key, vector, vector_bytes), (uint32_t)space_bytes};
    memcpy(place, fields, sizeof fields);
    memcpy(place + 16, key, LJ_KEY_BYTES);
    memcpy(place + LJ_RECORD_HEADER_BYTES, vector, vector_bytes);
    memcpy(place + LJ_RECORD_HEADER_BYTES + vector_bytes, space, space_bytes);
}

typedef struct {
    uint64_t word[8];
} lj_block;

/* Where a key's bits are: `*bits` has six numbers of nine bits. */
static inline size_t lj_place_of_key(const uint8_t *key, size_t blocks, uint64_t *bits) {
    const uint64_t mixed = lj_mix(0, key, LJ_KEY_BYTES);
    *bits = mixed * 0xD6E8FEB86659FD93u;
    *bits ^= *bits >> 29;
    return (size_t)(mixed % blocks);
}

static inline void lj_filter_add(lj_block *filter, size_t blocks, const uint8_t *key) {
    uint64_t bits;
    lj_block *block = filter + lj_place_of_key(key, blocks, &bits);
    for (int turn = 0; turn < 6; turn++, bits >>= 9)
        block->word[(bits >> 6) & 7] |= UINT64_C(1) << (bits & 63);
}

static inline bool lj_filter_may_hold(const lj_block *filter, size_t blocks, const uint8_t *key) {
    uint64_t bits;
    const lj_block *block = filter + lj_place_of_key(key, blocks, &bits);
    for (int turn = 0; turn < 6; turn++, bits >>= 9)
        if (!(block->word[(bits >> 6) & 7] >> (bits & 63) & 1))
            return false;
    return true;
}

#endif
