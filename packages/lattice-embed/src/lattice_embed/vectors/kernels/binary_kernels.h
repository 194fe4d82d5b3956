/* Differing bits of binary rows: population counts of an exclusive or. The body.
 *
 * Three ways, the same integers: VPOPCNTDQ (LATTICE_VECTOR_POPCOUNT) counts eight words an instruction, and eight rows (or
 * sixteen of 48 bytes) are folded together; NEON counts bytes and adds neighbours; elsewhere words are counted one by one,
 * which beats table look-ups in vector registers (pshufb) up to about a hundred bytes a row, and rows of common widths get
 * loops of constant length. Longer rows take the look-ups on AVX2: sixteen counts of four bits an instruction, bytes added
 * by psadbw.
 *
 * Rows are 48 to 128 bytes for common models, so a row's own overhead (fold, finish) weighs as much as its words.
 */
#include "lattice/simd.h"
#include "stored_rows.h"

#define BLOCK_ROWS 256
#define FAR_BLOCK_ROWS 64 /* short: the processor loads the next rows while it finishes these */
#define NEAR_BYTES ((size_t)1 << 20) /* rows that a second-level cache holds need not be fetched ahead */

LATTICE_INLINE uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

LATTICE_INLINE uint64_t partial_word(const uint8_t *p, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, p, bytes);
    return word;
}

LATTICE_INLINE int64_t differing_words(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    int64_t total = 0;
    size_t k = 0;
    for (; k + 8 <= bytes; k += 8)
        total += __builtin_popcountll(word_at(a + k) ^ word_at(b + k));
    if (k < bytes)
        total += __builtin_popcountll(partial_word(a + k, bytes - k) ^ partial_word(b + k, bytes - k));
    return total;
}

#if defined(LATTICE_VECTOR_POPCOUNT)
/* Fewer than 64 bytes, zeros above; and the total of eight words. SIMDe, which makes the build for tests, lacks both. */
#if defined(LATTICE_EMULATE_AVX512)
LATTICE_INLINE __m512i load_present(const uint8_t *p, size_t bytes)
{
    uint8_t padded[64] = {0};
    memcpy(padded, p, bytes);
    return _mm512_loadu_si512(padded);
}
LATTICE_INLINE int64_t total_of(__m512i words)
{
    int64_t lanes[8], total = 0;
    _mm512_storeu_si512(lanes, words);
    for (int i = 0; i < 8; i++)
        total += lanes[i];
    return total;
}
#else
LATTICE_INLINE __m512i load_present(const uint8_t *p, size_t bytes)
{
    return _mm512_maskz_loadu_epi8(~(uint64_t)0 >> (64 - bytes), p);
}
LATTICE_INLINE int64_t total_of(__m512i words) { return _mm512_reduce_add_epi64(words); }
#endif
LATTICE_INLINE int64_t differing(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    __m512i total = _mm512_setzero_si512();
    size_t k = 0;
    for (; k + 64 <= bytes; k += 64)
        total = _mm512_add_epi64(
            total, _mm512_popcnt_epi64(_mm512_xor_si512(_mm512_loadu_si512(a + k), _mm512_loadu_si512(b + k))));
    if (k < bytes)
        total = _mm512_add_epi64(total, _mm512_popcnt_epi64(_mm512_xor_si512(load_present(a + k, bytes - k),
                                                                             load_present(b + k, bytes - k))));
    return total_of(total);
}
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_AVX512)
#define LOOK_UP_BYTES 256
LATTICE_INLINE __m256i counts_of_bytes(__m256i x)
{
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2,
                                           3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    return _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(x, low)),
                           _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}
