/* A line of block_format.h in registers: 64 bytes, four elements of each of sixteen columns, and its products with four
 * elements of a row.
 *
 * A `line_sum` collects products of a row's elements x (int8, at most 127 in magnitude) with lines q: `add_line` for unsigned
 * q of up to six bits, `add_signed_line` for int8. Where products of bytes come as words, as many lines may be added between
 * two `widen` as keep a word below 2^15:
 *
 *     q of 4 bits    8 lines   8 * 2 * 15 * 127 = 30480
 *     q of 5 bits    4         4 * 2 * 31 * 127 = 31496
 *     q of 6 bits    2         2 * 2 * 63 * 127 = 32004
 *     int8           each is widened by itself: |q| by x with q's sign, 2 * 128 * 127 = 32512
 *
 * `sum_value` is the int32 sum of each column, with what the sum was begun from: exact, so the same whatever the instructions.
 * `dot` chooses the level's dot product instruction, at compile time. Where it takes all eight bits of q (WHOLE_LINE_BYTES),
 * high nibbles are multiplied where they lie, as sixteen times what they are, and their sum is shifted.
 */
#ifndef LATTICE_BYTES64_H
#define LATTICE_BYTES64_H

#include "lattice/simd_integer.h"

#if defined(LATTICE_ISA_AVX512)
typedef __m512i bytes64;
typedef struct {
    __m512i words, wide;
} line_sum;
#if defined(LATTICE_EMULATE_AVX512)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#undef _mm512_maddubs_epi16
#define _mm512_maddubs_epi16(a, b) simde_mm512_maddubs_epi16(a, b)
#define dot_line(sum, u, s) (*(sum) = _mm512_dpbusd_epi32(*(sum), u, s))
#else
LATTICE_INLINE void dot_line(__m512i *sum, __m512i u, __m512i s)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(u), "v"(s));
}
#endif
LATTICE_INLINE bytes64 line_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
LATTICE_INLINE void line_store(uint8_t *p, bytes64 a) { _mm512_storeu_si512(p, a); }
LATTICE_INLINE bytes64 line_mask(bytes64 a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8((char)byte)); }
LATTICE_INLINE bytes64 line_or(bytes64 a, bytes64 b) { return _mm512_or_si512(a, b); }
#define line_right(a, bits) _mm512_srli_epi16(a, bits)
#define line_left(a, bits) _mm512_slli_epi16(a, bits)
LATTICE_INLINE bytes64 line_repeat(int32_t four) { return _mm512_set1_epi32(four); }
LATTICE_INLINE line_sum sum_from(int32_t start, int dot)
{
    (void)dot;
    return (line_sum){_mm512_setzero_si512(), _mm512_set1_epi32(start)};
}
LATTICE_INLINE void add_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    if (dot)
        dot_line(&sum->wide, q, x);
    else
        sum->words = _mm512_add_epi16(sum->words, _mm512_maddubs_epi16(q, x));
}
/* VNNI takes q + 128, unsigned: the sum is too large by 128 times the sum of x. */
#define SIGNED_LINE_EXCESS(dot) ((dot) ? 128 : 0)
#define WHOLE_LINE_BYTES(dot) (dot)
LATTICE_INLINE void add_signed_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    if (dot) {
        dot_line(&sum->wide, _mm512_xor_si512(q, _mm512_set1_epi8(-128)), x);
        return;
    }
    /* both as words, even and odd bytes: there is no vpsignb of this width */
    const __m512i even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8),
                                           _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srai_epi16(q, 8), _mm512_srai_epi16(x, 8));
    sum->wide = _mm512_add_epi32(sum->wide, _mm512_add_epi32(even, odd));
}
LATTICE_INLINE void widen(line_sum *sum, int dot)
{
    if (!dot) {
        sum->wide = _mm512_add_epi32(sum->wide, _mm512_madd_epi16(sum->words, _mm512_set1_epi16(1)));
        sum->words = _mm512_setzero_si512();
    }
}
LATTICE_INLINE i32x16 sum_value(const line_sum *sum, int dot)
{
    (void)dot;
    return sum->wide;
}

#elif defined(LATTICE_ISA_AVX2)
typedef struct {
    __m256i part[2];
} bytes64;
typedef struct {
    __m256i words[2], wide[2];
} line_sum;
#if defined(LATTICE_EMULATE_AVX512) /* AVX-VNNI too */
LATTICE_INLINE void dot_line(__m256i *sum, __m256i u, __m256i s)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(even, odd));
}
#else
LATTICE_INLINE void dot_line(__m256i *sum, __m256i u, __m256i s)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(*sum) : "x"(u), "x"(s));
}
#endif
#define LATTICE_BOTH(expression)                                                                                       \
    do {                                                                                                               \
        bytes64 result_;                                                                                               \
        for (int h = 0; h < 2; h++)                                                                                    \
            result_.part[h] = (expression);                                                                            \
        return result_;                                                                                                \
    } while (0)
