/* Draws that are not stored: words of 32 bits of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * 2011), which depend on a key and a place only. graph/reverse_ops.py says which block an element has.
 */
#ifndef LATTICE_DRAWS_H
#define LATTICE_DRAWS_H

#include "step.h"

#define DRAWS_OF_BLOCK 8

static inline uint64_t high_product(uint64_t a, uint64_t b, uint64_t *low)
{
#if defined(__SIZEOF_INT128__)
    const unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    *low = a * b;
    return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

/* The eight words of a block. */
static inline void draw_block(uint64_t key, uint64_t stream, uint64_t place, uint64_t number, uint64_t step, uint32_t *words)
{
    uint64_t c0 = place, c1 = number, c2 = step, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t low0, low1;
        const uint64_t high0 = high_product(0xD2E7470EE14C6C93u, c0, &low0), high1 = high_product(0xCA5A826395121157u, c2, &low1);
        c0 = high1 ^ c1 ^ key;
        c1 = low1;
        c2 = high0 ^ c3 ^ stream;
        c3 = low0;
        key += 0x9E3779B97F4A7C15u;
        stream += 0xBB67AE8584CAA73Bu;
    }
    const uint64_t block[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; i++) {
        words[2 * i] = (uint32_t)block[i];
        words[2 * i + 1] = (uint32_t)(block[i] >> 32);
    }
}

/* Words of the columns [first, first + count) of row `row` of `width` columns, `first` being a multiple of eight; `words` has
 * room for whole blocks. */
static inline void draw_columns(const lattice_draws *draws, uint64_t stream, int64_t number, int64_t row, int64_t width,
                                int64_t first, int64_t count, uint32_t *words)
{
    const uint64_t begin = (uint64_t)(row * lattice_divide_up(width, DRAWS_OF_BLOCK) + first / DRAWS_OF_BLOCK + 1);
    for (int64_t i = 0; i < lattice_divide_up(count, DRAWS_OF_BLOCK); i++)
        draw_block(draws->seed, stream, begin + (uint64_t)i, (uint64_t)number, draws->step, words + i * DRAWS_OF_BLOCK);
}

#endif