LATTICE_INLINE int64_t differing(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    if (bytes < LOOK_UP_BYTES)
        return differing_words(a, b, bytes);
    __m256i total = _mm256_setzero_si256();
    size_t k = 0;
    for (; k + 32 <= bytes; k += 32) {
        const __m256i x = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(a + k)),
                                           _mm256_loadu_si256((const __m256i *)(b + k)));
        total = _mm256_add_epi64(total, _mm256_sad_epu8(counts_of_bytes(x), _mm256_setzero_si256()));
    }
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1) + differing_words(a + k, b + k, bytes - k);
}
#elif defined(LATTICE_ISA_NEON)
LATTICE_INLINE int64_t differing(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    uint32x4_t total = vdupq_n_u32(0);
    size_t k = 0;
    for (; k + 16 <= bytes; k += 16)
        total = vpadalq_u16(total, vpaddlq_u8(vcntq_u8(veorq_u8(vld1q_u8(a + k), vld1q_u8(b + k)))));
    return (int64_t)vaddvq_u32(total) + differing_words(a + k, b + k, bytes - k);
}
#else
#define differing differing_words
#endif

#if defined(LATTICE_VECTOR_POPCOUNT) && !defined(LATTICE_EMULATE_AVX512)
#define ROWS_AT_ONCE 8
#define AHEAD_BYTES 4096
/* The counts of eight rows. Their totals are folded together: in three steps of adding what was put side by side. */
LATTICE_INLINE void count_eight_rows(const uint8_t *query, const uint8_t *rows, size_t gap, size_t bytes, __m256i *counts)
{
    __m512i total[8];
    for (int r = 0; r < 8; r++)
        total[r] = _mm512_setzero_si512();
    size_t k = 0;
    for (; k + 64 <= bytes; k += 64) {
        const __m512i x = _mm512_loadu_si512(query + k);
        for (int r = 0; r < 8; r++)
            total[r] = _mm512_add_epi64(
                total[r], _mm512_popcnt_epi64(_mm512_xor_si512(x, _mm512_loadu_si512(rows + (size_t)r * gap + k))));
    }
    if (k < bytes) {
        const __m512i x = load_present(query + k, bytes - k);
        for (int r = 0; r < 8; r++)
            total[r] = _mm512_add_epi64(total[r], _mm512_popcnt_epi64(_mm512_xor_si512(
                                                      x, load_present(rows + (size_t)r * gap + k, bytes - k))));
    }
    __m512i pair[4], four[2];
    for (int r = 0; r < 4; r++) /* quarters of two totals */
        pair[r] = _mm512_add_epi64(_mm512_unpacklo_epi64(total[2 * r], total[2 * r + 1]),
                                   _mm512_unpackhi_epi64(total[2 * r], total[2 * r + 1]));
    for (int r = 0; r < 2; r++) /* halves of four */
        four[r] = _mm512_add_epi64(_mm512_shuffle_i64x2(pair[2 * r], pair[2 * r + 1], 0x88),
                                   _mm512_shuffle_i64x2(pair[2 * r], pair[2 * r + 1], 0xdd));
    const __m512i eight = _mm512_add_epi64(_mm512_shuffle_i64x2(four[0], four[1], 0x88),
                                           _mm512_shuffle_i64x2(four[0], four[1], 0xdd));
    *counts = _mm512_cvtepi64_epi32(eight);
}

/* Rows of 48 bytes lie four in three registers, and so do the words of a query written four times: no load is partial and
 * no word is empty. By quarters of a register (two words), the counts belong to rows
 *
 *     a  0 0 0 1     b  1 1 2 2     c  2 3 3 3
 */
LATTICE_INLINE __m512i count_four_of_48(const __m512i *query, const uint8_t *rows)
{
    __m512i part[3];
    for (int i = 0; i < 3; i++)
        part[i] = _mm512_popcnt_epi64(_mm512_xor_si512(query[i], _mm512_loadu_si512(rows + 64 * i)));
    const __m512i outer = _mm512_shuffle_i64x2(part[0], part[2], 0xcc); /* 0 1 2 3 */
    const __m512i inner = _mm512_shuffle_i64x2(part[0], part[2], 0x99); /* 0 0 3 3 */
    const __m512i straight = _mm512_mask_blend_epi64(0x3c, inner, part[1]);
    const __m512i crossed = _mm512_mask_blend_epi64(0x3c, part[1], inner); /* 1 0 3 2 */
    return _mm512_add_epi64(_mm512_add_epi64(outer, straight), _mm512_shuffle_i64x2(crossed, crossed, 0xb1));
}

