/* Vector operations: dot, cosine, Euclidean, squared Euclidean and Manhattan, between pairs, rows and matrices; row norms.
 *
 *     dot(a, b) = sum a_k b_k      squared(a, b) = sum (a_k - b_k)^2      manhattan(a, b) = sum |a_k - b_k|
 *     euclidean = sqrt(squared)    cosine = dot(a, b) / (|a| |b|), in [-1, 1], 0 if either vector is zero
 *
 * Matrices are rows of `width` floats, one after the other.
 *
 * Order of additions (the same bits on every instruction set with FMA). A vector is read in blocks of sixteen floats, the
 * last one padded with zeros; block t is added, lane by lane, to accumulator t mod 4 (dot, distances, norms of normalize)
 * or t mod 2 (the three sums of cosine); then the accumulators are added pairwise and the sixteen lanes are folded in
 * simd.h's tree. One-vs-many does for each row what a pair does, so its scores are those bits. Many-vs-many keeps a tile
 * of outputs in registers and therefore one accumulator for each: it agrees with the pairs to rounding.
 *
 * Error of a sum of n products: about (n / 64 + 10) 2^-24 of sum |a_k b_k|. Roots and quotients are taken in double.
 *
 * Range. Where a sum of squares leaves [1e-20, 1e30], single precision may have overflowed or lost small terms: cosine,
 * Euclidean distance and normalize then repeat the sums in double, one term after the other, where no float can overflow.
 *
 * Bound by loads: two per FMA for a pair, 7 per 12 FMAs in a 4 x 3 tile of many-vs-many, where FMAs bound.
 */
#include <math.h>

#include "lattice/simd.h"
#include "vector_kernels.h"

/* Rows of a times rows of b whose sums stay in registers: 16 of 32 zmm or q, 12 of 16 ymm or xmm. */
#define TILE_A 4
#if defined(LATTICE_ISA_AVX512) || defined(__aarch64__)
#define TILE_B 4
#else
#define TILE_B 3
#endif

#define BLOCK 16
#define SMALLEST_SQUARE 1e-20f
#define LARGEST_SQUARE 1e30f

LATTICE_INLINE int in_range(float sum_of_squares)
{
    return sum_of_squares >= SMALLEST_SQUARE && sum_of_squares <= LARGEST_SQUARE; /* NaN is not */
}

