/* int8 and int4: products of a query with stored rows, and of pairs. The body; see stored_rows.h for the formula.
 *
 * Four rows at a time share the loads of the query:
 *
 *     query             [ y0 ............ ]          step of SUMS_STEP values
 *     row i             [ q  ............ ] -> sums 0
 *     row i + 1         [ q  ............ ] -> sums 1     four folds together at their end
 *     ...
 *
 * Rows are fetched AHEAD_BYTES before they are read: processors prefetch within a page and stop while scores are finished.
 * Scores are finished block by block, so that the double arithmetic is done in whole registers. The last, incomplete step of
 * a row is copied to a padded buffer. Integers are exact, so grouping changes nothing. With VNNI the sums are those of
 * integer_rows_vnni.h; elsewhere they are bound, in cache, by the widening of int8 (one a cycle on most CPUs).
 */
#include <math.h>

#include "integer_sums.h"
#include "stored_rows.h"

#define GROUP 4
#define BLOCK_ROWS 32 /* short: the processor loads the next rows while it finishes these */
#define AHEAD_BYTES 4096
#define NEAR_BYTES ((size_t)1 << 20) /* rows that a second-level cache holds need not be fetched ahead */

#if defined(LATTICE_ISA_AVX512) && defined(LATTICE_DOT_INSTRUCTIONS)
#include "integer_rows_vnni.h"
#else
LATTICE_INLINE void dots_int8(int is_byte, const lattice_query *prepared, const uint8_t *const rows[GROUP], size_t width,
                              int32_t *dots)
{
    const int16_t *query = prepared->data;
    const int8_t *const row[GROUP] = {(const int8_t *)rows[0], (const int8_t *)rows[1], (const int8_t *)rows[2],
                                      (const int8_t *)rows[3]};
    (void)is_byte;
    sums s[GROUP];
    for (int i = 0; i < GROUP; i++)
        s[i] = sums_zero();
    size_t k = 0;
    for (; k + SUMS_STEP <= width; k += SUMS_STEP)
        for (int i = 0; i < GROUP; i++)
            s[i] = sums_int16_int8(s[i], query + k, row[i] + k);
    for (int i = 0; i < GROUP; i++) {
        if (k < width) {
            int8_t padded[SUMS_STEP] = {0};
            memcpy(padded, row[i] + k, width - k);
            s[i] = sums_int16_int8(s[i], query + k, padded);
        }
    }
    sums_fold_four(s, dots);
}

LATTICE_INLINE void dots_int4(const int8_t *even, const int8_t *odd, const uint8_t *const row[GROUP], size_t bytes,
                              int32_t *dots)
{
    sums s[GROUP];
    for (int i = 0; i < GROUP; i++)
        s[i] = sums_zero();
    size_t k = 0;
    for (; k + SUMS_STEP <= bytes; k += SUMS_STEP)
        for (int i = 0; i < GROUP; i++)
            s[i] = sums_nibbles(s[i], even + k, odd + k, row[i] + k);
    for (int i = 0; i < GROUP; i++) {
        if (k < bytes) {
            uint8_t padded[SUMS_STEP] = {0};
            memcpy(padded, row[i] + k, bytes - k);
            s[i] = sums_nibbles(s[i], even + k, odd + k, padded);
        }
    }
    sums_fold_four(s, dots);
}
#endif

/* The formula of stored_rows.h for row i of a block. */
LATTICE_INLINE double product_of(int kind, const lattice_rows *rows, const lattice_query *query, size_t row, int32_t dot)
{
    const double step = (double)rows->steps[row];
    if (kind == LATTICE_INT8)
        return step * (query->step * (double)dot) + query->constant;
    return step * (query->step * (double)dot - query->offset * (double)rows->sums[row]) -
           (double)rows->offsets[row] * query->total + query->constant;
}

LATTICE_INLINE void clamp_cosines(float *scores, size_t count)
{
    const f32x16 one = f32x16_set1(1.0f), minus_one = f32x16_set1(-1.0f);
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        f32x16_store(scores + i, f32x16_min(one, f32x16_max(minus_one, f32x16_load(scores + i)))); /* NaN passes */
    if (i < count)
        f32x16_store_tail(scores + i, f32x16_min(one, f32x16_max(minus_one, f32x16_load_tail(scores + i, count - i))),
                          count - i);
}

/* Plain loops over a block: the compiler vectorizes them, and what it vectorizes is defined element by element. A loop with
 * two decisions it would leave as it stands.
 */
