/* Sums between a float32 vector and a row that is float32, bfloat16 or float16: dot, cosine, the distances.
 *
 *     dot(a, b) = sum a_k b_k      squared(a, b) = sum (a_k - b_k)^2      manhattan(a, b) = sum |a_k - b_k|
 *     euclidean = sqrt(squared)    cosine = dot(a, b) / (|a| |b|), in [-1, 1], 0 if either vector is zero
 *
 * Order of additions (the same bits on every instruction set with FMA). A vector is read in blocks of sixteen floats, the
 * last one padded with zeros; block t is added, lane by lane, to accumulator t mod 4 (dot, distances, norms of normalize)
 * or t mod 2 (the three sums of cosine); then the accumulators are added pairwise and the sixteen lanes are folded in
 * simd.h's tree. Halves are widened exactly and then treated as floats: a half row scores as its float32 copy does.
 *
 * Error of a sum of n products: about (n / 64 + 10) 2^-24 of sum |a_k b_k|. Roots and quotients are taken in double.
 *
 * Range. Where a sum of squares leaves [1e-20, 1e30], single precision may have overflowed or lost small terms: cosine,
 * Euclidean distance and normalize then repeat the sums in double, one term after the other, where no float can overflow.
 *
 * Bound by loads: two per FMA for a pair.
 */
#ifndef LATTICE_ROW_SUMS_H
#define LATTICE_ROW_SUMS_H

#include <math.h>

#include "lattice/half.h"
#include "stored_rows.h"

#define BLOCK 16
#define SMALLEST_SQUARE 1e-20f
#define LARGEST_SQUARE 1e30f

LATTICE_INLINE int in_range(float sum_of_squares)
{
    return sum_of_squares >= SMALLEST_SQUARE && sum_of_squares <= LARGEST_SQUARE; /* NaN is not */
}

LATTICE_INLINE size_t bytes_of(int kind) { return kind == LATTICE_FLOAT32 ? 4 : 2; }

LATTICE_INLINE f32x16 load_whole(int kind, const void *row, size_t start)
{
    if (kind == LATTICE_FLOAT32)
        return f32x16_load((const float *)row + start);
    const uint16_t *halves = (const uint16_t *)row + start;
    return kind == LATTICE_BFLOAT16 ? f32x16_load_bfloat16(halves) : f32x16_load_float16(halves);
}

LATTICE_INLINE f32x16 load_block(int kind, const void *row, size_t start, size_t width)
{
    if (width - start >= BLOCK)
        return load_whole(kind, row, start);
    if (kind == LATTICE_FLOAT32)
        return f32x16_load_tail((const float *)row + start, width - start);
    uint16_t padded[BLOCK] = {0};
    memcpy(padded, (const uint16_t *)row + start, (width - start) * sizeof(uint16_t));
    return load_whole(kind, padded, 0);
}

LATTICE_INLINE double value_at(int kind, const void *row, size_t k)
{
    if (kind == LATTICE_FLOAT32)
        return (double)((const float *)row)[k];
    float lanes[BLOCK];
    f32x16_store(lanes, load_block(kind, (const uint16_t *)row + k, 0, 1));
    return (double)lanes[0];
}

LATTICE_INLINE f32x16 add_term(int metric, f32x16 sum, f32x16 a, f32x16 b)
{
    if (metric == LATTICE_DOT || metric == LATTICE_COSINE)
        return f32x16_fma(a, b, sum);
    const f32x16 difference = f32x16_sub(a, b);
    if (metric == LATTICE_MANHATTAN)
        return f32x16_add(sum, f32x16_abs(difference));
    return f32x16_fma(difference, difference, sum);
}

LATTICE_INLINE float sum_of_terms(int metric, int kind, const float *a, const void *b, size_t width)
{
    f32x16 sum[4] = {f32x16_zero(), f32x16_zero(), f32x16_zero(), f32x16_zero()};
    size_t k = 0;
    for (; k + 4 * BLOCK <= width; k += 4 * BLOCK)
        for (size_t i = 0; i < 4; i++)
            sum[i] = add_term(metric, sum[i], f32x16_load(a + k + i * BLOCK), load_whole(kind, b, k + i * BLOCK));
    for (size_t i = 0; i < 4; i++, k += BLOCK)
        if (k < width)
            sum[i] = add_term(metric, sum[i], load_block(LATTICE_FLOAT32, a, k, width), load_block(kind, b, k, width));
    return f32x16_fold_add(f32x16_add(f32x16_add(sum[0], sum[1]), f32x16_add(sum[2], sum[3])));
}

