/* sums[r][c] = sum over k of x[r][k] * w[c][k] for rows and weights in bfloat16: R rows by P panels of 16 columns.
 *
 * A panel is [k / 2][16][2] (bfloat16_linear.h): a line holds what one dot product instruction takes, two k of each
 * column, and two k of a row are repeated beside it.
 *
 *     AVX512-BF16   vdpbf16ps   sum[c] += x0 w0 + x1 w1          one register of sums a row and panel
 *     FEAT_BF16     bfdot       the same over four columns       four
 *                   bfmmla      four k of two rows by those of two columns: of two rows and more, eight for two of them
 *     elsewhere     two multiply-adds of widened elements: for tests of what surrounds the products
 *
 * Numeric design: one chain over pairs of k in ascending order, never split, so tile and thread change no bit. How a pair is
 * rounded is the instruction's own: levels and machines differ in the last bits. BFMMLA is by its definition two BFDOT one after
 * the other (BFMatMulAdd and BFDotAdd of the Arm Architecture Reference Manual, FPCR.EBF being 0).
 */
#ifndef LATTICE_BFLOAT16_TILES_H
#define LATTICE_BFLOAT16_TILES_H

#include "rows/bfloat16_rows.h"
#include "linear/linear_output.h"

#define BFLOAT16_LINE 32         /* elements of a panel: two k of LATTICE_PANEL columns */
#define BFLOAT16_AHEAD 1024      /* elements before its use that a line is asked for */
#define BFLOAT16_TILE_PANELS 2   /* of the widest tile */

#if defined(LATTICE_ISA_AVX512)
#define BFLOAT16_TILE_ROWS 12
#elif defined(LATTICE_ISA_NEON)
#define BFLOAT16_TILE_ROWS 6
#else
#define BFLOAT16_TILE_ROWS 4
#endif

/* x: the first row, `stride` elements between rows; w: the first panel, `panel` elements to the next; sums [R][16 P]. */
typedef void (*bfloat16_tile)(const uint16_t *x, int64_t stride, const uint16_t *w, int64_t panel, int64_t pairs,
                              float *sums);

LATTICE_INLINE uint32_t two_elements(const uint16_t *p)
{
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pair;
}

#if defined(BFLOAT16_DOT) && defined(LATTICE_ISA_AVX512)
typedef struct {
    __m512 v;
} bfloat16_sums;
LATTICE_INLINE void bfloat16_dot(bfloat16_sums *sum, const uint16_t *line, uint32_t pair)
{
    const __m512i x = _mm512_set1_epi32((int)pair);
    __asm__ volatile("vdpbf16ps %2, %1, %0" : "+v"(sum->v) : "v"(x), "v"(_mm512_loadu_si512(line)));
}
LATTICE_INLINE void bfloat16_store(float *sums, bfloat16_sums sum)
{
    _mm512_storeu_ps(sums, sum.v);
}
#elif defined(BFLOAT16_DOT)
typedef struct {
    float32x4_t v[4];
} bfloat16_sums;
LATTICE_INLINE void bfloat16_dot(bfloat16_sums *sum, const uint16_t *line, uint32_t pair)
{
    const uint32x4_t x = vdupq_n_u32(pair);
    LATTICE_UNROLL for (int i = 0; i < 4; i++)
        __asm__ volatile(".arch armv8.2-a+bf16\n\tbfdot %0.4s, %1.8h, %2.8h"
                         : "+w"(sum->v[i])
                         : "w"(vld1q_u16(line + 8 * i)), "w"(x));
}
LATTICE_INLINE void bfloat16_store(float *sums, bfloat16_sums sum)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(sums + 4 * i, sum.v[i]);
}
#endif

#if defined(BFLOAT16_DOT) && defined(LATTICE_ISA_NEON)
/* sum [2][2] += rows [2][4] times columns [2][4] */
LATTICE_INLINE void bfloat16_multiply_twos(float32x4_t *sum, uint16x8_t rows, uint32x4_t columns)
{
    __asm__ volatile(".arch armv8.2-a+bf16\n\tbfmmla %0.4s, %1.8h, %2.8h" : "+w"(*sum) : "w"(rows), "w"(columns));
}

