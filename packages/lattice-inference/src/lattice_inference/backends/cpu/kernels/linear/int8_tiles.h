/* sums[r][c] = sum over k of x[r][k] * w[c][k] in int32, exact: R rows of integers by a panel of 16 output columns.
 *
 * A panel's weights are [k / 4][16][4] int8, the same for every level: a line of 64 bytes is four k of sixteen columns, which
 * is what VNNI and SDOT take at once. Rows are those of integer_rows.h, their elements padded to a multiple of 16.
 *
 *     line   [ c0k0 c0k1 c0k2 c0k3 | c1k0 ... ]     x: four elements of a row, repeated
 *     VNNI   sum[c] += u8 x . s8 w, four products at once
 *     SDOT   the same of signed bytes
 *     AVX2, AVX-512 without VNNI: the line widened to words, times words, two products at once; a column's two halves lie in
 *            neighbouring lanes and are added in the end
 *     NEON without SDOT: products of bytes as words, two steps of k in one word (at most 2 * 128 * 127), added up in pairs
 *
 * On Zen 3 (AVX2) widening gives 1.6 times the products a second that float32 has; |x| by w with the sign of x, through
 * vpmaddubsw, which cannot saturate either, 1.5 times; nibbles of x by w with sums of words 1.4 times. vpmaddubsw of x by w
 * itself saturates. gcc keeps sums in place only where the addition is written as assembly, like vf_accumulate's.
 *
 * Numeric design: |x| <= 255, |w| <= 127, so sums are exact in int32 up to LATTICE_INT8_DEPTH elements, which the door checks.
 */
#ifndef LATTICE_INT8_TILES_H
#define LATTICE_INT8_TILES_H

#include "rows/integer_rows.h"
#include "linear/linear_output.h"

#define GROUP 4        /* steps of k in a line */
#define LINE_BYTES 64  /* of a panel: GROUP steps of LATTICE_PANEL columns */
#define AHEAD_BYTES 2048 /* how far before its use a line is asked for */

/* x: the first row's elements, `stride` bytes between rows; w: the panel's first line; groups: lines, a multiple of 4. */
typedef void (*int8_tile)(const char *x, int64_t stride, const int8_t *w, int64_t groups, int32_t *sums);

#define TILE_ARGUMENTS                                                                                                 \
    const char *restrict x, int64_t stride, const int8_t *restrict w, int64_t groups, int32_t *restrict sums

LATTICE_INLINE int32_t four_bytes(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

#if defined(LATTICE_ISA_AVX512)
#if defined(LATTICE_EMULATE_AVX512)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define add_sums(sum, products) (*(sum) = _mm512_add_epi32(*(sum), products))
#define dot_bytes(sum, u, s) (*(sum) = _mm512_dpbusd_epi32(*(sum), u, s))
#else
LATTICE_INLINE void add_sums(__m512i *sum, __m512i products)
{
    __asm__ volatile("vpaddd %1, %0, %0" : "+v"(*sum) : "v"(products));
}
LATTICE_INLINE void dot_bytes(__m512i *sum, __m512i u, __m512i s)
{
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(u), "v"(s));
}
#endif
#define PLAIN_TILE(R)                                                                                                  \
    static void plain_tile_##R(TILE_ARGUMENTS)                                                                         \
    {                                                                                                                  \
        __m512i sum[R][2];                                                                                             \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            sum[r][0] = sum[r][1] = _mm512_setzero_si512();                                                            \
        for (int64_t g = 0; g < groups; g++) {                                                                         \
            const int8_t *line = w + g * LINE_BYTES;                                                                   \
            __builtin_prefetch(line + AHEAD_BYTES, 0, 3);                                                              \
            const __m512i first = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)line));                     \
            const __m512i second = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(line + 32)));             \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                int64_t four;                                                                                          \
                memcpy(&four, x + r * stride + g * GROUP * 2, sizeof four);                                            \
                const __m512i words = _mm512_set1_epi64(four);                                                         \
                add_sums(&sum[r][0], _mm512_madd_epi16(first, words));                                                 \
                add_sums(&sum[r][1], _mm512_madd_epi16(second, words));                                                \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < 2; j++)                                                                 \
            {                                                                                                          \
                const __m512i pairs = _mm512_add_epi32(sum[r][j], _mm512_srli_epi64(sum[r][j], 32));                   \
                _mm256_storeu_si256((__m256i *)(sums + r * LATTICE_PANEL + 8 * j), _mm512_cvtepi64_epi32(pairs));      \
            }                                                                                                          \
    }
