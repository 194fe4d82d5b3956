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
 * Bound by loads: two per FMA for a pair. Rows that come from memory are read as several streams, where the registers hold
 * the sums of several rows, because the prefetcher keeps more lines on their way for several streams than for one:
 *
 *     rows 0 .. count / 4       [ 0 1 2 ... ]      row i of every part at once: the query is loaded once for all
 *     rows count / 4 ..         [ 0 1 2 ... ]
 *       ...
 */
#ifndef LATTICE_ROW_SUMS_H
#define LATTICE_ROW_SUMS_H

#include <math.h>

#include "lattice/half.h"
#include "stored_rows.h"

#define BLOCK 16

/* Rows at once: against one query, and of pairs (each has two rows). Sums of two rows would leave 16 registers. */
#if defined(LATTICE_ISA_AVX512)
#define QUERY_STREAMS 4
#define PAIR_STREAMS 2
#else
#define QUERY_STREAMS 1
#define PAIR_STREAMS 1
#endif
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

/* Of `rows` pairs at once, known to the compiler: vector r is at a + r * a_gap floats and at b + r * b_gap bytes. */
LATTICE_INLINE void sums_of_terms(int rows, int metric, int kind, const float *a, size_t a_gap, const void *b, size_t b_gap,
                                  size_t width, float *sums)
{
    f32x16 sum[QUERY_STREAMS][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++)
            sum[r][i] = f32x16_zero();
    size_t k = 0;
    for (; k + 4 * BLOCK <= width; k += 4 * BLOCK)
        for (size_t i = 0; i < 4; i++)
            for (int r = 0; r < rows; r++)
                sum[r][i] = add_term(metric, sum[r][i], f32x16_load(a + (size_t)r * a_gap + k + i * BLOCK),
                                     load_whole(kind, (const char *)b + (size_t)r * b_gap, k + i * BLOCK));
    for (size_t i = 0; i < 4; i++, k += BLOCK)
        if (k < width)
            for (int r = 0; r < rows; r++)
                sum[r][i] = add_term(metric, sum[r][i], load_block(LATTICE_FLOAT32, a + (size_t)r * a_gap, k, width),
                                     load_block(kind, (const char *)b + (size_t)r * b_gap, k, width));
    for (int r = 0; r < rows; r++)
        sums[r] = f32x16_fold_add(f32x16_add(f32x16_add(sum[r][0], sum[r][1]), f32x16_add(sum[r][2], sum[r][3])));
}

LATTICE_INLINE float sum_of_terms(int metric, int kind, const float *a, const void *b, size_t width)
{
    float sum;
    sums_of_terms(1, metric, kind, a, 0, b, 0, width, &sum);
    return sum;
}

/* The sums that cosine needs, of `rows` pairs as above. `aa` is left alone if it is NULL. */
LATTICE_INLINE void cosine_sums(int rows, int kind, const float *a, size_t a_gap, const void *b, size_t b_gap, size_t width,
                                float *ab, float *aa, float *bb)
{
    f32x16 sum_ab[QUERY_STREAMS][2], sum_aa[QUERY_STREAMS][2], sum_bb[QUERY_STREAMS][2];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2; i++)
            sum_ab[r][i] = sum_aa[r][i] = sum_bb[r][i] = f32x16_zero();
    size_t k = 0;
    for (; k + 2 * BLOCK <= width; k += 2 * BLOCK)
        for (size_t i = 0; i < 2; i++)
            for (int r = 0; r < rows; r++) {
                const f32x16 x = f32x16_load(a + (size_t)r * a_gap + k + i * BLOCK);
                const f32x16 y = load_whole(kind, (const char *)b + (size_t)r * b_gap, k + i * BLOCK);
                sum_ab[r][i] = f32x16_fma(x, y, sum_ab[r][i]);
                sum_bb[r][i] = f32x16_fma(y, y, sum_bb[r][i]);
                if (aa)
                    sum_aa[r][i] = f32x16_fma(x, x, sum_aa[r][i]);
            }
    for (size_t i = 0; i < 2; i++, k += BLOCK)
        if (k < width)
            for (int r = 0; r < rows; r++) {
                const f32x16 x = load_block(LATTICE_FLOAT32, a + (size_t)r * a_gap, k, width);
                const f32x16 y = load_block(kind, (const char *)b + (size_t)r * b_gap, k, width);
                sum_ab[r][i] = f32x16_fma(x, y, sum_ab[r][i]);
                sum_bb[r][i] = f32x16_fma(y, y, sum_bb[r][i]);
                if (aa)
                    sum_aa[r][i] = f32x16_fma(x, x, sum_aa[r][i]);
            }
    for (int r = 0; r < rows; r++) {
        ab[r] = f32x16_fold_add(f32x16_add(sum_ab[r][0], sum_ab[r][1]));
        bb[r] = f32x16_fold_add(f32x16_add(sum_bb[r][0], sum_bb[r][1]));
        if (aa)
            aa[r] = f32x16_fold_add(f32x16_add(sum_aa[r][0], sum_aa[r][1]));
    }
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