LATTICE_INLINE bytes64 line_load(const uint8_t *p) { LATTICE_BOTH(_mm256_loadu_si256((const __m256i *)(p + 32 * h))); }
LATTICE_INLINE void line_store(uint8_t *p, bytes64 a)
{
    _mm256_storeu_si256((__m256i *)p, a.part[0]);
    _mm256_storeu_si256((__m256i *)(p + 32), a.part[1]);
}
LATTICE_INLINE bytes64 line_mask(bytes64 a, int byte)
{
    LATTICE_BOTH(_mm256_and_si256(a.part[h], _mm256_set1_epi8((char)byte)));
}
LATTICE_INLINE bytes64 line_or(bytes64 a, bytes64 b) { LATTICE_BOTH(_mm256_or_si256(a.part[h], b.part[h])); }
LATTICE_INLINE bytes64 line_right(bytes64 a, int bits) { LATTICE_BOTH(_mm256_srli_epi16(a.part[h], bits)); }
LATTICE_INLINE bytes64 line_left(bytes64 a, int bits) { LATTICE_BOTH(_mm256_slli_epi16(a.part[h], bits)); }
LATTICE_INLINE bytes64 line_repeat(int32_t four) { LATTICE_BOTH(((void)h, _mm256_set1_epi32(four))); }
LATTICE_INLINE line_sum sum_from(int32_t start, int dot)
{
    (void)dot;
    const __m256i zero = _mm256_setzero_si256(), wide = _mm256_set1_epi32(start);
    return (line_sum){{zero, zero}, {wide, wide}};
}
LATTICE_INLINE void add_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    for (int h = 0; h < 2; h++) {
        if (dot)
            dot_line(&sum->wide[h], q.part[h], x.part[h]);
        else
            sum->words[h] = _mm256_add_epi16(sum->words[h], _mm256_maddubs_epi16(q.part[h], x.part[h]));
    }
}
#define SIGNED_LINE_EXCESS(dot) ((dot) ? 128 : 0) /* as above */
#define WHOLE_LINE_BYTES(dot) 0 /* a second sum costs more registers than there are */
LATTICE_INLINE void add_signed_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    for (int h = 0; h < 2; h++) {
        if (dot) {
            dot_line(&sum->wide[h], _mm256_xor_si256(q.part[h], _mm256_set1_epi8(-128)), x.part[h]);
            continue;
        }
        const __m256i words =
            _mm256_maddubs_epi16(_mm256_abs_epi8(q.part[h]), _mm256_sign_epi8(x.part[h], q.part[h]));
        sum->wide[h] = _mm256_add_epi32(sum->wide[h], _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    }
}
LATTICE_INLINE void widen(line_sum *sum, int dot)
{
    for (int h = 0; h < 2 && !dot; h++) {
        sum->wide[h] = _mm256_add_epi32(sum->wide[h], _mm256_madd_epi16(sum->words[h], _mm256_set1_epi16(1)));
        sum->words[h] = _mm256_setzero_si256();
    }
}
LATTICE_INLINE i32x16 sum_value(const line_sum *sum, int dot)
{
    (void)dot;
    return (i32x16){sum->wide[0], sum->wide[1]};
}
#undef LATTICE_BOTH