LATTICE_INLINE void finish_rows(int kind, const lattice_rows *rows, const lattice_query *of, size_t first, size_t count,
                                const int32_t *dots, float *scores)
{
    const lattice_query query = *of; /* which no score overwrites */
    const lattice_rows here = *rows;
    if (query.metric == LATTICE_DOT) {
        for (size_t i = 0; i < count; i++)
            scores[i] = (float)product_of(kind, &here, &query, first + i, dots[i]);
    } else if (query.metric == LATTICE_COSINE) {
        const float *inverse = rows->inverse_norms + first;
        for (size_t i = 0; i < count; i++)
            scores[i] = (float)(product_of(kind, &here, &query, first + i, dots[i]) *
                                (query.inverse_norm * (double)inverse[i]));
        clamp_cosines(scores, count); /* rounding keeps the order: the bits are those of clamping before it */
    } else {
        const double *squares = rows->squares + first;
        for (size_t i = 0; i < count; i++) {
            const double squared =
                query.square + squares[i] - 2.0 * product_of(kind, &here, &query, first + i, dots[i]);
            const double positive = squared > 0.0 ? squared : 0.0;
            scores[i] = (float)(query.metric == LATTICE_EUCLIDEAN ? sqrt(positive) : positive);
        }
    }
}

/* `kind` and `is_byte` (query->is_byte, for int8 rows) are known to the compiler. */
LATTICE_INLINE void score_integers(int kind, int is_byte, const lattice_rows *rows, const lattice_query *query, size_t first,
                                   size_t count, float *scores)
{
    const size_t bytes = rows->row_bytes;
    const size_t half = (bytes + LATTICE_QUERY_PADDING - 1) / LATTICE_QUERY_PADDING * LATTICE_QUERY_PADDING;
    const int is_near = rows->count * bytes <= NEAR_BYTES;
    for (size_t start = 0; start < count; start += BLOCK_ROWS) {
        const size_t here = count - start < BLOCK_ROWS ? count - start : BLOCK_ROWS;
        int32_t dots[BLOCK_ROWS + GROUP];
        for (size_t i = 0; i < here; i += GROUP) {
            const uint8_t *row[GROUP];
            for (size_t j = 0; j < GROUP; j++) { /* rows that are not there are read as the last one that is */
                const size_t at = i + j < here ? i + j : here - 1;
                row[j] = (const uint8_t *)rows->data + (first + start + at) * bytes;
            }
            for (size_t k = 0; !is_near && k < GROUP * bytes; k += 64)
                __builtin_prefetch(row[0] + k + AHEAD_BYTES);
            if (kind == LATTICE_INT8 && bytes == 384)
                dots_int8(is_byte, query, row, 384, dots + i); /* the query stays in registers */
            else if (kind == LATTICE_INT8)
                dots_int8(is_byte, query, row, bytes, dots + i);
            else
                dots_int4((const int8_t *)query->data, (const int8_t *)query->data + half, row, bytes, dots + i);
        }
        finish_rows(kind, rows, query, first + start, here, dots, scores + start);
    }
}

static void score_int8(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count, float *scores)
{
    if (query->is_byte)
        score_integers(LATTICE_INT8, 1, rows, query, first, count, scores);
    else
        score_integers(LATTICE_INT8, 0, rows, query, first, count, scores);
}

static void score_int4(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count, float *scores)
{
    score_integers(LATTICE_INT4, 0, rows, query, first, count, scores);
}

static int32_t dot_int8(const int8_t *a, const int8_t *b, size_t width)
{
    sums s[2] = {sums_zero(), sums_zero()};
    size_t k = 0;
    for (; k + 2 * SUMS_STEP <= width; k += 2 * SUMS_STEP)
        for (size_t i = 0; i < 2; i++)
            s[i] = sums_int8_int8(s[i], a + k + i * SUMS_STEP, b + k + i * SUMS_STEP);
    int32_t total = sums_fold(s[0]) + sums_fold(s[1]);
    for (; k < width; k += SUMS_STEP) {
        const size_t rest = width - k < SUMS_STEP ? width - k : SUMS_STEP;
        int8_t x[SUMS_STEP] = {0}, y[SUMS_STEP] = {0};
        memcpy(x, a + k, rest);
        memcpy(y, b + k, rest);
        total += sums_fold(sums_int8_int8(sums_zero(), x, y));
    }
    return total;
}

static int32_t dot_int4(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    sums s[2] = {sums_zero(), sums_zero()};
    size_t k = 0;
    for (; k + 2 * SUMS_STEP <= bytes; k += 2 * SUMS_STEP)
        for (size_t i = 0; i < 2; i++)
            s[i] = sums_nibble_pairs(s[i], a + k + i * SUMS_STEP, b + k + i * SUMS_STEP);
    int32_t total = sums_fold(s[0]) + sums_fold(s[1]);
    for (; k < bytes; k += SUMS_STEP) {
        const size_t rest = bytes - k < SUMS_STEP ? bytes - k : SUMS_STEP;
        uint8_t x[SUMS_STEP] = {0}, y[SUMS_STEP] = {0};
        memcpy(x, a + k, rest);
        memcpy(y, b + k, rest);
        total += sums_fold(sums_nibble_pairs(sums_zero(), x, y));
    }
    return total;
}
