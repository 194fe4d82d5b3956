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

static void quantize_block_row(const float *x, int64_t k, float *row)
{
    const int64_t blocks = k / LATTICE_BLOCK;
    int32_t *sums = (int32_t *)row + blocks;
    int8_t *q = (int8_t *)(row + lattice_round_up(3 * blocks, 16));
    for (int64_t b = 0; b < blocks; b++, x += LATTICE_BLOCK, q += LATTICE_BLOCK) {
        const f32x16 first = f32x16_load(x), second = f32x16_load(x + 16);
        const float largest = f32x16_fold_max(f32x16_max(f32x16_abs(first), f32x16_abs(second)));
        const f32x16 poison = f32x16_add(f32x16_mul(first, f32x16_zero()), f32x16_mul(second, f32x16_zero()));
        const int flat = !(largest >= 0x1p-100f);
        const f32x16 inverse = f32x16_set1(flat ? 0.0f : 127.0f / largest);
        row[b] = (flat ? 0.0f : largest / 127.0f) + f32x16_fold_add(poison);
        for (int half = 0; half < 2; half++) {
            const f32x16 scaled = f32x16_mul(half == 0 ? first : second, inverse);
            /* what is not finite becomes a number: its scale says it */
            const f32x16 bounded = f32x16_max(f32x16_min(scaled, f32x16_set1(127.0f)), f32x16_set1(-127.0f));
            const i32x16 integers = i32x16_from_f32x16(f32x16_round(bounded));
            i32x16_store_bytes(q + 16 * half, integers);
            int32_t lanes[16], sum = 0;
            i32x16_store(lanes, integers);
            for (int i = 0; i < 16; i++)
                sum += lanes[i];
            sums[2 * b + half] = sum;
        }
    }
}

#endif