/* Sixteen rows at a time; returns how many are done. */
LATTICE_INLINE size_t count_rows_of_48(int is_near, const uint8_t *query, const uint8_t *rows, size_t count, int32_t *counts)
{
    uint8_t repeated[192];
    __m512i x[3];
    for (int i = 0; i < 4; i++)
        memcpy(repeated + 48 * i, query, 48);
    for (int i = 0; i < 3; i++)
        x[i] = _mm512_loadu_si512(repeated + 64 * i);
    /* a lane of `low` holds row 4 g + r of groups 0 and 1, one of `high` of groups 2 and 3 */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 16, 20, 24, 28, 18, 22, 26, 30);
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512i four[4];
        for (size_t k = 0; !is_near && k < 16 * 48; k += 64)
            __builtin_prefetch(rows + i * 48 + k + AHEAD_BYTES);
        for (size_t g = 0; g < 4; g++)
            four[g] = count_four_of_48(x, rows + (i + 4 * g) * 48);
        const __m512i low = _mm512_add_epi64(_mm512_unpacklo_epi64(four[0], four[1]), _mm512_unpackhi_epi64(four[0], four[1]));
        const __m512i high = _mm512_add_epi64(_mm512_unpacklo_epi64(four[2], four[3]), _mm512_unpackhi_epi64(four[2], four[3]));
        _mm512_storeu_si512(counts + i, _mm512_permutex2var_epi32(low, order, high));
    }
    return i;
}
#endif

LATTICE_INLINE void count_rows(int is_near, const uint8_t *query, const uint8_t *rows, size_t bytes, size_t count,
                               int32_t *counts)
{
    size_t i = 0;
    (void)is_near;
#if defined(ROWS_AT_ONCE)
    if (bytes == 48)
        i = count_rows_of_48(is_near, query, rows, count, counts);
    for (; i + ROWS_AT_ONCE <= count; i += ROWS_AT_ONCE) {
        __m256i eight;
        for (size_t k = 0; !is_near && k < ROWS_AT_ONCE * bytes; k += 64)
            __builtin_prefetch(rows + i * bytes + k + AHEAD_BYTES);
        count_eight_rows(query, rows + i * bytes, bytes, bytes, &eight);
        _mm256_storeu_si256((__m256i *)(counts + i), eight);
    }
#endif
    for (; i < count; i++)
        counts[i] = (int32_t)differing(query, rows + i * bytes, bytes);
}

static void score_binary(const lattice_rows *rows, const lattice_query *query, size_t first, size_t count, float *scores)
{
    const double share = rows->width ? 2.0 / (double)rows->width : 0.0;
    const uint8_t *vector = query->data;
    const int is_near = rows->count * rows->row_bytes <= NEAR_BYTES;
    const size_t block = is_near ? BLOCK_ROWS : FAR_BLOCK_ROWS;
    for (size_t start = 0; start < count; start += block) {
        const size_t here = count - start < block ? count - start : block;
        const uint8_t *data = (const uint8_t *)rows->data + (first + start) * rows->row_bytes;
        int32_t counts[BLOCK_ROWS];
        switch (rows->row_bytes) { /* a loop of its own for 384, 768 and 1,024 dimensions */
        case 48:
            count_rows(is_near, vector, data, 48, here, counts);
            break;
        case 96:
            count_rows(is_near, vector, data, 96, here, counts);
            break;
        case 128:
            count_rows(is_near, vector, data, 128, here, counts);
            break;
        default:
            count_rows(is_near, vector, data, rows->row_bytes, here, counts);
        }
        if (query->metric == LATTICE_HAMMING) {
            for (size_t i = 0; i < here; i++)
                scores[start + i] = (float)counts[i];
        } else {
            for (size_t i = 0; i < here; i++)
                scores[start + i] = (float)(1.0 - (double)counts[i] * share);
        }
    }
}

static int64_t hamming(const uint8_t *a, const uint8_t *b, size_t bytes) { return differing(a, b, bytes); }
