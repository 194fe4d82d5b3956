/* Rows of activations as int8, a scale for each block of 32, for linears with block-quantized weights.
 *
 *     scale = max |x| / 127,  q[k] = round(x[k] * (127 / max |x|))               so x[k] ~ scale * q[k], |q| <= 127
 *
 * rounded to float32 operation by operation, ties to even; a block whose maximum is below 2^-100 has the scale 0, and one with
 * an element that is NaN or infinite a scale that is not finite. A block depends on its own elements only, so on no company.
 *
 * A row in memory: scales (float) [k / 32], sums of q over the halves of each block (int32) [k / 32][2], padding to a multiple
 * of 64 bytes, q (int8) [k].
 */
#ifndef LATTICE_BLOCK_ROWS_H
#define LATTICE_BLOCK_ROWS_H

#include "block_format.h"
#include "lattice/simd_integer.h"
#include "rows.h"

typedef struct {
    const float *scales;
    const int32_t *sums;
    const int8_t *q;
} block_row;

LATTICE_INLINE block_row block_row_at(const float *row, int64_t k)
{
    const int64_t blocks = k / LATTICE_BLOCK;
    return (block_row){row, (const int32_t *)row + blocks, (const int8_t *)(row + lattice_round_up(3 * blocks, 16))};
}

#if defined(LATTICE_ISA_AVX512) || defined(LATTICE_ISA_AVX2)
/* The sums of the halves of a block. */
LATTICE_INLINE void sum_halves(const int8_t *q, int32_t *sums)
{
    const __m128i sign = _mm_set1_epi8(-128), zero = _mm_setzero_si128();
    for (int half = 0; half < 2; half++) {
        const __m128i moved = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(q + 16 * half)), sign); /* q + 128 */
        const __m128i eights = _mm_sad_epu8(moved, zero);
        sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
    }
}
#else
LATTICE_INLINE void sum_halves(const int8_t *q, int32_t *sums)
{
    for (int half = 0; half < 2; half++) {
        sums[half] = 0;
        for (int i = 0; i < 16; i++)
            sums[half] += q[16 * half + i];
    }
}
#endif

/* Where an element is not finite the scale of its block says so. */
static void mark_not_finite(const float *x, int64_t blocks, float *scales)
{
    for (int64_t b = 0; b < blocks; b++, x += LATTICE_BLOCK) {
        const f32x16 poison = f32x16_add(f32x16_mul(f32x16_load(x), f32x16_zero()), f32x16_mul(f32x16_load(x + 16), f32x16_zero()));
        scales[b] += f32x16_fold_add(poison);
    }
}

static void quantize_block_row(const float *x, int64_t k, float *row)
{
    const int64_t blocks = k / LATTICE_BLOCK;
    int32_t *sums = (int32_t *)row + blocks;
    int8_t *q = (int8_t *)(row + lattice_round_up(3 * blocks, 16));
    f32x16 poison = f32x16_zero();
    for (int64_t group = 0; group < blocks; group += 16) { /* sixteen blocks are divided at once */
        const int64_t here = blocks - group < 16 ? blocks - group : 16;
        float largest[16] = {0}, inverse[16];
        for (int64_t b = 0; b < here; b++) {
            const float *block = x + (group + b) * LATTICE_BLOCK;
            const f32x16 first = f32x16_load(block), second = f32x16_load(block + 16);
            poison = f32x16_add(poison, f32x16_mul(first, f32x16_zero()));
            poison = f32x16_add(poison, f32x16_mul(second, f32x16_zero()));
            largest[b] = f32x16_fold_max(f32x16_max(f32x16_abs(first), f32x16_abs(second)));
        }
        const f32x16 most = f32x16_load(largest), full = f32x16_set1(127.0f);
        const m16 counts = f32x16_less(f32x16_set1(0x1.fffffep-101f), most); /* from 2^-100 on */
        f32x16_store(inverse, f32x16_select(counts, f32x16_div(full, most), f32x16_zero()));
        store_part(row, group, blocks, f32x16_select(counts, f32x16_div(most, full), f32x16_zero()));
        for (int64_t b = group; b < group + here; b++, q += LATTICE_BLOCK) {
            for (int half = 0; half < LATTICE_BLOCK; half += 16) {
                const f32x16 scaled = f32x16_mul(f32x16_load(x + b * LATTICE_BLOCK + half), f32x16_set1(inverse[b - group]));
                /* what is not finite becomes a number: its scale says it */
                const f32x16 bounded = f32x16_max(f32x16_min(scaled, full), f32x16_neg(full));
                i32x16_store_bytes(q + half, i32x16_round_f32x16(bounded));
            }
            sum_halves(q, sums + 2 * b);
        }
    }
    if (!(f32x16_fold_add(poison) == 0.0f))
        mark_not_finite(x, blocks, row);
}

#endif
