/* Exponentials of scores, and the merging of what segments of keys give: shared by both attentions. */
#ifndef LATTICE_SOFTMAX_H
#define LATTICE_SOFTMAX_H

#include "lattice/vector_math.h"

/* s -> exp(scale s - shift) for 16 `count` keys, and their sum after `total`. */
LATTICE_INLINE f32x16 exponentials(int count, float *s, f32x16 scale, f32x16 shift, f32x16 total)
{
    f32x16 p[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++)
        p[j] = f32x16_sub(f32x16_mul(f32x16_load(s + 16 * j), scale), shift);
    lattice_exp_each(count, p, p);
    for (int j = 0; j < count; j++) {
        f32x16_store(s + 16 * j, p[j]);
        total = f32x16_add(total, p[j]);
    }
    return total;
}

/* s -> exp(x - max(x)) for x = scale s of keys [first, end), in place, and 0 beside them up to multiples of 16. Returns the
 * maximum and the sum, which goes through sixteen lanes by the number of the key. */
LATTICE_INLINE void softmax_part(float *s, int64_t first, int64_t end, f32x16 scale, float *maximum, float *sum)
{
    const int64_t begin = first / 16 * 16, padded = (end + 15) / 16 * 16;
    for (int64_t j = begin; j < first; j++)
        s[j] = -__builtin_inff();
    for (int64_t j = end; j < padded; j++)
        s[j] = -__builtin_inff();
    f32x16 most = f32x16_mul(f32x16_load(s + begin), scale);
    for (int64_t j = begin + 16; j < padded; j += 16)
        most = f32x16_max(most, f32x16_mul(f32x16_load(s + j), scale));
    *maximum = f32x16_fold_max(most);
    const f32x16 shift = f32x16_set1(*maximum);
    f32x16 total = f32x16_zero();
    int64_t j = begin;
    for (; j + 16 * LATTICE_SIDE_BY_SIDE <= padded; j += 16 * LATTICE_SIDE_BY_SIDE)
        total = exponentials(LATTICE_SIDE_BY_SIDE, s + j, scale, shift, total);
    for (; j < padded; j += 16)
        total = exponentials(1, s + j, scale, shift, total);
    *sum = f32x16_fold_add(total);
}

static float exponential(float x)
{
    float lanes[16];
    f32x16_store(lanes, f32x16_exp(f32x16_set1(x)));
    return lanes[0];
}

/* Folds a later segment's (output, maximum, sum) into those of the segments before it. */
LATTICE_INLINE void merge_segment(float *output, float *maximum, float *sum, const float *output2, float maximum2,
                                  float sum2, int64_t width)
{
    const float most = *maximum > maximum2 ? *maximum : maximum2;
    const float factor = exponential(*maximum - most), factor2 = exponential(maximum2 - most);
    const f32x16 f1 = f32x16_set1(factor), f2 = f32x16_set1(factor2);
    for (int64_t d = 0; d < width; d += 16)
        f32x16_store(output + d, f32x16_fma(f32x16_load(output2 + d), f2, f32x16_mul(f32x16_load(output + d), f1)));
    float lanes[16];
    f32x16_store(lanes, f32x16_fma(f32x16_set1(sum2), f2, f32x16_mul(f32x16_set1(*sum), f1)));
    *sum = lanes[0];
    *maximum = most;
}

#endif
