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

#include "linear/block_format.h"
#include "lattice/simd_integer.h"
#include "linear/linear_output.h"
#include "rows/rows.h"

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
    const __m256i moved = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)q), _mm256_set1_epi8(-128)); /* q + 128 */
    const __m256i eights = _mm256_sad_epu8(moved, _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi32(eights, _mm256_srli_si256(eights, 8)); /* in lanes 0 and 4 */
    const __m256i together = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0));
    _mm_storel_epi64((__m128i *)sums, _mm_sub_epi32(_mm256_castsi256_si128(together), _mm_set1_epi32(16 * 128)));
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

/* Lane i becomes the maximum of vector i. */
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE f32x16 fold_max_of_each(const f32x16 *v)
{
    f32x16 eights[8], fours[4], twos[2];
    LATTICE_UNROLL for (int i = 0; i < 8; i++) /* two quarters of i, two of i + 8 */
        eights[i] = _mm512_max_ps(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    LATTICE_UNROLL for (int i = 0; i < 4; i++) /* a quarter each of i, i + 8, i + 4, i + 12 */
        fours[i] = _mm512_max_ps(_mm512_shuffle_f32x4(eights[i], eights[i + 4], 0x88),
                                 _mm512_shuffle_f32x4(eights[i], eights[i + 4], 0xdd));
    LATTICE_UNROLL for (int i = 0; i < 2; i++) /* in each quarter i, i + 2, i, i + 2 */
        twos[i] = _mm512_max_ps(_mm512_unpacklo_ps(fours[i], fours[i + 2]), _mm512_unpackhi_ps(fours[i], fours[i + 2]));
    const f32x16 ones = _mm512_max_ps(_mm512_unpacklo_ps(twos[0], twos[1]), _mm512_unpackhi_ps(twos[0], twos[1]));
    return _mm512_shuffle_f32x4(ones, ones, 0xd8);
}
#else
LATTICE_INLINE f32x16 fold_max_of_each(const f32x16 *v)
{
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = f32x16_fold_max(v[i]);
    return f32x16_load(lanes);
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
        float inverse[16];
        f32x16 largest[16];
        for (int64_t b = 0; b < here; b++) {
            const float *block = x + (group + b) * LATTICE_BLOCK;
            const f32x16 first = f32x16_load(block), second = f32x16_load(block + 16);
            poison = f32x16_fma(first, f32x16_zero(), poison);
            poison = f32x16_fma(second, f32x16_zero(), poison);
            largest[b] = f32x16_max(f32x16_abs(first), f32x16_abs(second));
        }
        for (int64_t b = here; b < 16; b++)
            largest[b] = f32x16_zero();
        const f32x16 most = fold_max_of_each(largest), full = f32x16_set1(127.0f);
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
        }
        for (int64_t b = group; b < group + here; b++) /* once the bytes are in cache: they were stored by halves */
            sum_halves(q + (b - group - here) * LATTICE_BLOCK, sums + 2 * b);
    }
    if (!(f32x16_fold_add(poison) == 0.0f))
        mark_not_finite(x, blocks, row);
}

#endif