#define DOT_TILE(R)                                                                                                    \
    static void dot_tile_##R(TILE_ARGUMENTS)                                                                           \
    {                                                                                                                  \
        __m512i sum[R];                                                                                                \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            sum[r] = _mm512_setzero_si512();                                                                           \
        for (int64_t g = 0; g < groups; g++) {                                                                         \
            const int8_t *line = w + g * LINE_BYTES;                                                                   \
            __builtin_prefetch(line + AHEAD_BYTES, 0, 3);                                                              \
            const __m512i weights = _mm512_loadu_si512(line);                                                          \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                dot_bytes(&sum[r], _mm512_set1_epi32(four_bytes(x + r * stride + g * GROUP)), weights);                \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            _mm512_storeu_si512(sums + r * LATTICE_PANEL, sum[r]);                                                     \
    }
#elif defined(LATTICE_ISA_AVX2)
LATTICE_INLINE void add_sums(__m256i *sum, __m256i products)
{
    __asm__ volatile("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(products));
}
#if defined(LATTICE_EMULATE_AVX512) /* AVX-VNNI too: even and odd bytes as words */
LATTICE_INLINE void dot_bytes(__m256i *sum, __m256i u, __m256i s)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(even, odd));
}
#else
LATTICE_INLINE void dot_bytes(__m256i *sum, __m256i u, __m256i s)
{
    __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(*sum) : "x"(u), "x"(s));
}
#endif
/* Half a panel at a time: all of it would need four sums a row. */
#define PLAIN_TILE(R)                                                                                                  \
    static void plain_tile_##R(TILE_ARGUMENTS)                                                                         \
    {                                                                                                                  \
        for (int half = 0; half < 2; half++) {                                                                         \
            __m256i sum[R][2];                                                                                         \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                sum[r][0] = sum[r][1] = _mm256_setzero_si256();                                                        \
            for (int64_t g = 0; g < groups; g++) {                                                                     \
                const int8_t *line = w + g * LINE_BYTES + half * LINE_BYTES / 2;                                       \
                __builtin_prefetch(line + AHEAD_BYTES, 0, 3);                                                          \
                const __m256i first = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)line));                    \
                const __m256i second = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(line + 16)));            \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                {                                                                                                      \
                    int64_t four;                                                                                      \
                    memcpy(&four, x + r * stride + g * GROUP * 2, sizeof four);                                        \
                    const __m256i words = _mm256_set1_epi64x(four);                                                    \
                    add_sums(&sum[r][0], _mm256_madd_epi16(first, words));                                             \
                    add_sums(&sum[r][1], _mm256_madd_epi16(second, words));                                            \
                }                                                                                                      \
            }                                                                                                          \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const __m256i pairs = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[r][0], sum[r][1]), 0xd8);         \
                _mm256_storeu_si256((__m256i *)(sums + r * LATTICE_PANEL + 8 * half), pairs);                          \
            }                                                                                                          \
        }                                                                                                              \
    }
#define DOT_TILE(R)                                                                                                    \
    static void dot_tile_##R(TILE_ARGUMENTS)                                                                           \
    {                                                                                                                  \
        __m256i sum[R][2];                                                                                             \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            sum[r][0] = sum[r][1] = _mm256_setzero_si256();                                                            \
        for (int64_t g = 0; g < groups; g++) {                                                                         \
            const int8_t *line = w + g * LINE_BYTES;                                                                   \
            __builtin_prefetch(line + AHEAD_BYTES, 0, 3);                                                              \
            const __m256i first = _mm256_loadu_si256((const __m256i *)line);                                           \
            const __m256i second = _mm256_loadu_si256((const __m256i *)(line + 32));                                   \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const __m256i bytes = _mm256_set1_epi32(four_bytes(x + r * stride + g * GROUP));                       \
                dot_bytes(&sum[r][0], bytes, first);                                                                   \
                dot_bytes(&sum[r][1], bytes, second);                                                                  \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < 2; j++)                                                                 \
                _mm256_storeu_si256((__m256i *)(sums + r * LATTICE_PANEL + 8 * j), sum[r][j]);                         \
    }