#elif defined(LATTICE_ISA_NEON)
typedef struct {
    uint8x16_t q[4];
} bytes64;
/* With SDOT four columns a register. Without, pairs of columns: two sums of halves for each. */
typedef struct {
    int32x4_t wide[8];
} line_sum;
LATTICE_INLINE void dot_line(int32x4_t *sum, uint8x16_t a, uint8x16_t b)
{
    __asm__(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(*sum) : "w"(a), "w"(b));
}
LATTICE_INLINE bytes64 line_load(const uint8_t *p) { LATTICE_QUARTERS(bytes64, vld1q_u8(p + 16 * i)); }
LATTICE_INLINE void line_store(uint8_t *p, bytes64 a)
{
    for (int i = 0; i < 4; i++)
        vst1q_u8(p + 16 * i, a.q[i]);
}
LATTICE_INLINE bytes64 line_mask(bytes64 a, int byte)
{
    LATTICE_QUARTERS(bytes64, vandq_u8(a.q[i], vdupq_n_u8((uint8_t)byte)));
}
LATTICE_INLINE bytes64 line_or(bytes64 a, bytes64 b) { LATTICE_QUARTERS(bytes64, vorrq_u8(a.q[i], b.q[i])); }
LATTICE_INLINE bytes64 line_right(bytes64 a, int bits)
{
    LATTICE_QUARTERS(bytes64, vshlq_u8(a.q[i], vdupq_n_s8((int8_t)-bits)));
}
LATTICE_INLINE bytes64 line_left(bytes64 a, int bits)
{
    LATTICE_QUARTERS(bytes64, vshlq_u8(a.q[i], vdupq_n_s8((int8_t)bits)));
}
LATTICE_INLINE bytes64 line_repeat(int32_t four)
{
    LATTICE_QUARTERS(bytes64, ((void)i, vreinterpretq_u8_s32(vdupq_n_s32(four))));
}
LATTICE_INLINE line_sum sum_from(int32_t start, int dot)
{
    const int32_t pairs[4] = {start, dot ? start : 0, start, dot ? start : 0};
    line_sum sum;
    for (int i = 0; i < 8; i++)
        sum.wide[i] = vld1q_s32(pairs);
    return sum;
}
#define SIGNED_LINE_EXCESS(dot) 0
#define WHOLE_LINE_BYTES(dot) 0
LATTICE_INLINE void add_signed_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    for (int i = 0; i < 4; i++) {
        if (dot) {
            dot_line(&sum->wide[i], q.q[i], x.q[i]);
            continue;
        }
        const int8x16_t a = vreinterpretq_s8_u8(q.q[i]), b = vreinterpretq_s8_u8(x.q[i]);
        sum->wide[2 * i] = vpadalq_s16(sum->wide[2 * i], vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        sum->wide[2 * i + 1] = vpadalq_s16(sum->wide[2 * i + 1], vmull_s8(vget_high_s8(a), vget_high_s8(b)));
    }
}
LATTICE_INLINE void add_line(line_sum *sum, bytes64 q, bytes64 x, int dot) { add_signed_line(sum, q, x, dot); }
LATTICE_INLINE void widen(line_sum *sum, int dot)
{
    (void)sum;
    (void)dot;
}
LATTICE_INLINE i32x16 sum_value(const line_sum *sum, int dot)
{
    if (dot)
        LATTICE_QUARTERS(i32x16, sum->wide[i]);
    LATTICE_QUARTERS(i32x16, vpaddq_s32(sum->wide[2 * i], sum->wide[2 * i + 1]));
}

#else
typedef struct {
    uint8_t byte[64];
} bytes64;
typedef struct {
    int32_t wide[16];
} line_sum;
#define LATTICE_BYTES(expression)                                                                                      \
    do {                                                                                                               \
        bytes64 result_;                                                                                               \
        for (int i = 0; i < 64; i++)                                                                                   \
            result_.byte[i] = (uint8_t)(expression);                                                                   \
        return result_;                                                                                                \
    } while (0)
LATTICE_INLINE bytes64 line_load(const uint8_t *p) { LATTICE_BYTES(p[i]); }
LATTICE_INLINE void line_store(uint8_t *p, bytes64 a) { memcpy(p, a.byte, 64); }
LATTICE_INLINE bytes64 line_mask(bytes64 a, int byte) { LATTICE_BYTES(a.byte[i] & byte); }
LATTICE_INLINE bytes64 line_or(bytes64 a, bytes64 b) { LATTICE_BYTES(a.byte[i] | b.byte[i]); }
LATTICE_INLINE bytes64 line_right(bytes64 a, int bits) { LATTICE_BYTES(a.byte[i] >> bits); }
LATTICE_INLINE bytes64 line_left(bytes64 a, int bits) { LATTICE_BYTES(a.byte[i] << bits); }
LATTICE_INLINE bytes64 line_repeat(int32_t four)
{
    uint8_t bytes[4];
    memcpy(bytes, &four, 4);
    LATTICE_BYTES(bytes[i % 4]);
}
LATTICE_INLINE line_sum sum_from(int32_t start, int dot)
{
    (void)dot;
    line_sum sum;
    i32x16_store(sum.wide, i32x16_set1(start));
    return sum;
}
#define SIGNED_LINE_EXCESS(dot) 0
#define WHOLE_LINE_BYTES(dot) 0
LATTICE_INLINE void add_signed_line(line_sum *sum, bytes64 q, bytes64 x, int dot)
{
    (void)dot;
    int8_t a[64], b[64];
    memcpy(a, q.byte, 64);
    memcpy(b, x.byte, 64);
    for (int c = 0; c < 16; c++)
        for (int k = 0; k < 4; k++)
            sum->wide[c] += a[4 * c + k] * b[4 * c + k];
}
LATTICE_INLINE void add_line(line_sum *sum, bytes64 q, bytes64 x, int dot) { add_signed_line(sum, q, x, dot); }
LATTICE_INLINE void widen(line_sum *sum, int dot)
{
    (void)sum;
    (void)dot;
}
LATTICE_INLINE i32x16 sum_value(const line_sum *sum, int dot)
{
    (void)dot;
    return i32x16_load(sum->wide);
}
#undef LATTICE_BYTES
#endif

#endif
