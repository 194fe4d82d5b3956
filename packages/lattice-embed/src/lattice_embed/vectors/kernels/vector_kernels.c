/* float32 kernels of each instruction set: pairs, rows, lengths, normalizing, and the search for good scores.
 *
 * One-vs-many does for each row what a pair does, so its scores are those bits. The sums are in row_sums.h.
 */
#include "row_sums.h"

static float dot(const float *a, const float *b, size_t width)
{
    return score_one(LATTICE_DOT, LATTICE_FLOAT32, a, b, width);
}
static float cosine(const float *a, const float *b, size_t width)
{
    return score_one(LATTICE_COSINE, LATTICE_FLOAT32, a, b, width);
}
static float euclidean(const float *a, const float *b, size_t width)
{
    return score_one(LATTICE_EUCLIDEAN, LATTICE_FLOAT32, a, b, width);
}
static float squared_euclidean(const float *a, const float *b, size_t width)
{
    return score_one(LATTICE_SQUARED_EUCLIDEAN, LATTICE_FLOAT32, a, b, width);
}
static float manhattan(const float *a, const float *b, size_t width)
{
    return score_one(LATTICE_MANHATTAN, LATTICE_FLOAT32, a, b, width);
}

static void score_rows(int metric, const float *a, size_t a_step, const float *b, size_t count, size_t width,
                       float *scores)
{
    score_rows_of_kind(metric, LATTICE_FLOAT32, a, a_step, b, count, width, scores);
}

static void invert_lengths(const float *rows, size_t count, size_t width, float *inverses)
{
    for (size_t i = 0; i < count; i++) {
        const float *row = rows + i * width;
        const float square = sum_of_terms(LATTICE_DOT, LATTICE_FLOAT32, row, row, width);
        inverses[i] = in_range(square) ? (float)(1.0 / sqrt((double)square)) : 0.0f;
    }
}

static void normalize(const float *source, float *target, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++, source += width, target += width) {
        const float square = sum_of_terms(LATTICE_DOT, LATTICE_FLOAT32, source, source, width);
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

/* Whether one of sixteen scores is not worse than `worst`. Compilers make sixteen jumps of the plain loop. */
LATTICE_INLINE int holds_candidate(const float *scores, float worst, int largest)
{
#if defined(LATTICE_ISA_AVX512)
    const __m512 x = _mm512_loadu_ps(scores), y = _mm512_set1_ps(worst);
    return (largest ? _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ) : _mm512_cmp_ps_mask(x, y, _CMP_LE_OQ)) != 0;
#elif defined(LATTICE_ISA_AVX2)
    const __m256 low = _mm256_loadu_ps(scores), high = _mm256_loadu_ps(scores + 8), y = _mm256_set1_ps(worst);
    if (largest)
        return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(low, y, _CMP_GE_OQ), _mm256_cmp_ps(high, y, _CMP_GE_OQ)));
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(low, y, _CMP_LE_OQ), _mm256_cmp_ps(high, y, _CMP_LE_OQ)));
#elif defined(LATTICE_ISA_NEON)
    uint32x4_t found = vdupq_n_u32(0);
    const float32x4_t y = vdupq_n_f32(worst);
    for (int i = 0; i < BLOCK; i += 4) {
        const float32x4_t x = vld1q_f32(scores + i);
        found = vorrq_u32(found, largest ? vcgeq_f32(x, y) : vcleq_f32(x, y));
    }
    return vmaxvq_u32(found) != 0;
#else
    int found = 0;
    for (int i = 0; i < BLOCK; i++)
        found |= largest ? scores[i] >= worst : scores[i] <= worst;
    return found;
#endif
}

/* Nearly all sixteens hold none. */
static size_t find_candidate(const float *scores, size_t start, size_t count, float worst, int largest)
{
    while (start + BLOCK <= count && !holds_candidate(scores + start, worst, largest))
        start += BLOCK;
    while (start < count && !(largest ? scores[start] >= worst : scores[start] <= worst))
        start++;
    return start;
}

const lattice_vector_kernels LATTICE_FN(lattice_vector_kernels) = {
    .pair = {dot, cosine, euclidean, squared_euclidean, manhattan},
    .score_rows = score_rows,
    .invert_lengths = invert_lengths,
    .normalize = normalize,
    .find_candidate = find_candidate,
};