/* `rows` scores as above, of a's rows or, where `query_square` is not NULL, of one vector whose sum of squares that is. The
 * score of pair r goes to scores[r * gap].
 */
LATTICE_INLINE void score_some(int rows, int metric, int kind, const float *a, size_t a_gap, const float *query_square,
                               const void *b, size_t b_gap, size_t width, float *scores, size_t gap)
{
    if (metric == LATTICE_COSINE) {
        float ab[QUERY_STREAMS], aa[QUERY_STREAMS], bb[QUERY_STREAMS];
        cosine_sums(rows, kind, a, a_gap, b, b_gap, width, ab, query_square ? NULL : aa, bb);
        for (int r = 0; r < rows; r++)
            scores[(size_t)r * gap] =
                finish_cosine(kind, ab[r], query_square ? *query_square : aa[r], bb[r], a + (size_t)r * a_gap,
                              (const char *)b + (size_t)r * b_gap, width);
        return;
    }
    float sums[QUERY_STREAMS];
    sums_of_terms(rows, metric, kind, a, a_gap, b, b_gap, width, sums);
    for (int r = 0; r < rows; r++)
        scores[(size_t)r * gap] = metric != LATTICE_EUCLIDEAN
                                      ? sums[r]
                                      : finish_euclidean(kind, sums[r], a + (size_t)r * a_gap,
                                                         (const char *)b + (size_t)r * b_gap, width);
}

LATTICE_INLINE float score_one(int metric, int kind, const float *a, const void *b, size_t width)
{
    float score;
    score_some(1, metric, kind, a, 0, NULL, b, 0, width, &score, 0);
    return score;
}

/* scores[i] = metric(a + i * a_step, row i of b) in `streams` parts, metric, kind and streams known to the compiler. */
LATTICE_INLINE void score_parts(int streams, int metric, int kind, const float *a, size_t a_step, const float *query_square,
                                const void *b, size_t count, size_t width, float *scores)
{
    const size_t row_bytes = width * bytes_of(kind), part = count / (size_t)streams;
    for (size_t i = 0; i < part; i++)
        score_some(streams, metric, kind, a + i * a_step, part * a_step, query_square, (const char *)b + i * row_bytes,
                   part * row_bytes, width, scores + i, part);
    for (size_t i = part * (size_t)streams; i < count; i++)
        score_some(1, metric, kind, a + i * a_step, 0, query_square, (const char *)b + i * row_bytes, 0, width, scores + i,
                   0);
}

LATTICE_INLINE void score_each(int metric, int kind, const float *a, size_t a_step, const void *b, size_t count,
                               size_t width, float *scores)
{
    if (a_step != 0) {
        score_parts(PAIR_STREAMS, metric, kind, a, a_step, NULL, b, count, width, scores);
        return;
    }
    float square = 0.0f, ignored;
    if (metric == LATTICE_COSINE)
        cosine_sums(1, LATTICE_FLOAT32, a, 0, a, 0, width, &ignored, NULL, &square);
    score_parts(QUERY_STREAMS, metric, kind, a, 0, &square, b, count, width, scores);
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