/* A tile of R rows, two and two of them; of an odd number the last is its own second. Two lines of a panel, interleaved, are four
 * k of two columns after four k of the next two. */
#define TILE_OF_TWOS(NAME, R, P)                                                                                       \
    static void NAME(const uint16_t *restrict x, int64_t stride, const uint16_t *restrict w, int64_t panel, int64_t pairs, \
                     float *restrict sums)                                                                             \
    {                                                                                                                  \
        enum { TWOS = (R + 1) / 2 };                                                                                   \
        float32x4_t sum[TWOS][P][LATTICE_PANEL / 2];                                                                   \
        LATTICE_UNROLL for (int t = 0; t < TWOS; t++)                                                                  \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                LATTICE_UNROLL for (int c = 0; c < LATTICE_PANEL / 2; c++)                                             \
                    sum[t][p][c] = vdupq_n_f32(0.0f);                                                                  \
        for (int64_t i = 0; i < pairs; i += 2) {                                                                       \
            __builtin_prefetch(w + i * BFLOAT16_LINE + BFLOAT16_AHEAD, 0, 3);                                          \
            __builtin_prefetch(w + (i + 1) * BFLOAT16_LINE + BFLOAT16_AHEAD, 0, 3);                                    \
            uint16x8_t rows[TWOS];                                                                                     \
            LATTICE_UNROLL for (int t = 0; t < TWOS; t++)                                                              \
            {                                                                                                          \
                const uint16_t *first = x + 2 * t * stride + 2 * i;                                                    \
                rows[t] = vcombine_u16(vld1_u16(first), vld1_u16(2 * t + 1 < R ? first + stride : first));             \
            }                                                                                                          \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                LATTICE_UNROLL for (int c = 0; c < LATTICE_PANEL / 2; c += 2)                                          \
                {                                                                                                      \
                    const uint16_t *line = w + p * panel + i * BFLOAT16_LINE + 4 * c;                                  \
                    const uint32x4_t even = vreinterpretq_u32_u16(vld1q_u16(line));                                    \
                    const uint32x4_t odd = vreinterpretq_u32_u16(vld1q_u16(line + BFLOAT16_LINE));                     \
                    LATTICE_UNROLL for (int t = 0; t < TWOS; t++)                                                      \
                    {                                                                                                  \
                        bfloat16_multiply_twos(&sum[t][p][c], rows[t], vzip1q_u32(even, odd));                         \
                        bfloat16_multiply_twos(&sum[t][p][c + 1], rows[t], vzip2q_u32(even, odd));                     \
                    }                                                                                                  \
                }                                                                                                      \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                LATTICE_UNROLL for (int c = 0; c < LATTICE_PANEL / 2; c++)                                             \
                {                                                                                                      \
                    const float32x4_t both = sum[r / 2][p][c];                                                         \
                    vst1_f32(sums + (r * P + p) * LATTICE_PANEL + 2 * c, r % 2 == 0 ? vget_low_f32(both) : vget_high_f32(both)); \
                }                                                                                                      \
    }
#endif

LATTICE_INLINE void widened_dot(f32x16 *sum, const uint16_t *line, uint32_t pair)
{
    int32_t words[16];
    float even, odd;
    memcpy(words, line, sizeof words);
    const uint32_t even_bits = pair << 16, odd_bits = pair & 0xffff0000;
    memcpy(&even, &even_bits, sizeof even);
    memcpy(&odd, &odd_bits, sizeof odd);
    const i32x16 both = i32x16_load(words);
    *sum = f32x16_fma(f32x16_set1(even), f32x16_from_bits(i32x16_shift_left(both, 16)), *sum);
    *sum = f32x16_fma(f32x16_set1(odd), f32x16_from_bits(i32x16_and(both, i32x16_set1(-65536))), *sum);
}

#define BFLOAT16_TILE(NAME, R, P, SUMS, ZERO, DOT, STORE)                                                              \
    static void NAME(const uint16_t *restrict x, int64_t stride, const uint16_t *restrict w, int64_t panel, int64_t pairs, \
                     float *restrict sums)                                                                             \
    {                                                                                                                  \
        SUMS sum[R][P];                                                                                                \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                sum[r][p] = ZERO;                                                                                      \
        for (int64_t i = 0; i < pairs; i++) {                                                                          \
            __builtin_prefetch(w + i * BFLOAT16_LINE + BFLOAT16_AHEAD, 0, 3);                                          \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                LATTICE_UNROLL for (int p = 0; p < P; p++)                                                             \
                    DOT(&sum[r][p], w + p * panel + i * BFLOAT16_LINE, two_elements(x + r * stride + 2 * i));          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                STORE(sums + (r * P + p) * LATTICE_PANEL, sum[r][p]);                                                  \
    }
#define WIDENED_TILES(R) BFLOAT16_TILE(widened_tile_##R, R, 1, f32x16, f32x16_zero(), widened_dot, f32x16_store)
#define DOT_TILES(R)                                                                                                   \
    BFLOAT16_TILE(dot_tile_##R##x1, R, 1, bfloat16_sums, (bfloat16_sums){0}, bfloat16_dot, bfloat16_store)             \
    BFLOAT16_TILE(dot_tile_##R##x2, R, 2, bfloat16_sums, (bfloat16_sums){0}, bfloat16_dot, bfloat16_store)

WIDENED_TILES(1)
WIDENED_TILES(2)
WIDENED_TILES(3)
WIDENED_TILES(4)
static const bfloat16_tile widened_tiles[] = {widened_tile_1, widened_tile_2, widened_tile_3, widened_tile_4};

#if defined(BFLOAT16_DOT) && defined(LATTICE_ISA_AVX512)
DOT_TILES(1) DOT_TILES(2) DOT_TILES(3) DOT_TILES(4) DOT_TILES(5) DOT_TILES(6)
DOT_TILES(7) DOT_TILES(8) DOT_TILES(9) DOT_TILES(10) DOT_TILES(11) DOT_TILES(12)
static const bfloat16_tile dot_tiles[BFLOAT16_TILE_ROWS][2] = {
    {dot_tile_1x1, dot_tile_1x2},   {dot_tile_2x1, dot_tile_2x2},   {dot_tile_3x1, dot_tile_3x2},
    {dot_tile_4x1, dot_tile_4x2},   {dot_tile_5x1, dot_tile_5x2},   {dot_tile_6x1, dot_tile_6x2},
    {dot_tile_7x1, dot_tile_7x2},   {dot_tile_8x1, dot_tile_8x2},   {dot_tile_9x1, dot_tile_9x2},
    {dot_tile_10x1, dot_tile_10x2}, {dot_tile_11x1, dot_tile_11x2}, {dot_tile_12x1, dot_tile_12x2},
};
#elif defined(BFLOAT16_DOT)
DOT_TILES(1)
TILE_OF_TWOS(twos_tile_2x2, 2, 2)
TILE_OF_TWOS(twos_tile_2x1, 2, 1)
TILE_OF_TWOS(twos_tile_3x1, 3, 1)
TILE_OF_TWOS(twos_tile_4x1, 4, 1)
TILE_OF_TWOS(twos_tile_5x1, 5, 1)
TILE_OF_TWOS(twos_tile_6x1, 6, 1)
static const bfloat16_tile dot_tiles[BFLOAT16_TILE_ROWS][2] = {
    {dot_tile_1x1, dot_tile_1x2}, {twos_tile_2x1, twos_tile_2x2}, {twos_tile_3x1, NULL},
    {twos_tile_4x1, NULL},        {twos_tile_5x1, NULL},          {twos_tile_6x1, NULL},
};
#endif

#endif
