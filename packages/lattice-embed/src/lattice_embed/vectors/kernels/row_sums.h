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
#define PAIR_STREAMS 4
#else
#define QUERY_STREAMS 1
#define PAIR_STREAMS 1
#endif
#if defined(__clang__)
#define UNROLL_FOUR _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL_FOUR _Pragma("GCC unroll 4")
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

#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512)
/* Four folds in the tree of f32x16_fold_add, side by side: halves are added first, then quarters, pairs, neighbours. */
LATTICE_INLINE void fold_four(const f32x16 *sum, float *sums)
{
    __m512 eight[2];
    for (int i = 0; i < 2; i++)
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(sum[2 * i], sum[2 * i + 1], 0x44),
                                 _mm512_shuffle_f32x4(sum[2 * i], sum[2 * i + 1], 0xee));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                                      _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(
                            _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), one)));
}
#define FOLD_FOUR 1
#endif

LATTICE_INLINE void fold_rows(int rows, const f32x16 *sum, float *sums)
{
#if defined(FOLD_FOUR)
    if (rows == 4) {
        fold_four(sum, sums);
        return;
    }
#endif
    for (int r = 0; r < rows; r++)
        sums[r] = f32x16_fold_add(sum[r]);
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
    LATTICE_UNROLL for (size_t i = 0; i < 4; i++)
        if (k + i * BLOCK < width)
            LATTICE_UNROLL for (int r = 0; r < rows; r++)
                sum[r][i] = add_term(metric, sum[r][i],
                                     load_block(LATTICE_FLOAT32, a + (size_t)r * a_gap, k + i * BLOCK, width),
                                     load_block(kind, (const char *)b + (size_t)r * b_gap, k + i * BLOCK, width));
    f32x16 total[QUERY_STREAMS];
    for (int r = 0; r < rows; r++)
        total[r] = f32x16_add(f32x16_add(sum[r][0], sum[r][1]), f32x16_add(sum[r][2], sum[r][3]));
    fold_rows(rows, total, sums);
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
    LATTICE_UNROLL for (size_t i = 0; i < 2; i++)
        if (k + i * BLOCK < width)
            LATTICE_UNROLL for (int r = 0; r < rows; r++)
            {
                const f32x16 x = load_block(LATTICE_FLOAT32, a + (size_t)r * a_gap, k + i * BLOCK, width);
                const f32x16 y = load_block(kind, (const char *)b + (size_t)r * b_gap, k + i * BLOCK, width);
                sum_ab[r][i] = f32x16_fma(x, y, sum_ab[r][i]);
                sum_bb[r][i] = f32x16_fma(y, y, sum_bb[r][i]);
                if (aa)
                    sum_aa[r][i] = f32x16_fma(x, x, sum_aa[r][i]);
            }
    f32x16 total_ab[QUERY_STREAMS], total_aa[QUERY_STREAMS], total_bb[QUERY_STREAMS];
    for (int r = 0; r < rows; r++) {
        total_ab[r] = f32x16_add(sum_ab[r][0], sum_ab[r][1]);
        total_aa[r] = f32x16_add(sum_aa[r][0], sum_aa[r][1]);
        total_bb[r] = f32x16_add(sum_bb[r][0], sum_bb[r][1]);
    }
    fold_rows(rows, total_ab, ab);
    fold_rows(rows, total_bb, bb);
    if (aa)
        fold_rows(rows, total_aa, aa);
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

#if defined(FOLD_FOUR)
/* finish_cosine of four pairs at once, or 0 where one of them needs more than that. */
LATTICE_INLINE int finish_four_cosines(const float *ab, __m128 aa, const float *bb, float *scores)
{
    const __m128 squares = _mm_loadu_ps(bb), least = _mm_set1_ps(SMALLEST_SQUARE), most = _mm_set1_ps(LARGEST_SQUARE);
    const __mmask8 good = _mm_cmp_ps_mask(squares, least, _CMP_GE_OQ) & _mm_cmp_ps_mask(squares, most, _CMP_LE_OQ) &
                          _mm_cmp_ps_mask(aa, least, _CMP_GE_OQ) & _mm_cmp_ps_mask(aa, most, _CMP_LE_OQ);
    if (good != 15)
        return 0;
    const __m256d lengths = _mm256_mul_pd(_mm256_sqrt_pd(_mm256_cvtps_pd(aa)), _mm256_sqrt_pd(_mm256_cvtps_pd(squares)));
    __m256d cosines = _mm256_div_pd(_mm256_cvtps_pd(_mm_loadu_ps(ab)), lengths);
    cosines = _mm256_min_pd(_mm256_set1_pd(1.0), _mm256_max_pd(_mm256_set1_pd(-1.0), cosines)); /* NaN stands second */
    _mm_storeu_ps(scores, _mm256_cvtpd_ps(cosines));
    return 1;
}
#endif

/* `rows` scores as above, of a's rows or, where `query_square` is not NULL, of one vector whose sum of squares that is. The
 * score of pair r goes to scores[r * gap].
 */
LATTICE_INLINE void score_some(int rows, int metric, int kind, const float *a, size_t a_gap, const float *query_square,
                               const void *b, size_t b_gap, size_t width, float *scores, size_t gap)
{
    if (metric == LATTICE_COSINE) {
        float ab[QUERY_STREAMS], aa[QUERY_STREAMS], bb[QUERY_STREAMS];
        cosine_sums(rows, kind, a, a_gap, b, b_gap, width, ab, query_square ? NULL : aa, bb);
#if defined(FOLD_FOUR)
        float four[4];
        if (rows == 4 &&
            finish_four_cosines(ab, query_square ? _mm_set1_ps(*query_square) : _mm_loadu_ps(aa), bb, four)) {
            for (int r = 0; r < 4; r++)
                scores[(size_t)r * gap] = four[r];
            return;
        }
#endif
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