LATTICE_INLINE f32x16 load_block(const float *vector, size_t start, size_t width)
{
    return width - start >= BLOCK ? f32x16_load(vector + start) : f32x16_load_tail(vector + start, width - start);
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

LATTICE_INLINE float sum_of_terms(int metric, const float *a, const float *b, size_t width)
{
    f32x16 sum[4] = {f32x16_zero(), f32x16_zero(), f32x16_zero(), f32x16_zero()};
    size_t k = 0;
    for (; k + 4 * BLOCK <= width; k += 4 * BLOCK)
        for (int i = 0; i < 4; i++)
            sum[i] = add_term(metric, sum[i], f32x16_load(a + k + i * BLOCK), f32x16_load(b + k + i * BLOCK));
    for (int i = 0; i < 4; i++, k += BLOCK)
        if (k < width)
            sum[i] = add_term(metric, sum[i], load_block(a, k, width), load_block(b, k, width));
    return f32x16_fold_add(f32x16_add(f32x16_add(sum[0], sum[1]), f32x16_add(sum[2], sum[3])));
}

/* The sums that cosine needs. `aa` is left alone if it is NULL. */
LATTICE_INLINE void cosine_sums(const float *a, const float *b, size_t width, float *ab, float *aa, float *bb)
{
    f32x16 sum_ab[2] = {f32x16_zero(), f32x16_zero()};
    f32x16 sum_aa[2] = {f32x16_zero(), f32x16_zero()};
    f32x16 sum_bb[2] = {f32x16_zero(), f32x16_zero()};
    size_t k = 0;
    for (; k + 2 * BLOCK <= width; k += 2 * BLOCK)
        for (int i = 0; i < 2; i++) {
            const f32x16 x = f32x16_load(a + k + i * BLOCK), y = f32x16_load(b + k + i * BLOCK);
            sum_ab[i] = f32x16_fma(x, y, sum_ab[i]);
            sum_bb[i] = f32x16_fma(y, y, sum_bb[i]);
            if (aa)
                sum_aa[i] = f32x16_fma(x, x, sum_aa[i]);
        }
    for (int i = 0; i < 2; i++, k += BLOCK)
        if (k < width) {
            const f32x16 x = load_block(a, k, width), y = load_block(b, k, width);
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

static __attribute__((noinline)) double cosine_in_double(const float *a, const float *b, size_t width)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t k = 0; k < width; k++) {
        ab += (double)a[k] * (double)b[k];
        aa += (double)a[k] * (double)a[k];
        bb += (double)b[k] * (double)b[k];
    }
    if (aa == 0 || bb == 0)
        return ab; /* 0, or NaN where the other vector is not finite */
    return ab / (sqrt(aa) * sqrt(bb));
}

static __attribute__((noinline)) double euclidean_in_double(const float *a, const float *b, size_t width)
{
    double sum = 0;
    for (size_t k = 0; k < width; k++) {
        const double difference = (double)a[k] - (double)b[k];
        sum += difference * difference;
    }
    return sqrt(sum);
}

LATTICE_INLINE float clamped(double cosine)
{
    return cosine > 1.0 ? 1.0f : cosine < -1.0 ? -1.0f : (float)cosine; /* NaN passes */
}

LATTICE_INLINE float finish_cosine(float ab, float aa, float bb, const float *a, const float *b, size_t width)
{
    if (in_range(aa) && in_range(bb))
        return clamped((double)ab / (sqrt((double)aa) * sqrt((double)bb)));
    return clamped(cosine_in_double(a, b, width));
}

LATTICE_INLINE float finish_euclidean(float squared, const float *a, const float *b, size_t width)
{
    return in_range(squared) ? (float)sqrt((double)squared) : (float)euclidean_in_double(a, b, width);
}

LATTICE_INLINE float score_pair(int metric, const float *a, const float *b, size_t width)
{
    if (metric == LATTICE_COSINE) {
        float ab, aa, bb;
        cosine_sums(a, b, width, &ab, &aa, &bb);
        return finish_cosine(ab, aa, bb, a, b, width);
    }
    const float sum = sum_of_terms(metric, a, b, width);
    return metric == LATTICE_EUCLIDEAN ? finish_euclidean(sum, a, b, width) : sum;
}

static float dot(const float *a, const float *b, size_t width) { return score_pair(LATTICE_DOT, a, b, width); }
static float cosine(const float *a, const float *b, size_t width) { return score_pair(LATTICE_COSINE, a, b, width); }
static float euclidean(const float *a, const float *b, size_t width)
{
    return score_pair(LATTICE_EUCLIDEAN, a, b, width);
}
static float squared_euclidean(const float *a, const float *b, size_t width)
{
    return score_pair(LATTICE_SQUARED_EUCLIDEAN, a, b, width);
}
static float manhattan(const float *a, const float *b, size_t width)
{
    return score_pair(LATTICE_MANHATTAN, a, b, width);
}

static float (*const PAIR[LATTICE_METRIC_COUNT])(const float *, const float *, size_t) = {
    [LATTICE_DOT] = dot,
    [LATTICE_COSINE] = cosine,
    [LATTICE_EUCLIDEAN] = euclidean,
    [LATTICE_SQUARED_EUCLIDEAN] = squared_euclidean,
    [LATTICE_MANHATTAN] = manhattan,
};

static void score_rows(int metric, const float *a, size_t a_step, const float *b, size_t count, size_t width,
                       float *scores)
{
    if (metric != LATTICE_COSINE || a_step != 0) {
        for (size_t i = 0; i < count; i++)
            scores[i] = PAIR[metric](a + i * a_step, b + i * width, width);
        return;
    }
    float ab, aa, bb;
    cosine_sums(a, a, width, &ab, &aa, &bb);
    for (size_t i = 0; i < count; i++) {
        const float *row = b + i * width;
        cosine_sums(a, row, width, &ab, NULL, &bb);
        scores[i] = finish_cosine(ab, aa, bb, a, row, width);
    }
}

LATTICE_INLINE vf add_native_term(int metric, vf sum, vf a, vf b)
{
    if (metric == LATTICE_DOT || metric == LATTICE_COSINE)
        return vf_fma(a, b, sum);
    const vf difference = vf_sub(a, b);
    if (metric == LATTICE_MANHATTAN)
        return vf_fma(vf_set1(1.0f), vf_abs(difference), sum); /* exact product: one rounding, as an addition */
    return vf_fma(difference, difference, sum);
}

/* A tile of many-vs-many: the sums between up to TILE_A rows of a and TILE_B rows of b. Rows that are not there are read
 * as the last one that is, and not written.
 *
 *            b0  b1  b2      each step loads a register of every row once
 *       a0 [ .   .   .  ]    and makes TILE_A x TILE_B terms of it
 *       a1 [ .   .   .  ]
 *
 * The sixteen lanes of a sum are computed a native register at a time, over all of k: each lane is a chain of its own, so
 * the bits are those of sixteen lanes at once, and on AVX2 the tile can be twelve registers large.
 */
LATTICE_INLINE void score_tile(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                               const double *a_norm, const double *b_norm, float *scores, size_t stride)
{
    const float *row_a[TILE_A], *row_b[TILE_B];
    float tail_a[TILE_A][BLOCK], tail_b[TILE_B][BLOCK], lanes[TILE_A][TILE_B][BLOCK];
    const size_t whole = width / BLOCK * BLOCK, rest = width - whole;
    for (size_t i = 0; i < TILE_A; i++)
        row_a[i] = a + (i < a_count ? i : a_count - 1) * width;
    for (size_t j = 0; j < TILE_B; j++)
        row_b[j] = b + (j < b_count ? j : b_count - 1) * width;
    if (rest) {
        for (size_t i = 0; i < TILE_A; i++)
            f32x16_store(tail_a[i], f32x16_load_tail(row_a[i] + whole, rest));
        for (size_t j = 0; j < TILE_B; j++)
            f32x16_store(tail_b[j], f32x16_load_tail(row_b[j] + whole, rest));
    }
    for (size_t lane = 0; lane < BLOCK; lane += VF_LANES) {
        vf sum[TILE_A][TILE_B], register_b[TILE_B];
        for (size_t i = 0; i < TILE_A; i++)
            for (size_t j = 0; j < TILE_B; j++)
                sum[i][j] = vf_zero();
        for (size_t k = lane; k < whole; k += BLOCK) {
            for (size_t j = 0; j < TILE_B; j++)
                register_b[j] = vf_load(row_b[j] + k);
            for (size_t i = 0; i < TILE_A; i++) {
                const vf register_a = vf_load(row_a[i] + k);
                for (size_t j = 0; j < TILE_B; j++)
                    sum[i][j] = add_native_term(metric, sum[i][j], register_a, register_b[j]);
            }
        }
        for (size_t i = 0; i < TILE_A; i++)
            for (size_t j = 0; j < TILE_B; j++) {
                if (rest)
                    sum[i][j] = add_native_term(metric, sum[i][j], vf_load(tail_a[i] + lane), vf_load(tail_b[j] + lane));
                vf_store(lanes[i][j] + lane, sum[i][j]);
            }
    }
    for (size_t i = 0; i < TILE_A && i < a_count; i++)
        for (size_t j = 0; j < TILE_B && j < b_count; j++) {
            float score = f32x16_fold_add(f32x16_load(lanes[i][j]));
            if (metric == LATTICE_COSINE)
                score = a_norm[i] > 0 && b_norm[j] > 0 ? clamped((double)score / (a_norm[i] * b_norm[j]))
                                                       : clamped(cosine_in_double(row_a[i], row_b[j], width));
            else if (metric == LATTICE_EUCLIDEAN)
                score = finish_euclidean(score, row_a[i], row_b[j], width);
            scores[i * stride + j] = score;
        }
}

static void fill_norms(const float *rows, size_t count, size_t width, double *norms)
{
    for (size_t i = 0; i < count; i++) {
        const float square = sum_of_terms(LATTICE_DOT, rows + i * width, rows + i * width, width);
        norms[i] = in_range(square) ? sqrt((double)square) : 0.0;
    }
}

LATTICE_INLINE void score_tiles(int metric, const float *a, size_t a_count, const float *b, size_t b_count,
                                size_t width, const double *a_norms, const double *b_norms, float *scores,
                                size_t stride)
{
    for (size_t i = 0; i < a_count; i += TILE_A)
        for (size_t j = 0; j < b_count; j += TILE_B)
            score_tile(metric, a + i * width, a_count - i, b + j * width, b_count - j, width, a_norms + i, b_norms + j,
                       scores + i * stride + j, stride);
}

static void score_block(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                        const double *a_norms, const double *b_norms, float *scores, size_t stride)
{
    /* A constant metric in each call, so that each gets a loop of its own. */
    switch (metric) {
    case LATTICE_DOT:
        score_tiles(LATTICE_DOT, a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
        break;
    case LATTICE_COSINE:
        score_tiles(LATTICE_COSINE, a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
        break;
    case LATTICE_EUCLIDEAN:
        score_tiles(LATTICE_EUCLIDEAN, a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
        break;
    case LATTICE_SQUARED_EUCLIDEAN:
        score_tiles(LATTICE_SQUARED_EUCLIDEAN, a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
        break;
    case LATTICE_MANHATTAN:
        score_tiles(LATTICE_MANHATTAN, a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
        break;
    }
}

static void normalize(const float *source, float *target, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++, source += width, target += width) {
        const float square = sum_of_terms(LATTICE_DOT, source, source, width);
        if (in_range(square)) {
            const f32x16 inverse = f32x16_set1((float)(1.0 / sqrt((double)square)));
            size_t k = 0;
            for (; k + BLOCK <= width; k += BLOCK)
                f32x16_store(target + k, f32x16_mul(f32x16_load(source + k), inverse));
            if (k < width)
                f32x16_store_tail(target + k, f32x16_mul(f32x16_load_tail(source + k, width - k), inverse), width - k);
            continue;
        }
        double sum = 0;
        for (size_t k = 0; k < width; k++)
            sum += (double)source[k] * (double)source[k];
        const double length = sum == 0 ? 1.0 : sqrt(sum);
        for (size_t k = 0; k < width; k++)
            target[k] = (float)((double)source[k] / length);
    }
}

const lattice_vector_kernels LATTICE_FN(lattice_vector_kernels) = {
    .pair = {dot, cosine, euclidean, squared_euclidean, manhattan},
    .score_rows = score_rows,
    .fill_norms = fill_norms,
    .score_block = score_block,
    .normalize = normalize,
};