/* The sums that cosine needs. `aa` is left alone if it is NULL. */
LATTICE_INLINE void cosine_sums(int kind, const float *a, const void *b, size_t width, float *ab, float *aa, float *bb)
{
    f32x16 sum_ab[2] = {f32x16_zero(), f32x16_zero()};
    f32x16 sum_aa[2] = {f32x16_zero(), f32x16_zero()};
    f32x16 sum_bb[2] = {f32x16_zero(), f32x16_zero()};
    size_t k = 0;
    for (; k + 2 * BLOCK <= width; k += 2 * BLOCK)
        for (size_t i = 0; i < 2; i++) {
            const f32x16 x = f32x16_load(a + k + i * BLOCK), y = load_whole(kind, b, k + i * BLOCK);
            sum_ab[i] = f32x16_fma(x, y, sum_ab[i]);
            sum_bb[i] = f32x16_fma(y, y, sum_bb[i]);
            if (aa)
                sum_aa[i] = f32x16_fma(x, x, sum_aa[i]);
        }
    for (size_t i = 0; i < 2; i++, k += BLOCK)
        if (k < width) {
            const f32x16 x = load_block(LATTICE_FLOAT32, a, k, width), y = load_block(kind, b, k, width);
            sum_ab[i] = f32x16_fma(x, y, sum_ab[i]);
            sum_bb[i] = f32x16_fma(y, y, sum_bb[i]);
            if (aa)
                sum_aa[i] = f32x16_fma(x, x, sum_aa[i]);
        }
    *ab = f32x16_fold_add(f32x16_add(sum_ab[0], sum_ab[1]));
    *bb = f32x16_fold_add(f32x16_add(sum_bb[0], sum_bb[1]));
    if (aa)
        *aa = f32x16_fold_add(f32x16_add(sum_aa[0], sum_aa[1]));
}

static __attribute__((noinline)) double cosine_in_double(int kind, const float *a, const void *b, size_t width)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t k = 0; k < width; k++) {
        const double x = (double)a[k], y = value_at(kind, b, k);
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    if (aa == 0 || bb == 0)
        return ab; /* 0, or NaN where the other vector is not finite */
    return ab / (sqrt(aa) * sqrt(bb));
}

static __attribute__((noinline)) double euclidean_in_double(int kind, const float *a, const void *b, size_t width)
{
    double sum = 0;
    for (size_t k = 0; k < width; k++) {
        const double difference = (double)a[k] - value_at(kind, b, k);
        sum += difference * difference;
    }
    return sqrt(sum);
}

LATTICE_INLINE float clamped(double cosine)
{
    return cosine > 1.0 ? 1.0f : cosine < -1.0 ? -1.0f : (float)cosine; /* NaN passes */
}

LATTICE_INLINE float finish_cosine(int kind, float ab, float aa, float bb, const float *a, const void *b, size_t width)
{
    if (in_range(aa) && in_range(bb))
        return clamped((double)ab / (sqrt((double)aa) * sqrt((double)bb)));
    return clamped(cosine_in_double(kind, a, b, width));
}

LATTICE_INLINE float finish_euclidean(int kind, float squared, const float *a, const void *b, size_t width)
{
    return in_range(squared) ? (float)sqrt((double)squared) : (float)euclidean_in_double(kind, a, b, width);
}

LATTICE_INLINE float score_one(int metric, int kind, const float *a, const void *b, size_t width)
{
    if (metric == LATTICE_COSINE) {
        float ab, aa, bb;
        cosine_sums(kind, a, b, width, &ab, &aa, &bb);
        return finish_cosine(kind, ab, aa, bb, a, b, width);
    }
    const float sum = sum_of_terms(metric, kind, a, b, width);
    return metric == LATTICE_EUCLIDEAN ? finish_euclidean(kind, sum, a, b, width) : sum;
}

/* scores[i] = metric(a + i * a_step, row i of b), the metric and the kind known to the compiler. */
LATTICE_INLINE void score_each(int metric, int kind, const float *a, size_t a_step, const void *b, size_t count,
                               size_t width, float *scores)
{
    const size_t row_bytes = width * bytes_of(kind);
    if (metric != LATTICE_COSINE || a_step != 0) {
        for (size_t i = 0; i < count; i++)
            scores[i] = score_one(metric, kind, a + i * a_step, (const char *)b + i * row_bytes, width);
        return;
    }
    float ab, aa, bb;
    cosine_sums(LATTICE_FLOAT32, a, a, width, &ab, &aa, &bb);
    for (size_t i = 0; i < count; i++) {
        const void *row = (const char *)b + i * row_bytes;
        cosine_sums(kind, a, row, width, &ab, NULL, &bb);
        scores[i] = finish_cosine(kind, ab, aa, bb, a, row, width);
    }
}

LATTICE_INLINE void score_rows_of_kind(int metric, int kind, const float *a, size_t a_step, const void *b, size_t count,
                                       size_t width, float *scores)
{
    switch (metric) { /* a loop of its own for each */
    case LATTICE_DOT:
        score_each(LATTICE_DOT, kind, a, a_step, b, count, width, scores);
        break;
    case LATTICE_COSINE:
        score_each(LATTICE_COSINE, kind, a, a_step, b, count, width, scores);
        break;
    case LATTICE_EUCLIDEAN:
        score_each(LATTICE_EUCLIDEAN, kind, a, a_step, b, count, width, scores);
        break;
    case LATTICE_SQUARED_EUCLIDEAN:
        score_each(LATTICE_SQUARED_EUCLIDEAN, kind, a, a_step, b, count, width, scores);
        break;
    case LATTICE_MANHATTAN:
        score_each(LATTICE_MANHATTAN, kind, a, a_step, b, count, width, scores);
        break;
    }
}

#endif