#elif defined(LATTICE_ISA_NEON)
LATTICE_INLINE void dot_bytes(int32x4_t *sum, int8x16_t a, int8x16_t b)
{
    __asm__ volatile(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(*sum) : "w"(a), "w"(b));
}
/* Eight columns at a time: two lines of two columns in each register. */
#define PLAIN_TILE(R)                                                                                                  \
    static void plain_tile_##R(TILE_ARGUMENTS)                                                                         \
    {                                                                                                                  \
        for (int half = 0; half < 2; half++) {                                                                         \
            int32x4_t sum[R][4];                                                                                       \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                             \
                    sum[r][j] = vdupq_n_s32(0);                                                                        \
            for (int64_t g = 0; g < groups; g += 2) {                                                                  \
                const int8_t *line = w + g * LINE_BYTES + half * LINE_BYTES / 2;                                       \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                {                                                                                                      \
                    const char *eight = x + r * stride + g * GROUP;                                                    \
                    const int8x8_t a = vreinterpret_s8_s32(vdup_n_s32(four_bytes(eight)));                             \
                    const int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(four_bytes(eight + GROUP)));                     \
                    LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                         \
                    {                                                                                                  \
                        const int16x8_t products = vmull_s8(a, vld1_s8(line + 8 * j));                                 \
                        const int8x8_t next = vld1_s8(line + LINE_BYTES + 8 * j);                                      \
                        sum[r][j] = vpadalq_s16(sum[r][j], vmlal_s8(products, b, next));                               \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                LATTICE_UNROLL for (int j = 0; j < 2; j++)                                                             \
                    vst1q_s32(sums + r * LATTICE_PANEL + 8 * half + 4 * j, vpaddq_s32(sum[r][2 * j], sum[r][2 * j + 1])); \
        }                                                                                                              \
    }
#define DOT_TILE(R)                                                                                                    \
    static void dot_tile_##R(TILE_ARGUMENTS)                                                                           \
    {                                                                                                                  \
        int32x4_t sum[R][4];                                                                                           \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                                 \
                sum[r][j] = vdupq_n_s32(0);                                                                            \
        for (int64_t g = 0; g < groups; g++) {                                                                         \
            const int8_t *line = w + g * LINE_BYTES;                                                                   \
            int8x16_t columns[4];                                                                                      \
            LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                                 \
                columns[j] = vld1q_s8(line + 16 * j);                                                                  \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const int8x16_t bytes = vreinterpretq_s8_s32(vdupq_n_s32(four_bytes(x + r * stride + g * GROUP)));     \
                LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                             \
                    dot_bytes(&sum[r][j], columns[j], bytes);                                                          \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < 4; j++)                                                                 \
                vst1q_s32(sums + r * LATTICE_PANEL + 4 * j, sum[r][j]);                                                \
    }
#else
#define PLAIN_TILE(R)                                                                                                  \
    static void plain_tile_##R(TILE_ARGUMENTS)                                                                         \
    {                                                                                                                  \
        memset(sums, 0, R * LATTICE_PANEL * sizeof(int32_t));                                                          \
        for (int64_t g = 0; g < groups; g++)                                                                           \
            for (int r = 0; r < R; r++) {                                                                              \
                int16_t four[GROUP];                                                                                   \
                memcpy(four, x + r * stride + g * GROUP * 2, sizeof four);                                             \
                for (int c = 0; c < LATTICE_PANEL; c++)                                                                \
                    for (int k = 0; k < GROUP; k++)                                                                    \
                        sums[r * LATTICE_PANEL + c] += four[k] * w[g * LINE_BYTES + c * GROUP + k];                    \
            }                                                                                                          \
    }
#endif

#if defined(LATTICE_ISA_AVX512)
#define INT8_TILE_ROWS 12
PLAIN_TILE(1) PLAIN_TILE(2) PLAIN_TILE(3) PLAIN_TILE(4) PLAIN_TILE(5) PLAIN_TILE(6) PLAIN_TILE(7) PLAIN_TILE(8)
PLAIN_TILE(9) PLAIN_TILE(10) PLAIN_TILE(11) PLAIN_TILE(12)
DOT_TILE(1) DOT_TILE(2) DOT_TILE(3) DOT_TILE(4) DOT_TILE(5) DOT_TILE(6) DOT_TILE(7) DOT_TILE(8)
DOT_TILE(9) DOT_TILE(10) DOT_TILE(11) DOT_TILE(12)
#define TILES(kind)                                                                                                    \
    {                                                                                                                  \
        kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6, kind##_7, kind##_8, kind##_9, kind##_10,           \
            kind##_11, kind##_12                                                                                       \
    }
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define INT8_TILE_ROWS 6
PLAIN_TILE(1) PLAIN_TILE(2) PLAIN_TILE(3) PLAIN_TILE(4) PLAIN_TILE(5) PLAIN_TILE(6)
DOT_TILE(1) DOT_TILE(2) DOT_TILE(3) DOT_TILE(4) DOT_TILE(5) DOT_TILE(6)
#define TILES(kind) {kind##_1, kind##_2, kind##_3, kind##_4, kind##_5, kind##_6}
#else
#define INT8_TILE_ROWS 2
PLAIN_TILE(1) PLAIN_TILE(2)
#define TILES(kind) {kind##_1, kind##_2}
#endif

static const int8_tile plain_tiles[INT8_TILE_ROWS] = TILES(plain_tile);
#if defined(DOT_TILE)
static const int8_tile dot_tiles[INT8_TILE_ROWS] = TILES(dot_tile);
#endif

#endif
