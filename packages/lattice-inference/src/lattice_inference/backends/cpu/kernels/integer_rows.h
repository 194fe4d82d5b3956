/* Rows of activations as small integers, for linears with integer weights.
 *
 *     low = min(0, min x), high = max(0, max x), scale = (high - low) / 255, zero = round(-low * (255 / (high - low)))
 *     q[k] = min(max(round(x[k] * (255 / (high - low))) + zero, 0), 255)            so x[k] ~ scale * (q[k] - zero)
 *
 * with every operation rounded to float32, ties to even, no fused one: all levels, the baseline included, give the same q.
 * Each row is quantized by itself, so its integers do not depend on its company. A row whose range is below 2^-100 has the
 * scale 0. Where an element is NaN or infinite, the scale is, and so is every output of the row.
 *
 * A row in memory: a line of 64 bytes with scale (float) and zero (int32), then its elements up to a multiple of 16. The elements'
 * form is the level's own: what its multiply-add instruction takes. Rows live for the length of a step only.
 *
 *     bytes     q         VNNI: unsigned by signed bytes, four products summed
 *     signed    q - 128   NEON: signed by signed; the zero is moved as well
 *     words     q         elsewhere: 16-bit by 16-bit, two products summed
 */
#ifndef LATTICE_INTEGER_ROWS_H
#define LATTICE_INTEGER_ROWS_H

#include "lattice/simd_integer.h"
#include "rows.h"

#define INTEGER_ROW_HEADER 64 /* bytes before the elements */
#define INTEGER_ROW_ELEMENTS 16

typedef enum { ROW_BYTES, ROW_SIGNED_BYTES, ROW_WORDS } integer_row_form;

#if defined(LATTICE_ISA_NEON)
#define PLAIN_ROW_FORM ROW_SIGNED_BYTES
#define DOT_ROW_FORM ROW_SIGNED_BYTES
#else
#define PLAIN_ROW_FORM ROW_WORDS
#define DOT_ROW_FORM ROW_BYTES
#endif

LATTICE_INLINE float integer_row_scale(const char *elements)
{
    float scale;
    memcpy(&scale, elements - INTEGER_ROW_HEADER, sizeof scale);
    return scale;
}

LATTICE_INLINE int32_t integer_row_zero(const char *elements)
{
    int32_t zero;
    memcpy(&zero, elements - INTEGER_ROW_HEADER + sizeof(float), sizeof zero);
    return zero;
}

static void quantize_row(const float *x, int64_t n, integer_row_form form, float *row)
{
    f32x16 low = f32x16_zero(), high = f32x16_zero(), poison = f32x16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 value = load_part(x, i, n);
        low = f32x16_min(value, low);
        high = f32x16_max(value, high);
        poison = f32x16_add(poison, f32x16_mul(value, f32x16_zero()));
    }
    const float least = -f32x16_fold_max(f32x16_neg(low)), range = f32x16_fold_max(high) - least;
    const int flat = !(range >= 0x1p-100f);
    const float inverse = flat ? 0.0f : 255.0f / range;
    const f32x16 zero = f32x16_round(f32x16_set1(-least * inverse));
    const int32_t offset = form == ROW_SIGNED_BYTES ? -128 : 0;
    float lanes[16];
    f32x16_store(lanes, zero);
    const float scale = (flat ? 0.0f : range / 255.0f) + f32x16_fold_add(poison);
    const int32_t moved_zero = (lanes[0] <= 255.0f ? (int32_t)lanes[0] : 0) + offset;
    memcpy(row, &scale, sizeof scale);
    memcpy(row + 1, &moved_zero, sizeof moved_zero);
    char *elements = (char *)row + INTEGER_ROW_HEADER;
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 moved = f32x16_add(f32x16_round(f32x16_mul(load_part(x, i, n), f32x16_set1(inverse))), zero);
        const f32x16 bounded = f32x16_min(f32x16_max(moved, f32x16_zero()), f32x16_set1(255.0f));
        const i32x16 q = i32x16_add(i32x16_from_f32x16(bounded), i32x16_set1(offset));
        if (form == ROW_WORDS)
            i32x16_store_words((int16_t *)elements + i, q);
        else
            i32x16_store_bytes(elements + i, q);
    }
}

#endif
