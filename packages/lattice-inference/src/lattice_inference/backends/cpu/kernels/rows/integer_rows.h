/* Rows of activations as small integers, for linears with integer weights.
 *
 *     low = min(0, min x), high = max(0, max x), scale = (high - low) / 255, zero = round(-low * (255 / (high - low)))
 *     q[k] = min(max(round(x[k] * (255 / (high - low))) + zero, 0), 255)            so x[k] ~ scale * (q[k] - zero)
 *
 * with every operation rounded to float32, ties to even, no fused one: all levels, the baseline included, give the same q.
 * Each row is quantized by itself, so its integers do not depend on its company. A row whose range is below 2^-100 has the
 * scale 0. Where an element is NaN or infinite, the scale is NaN, and so is every output of the row.
 *
 * A calibration may fix low and high for all rows: scale and zero are then the same for every row, and elements beyond them
 * become 0 or 255.
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
#include "rows/rows.h"

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

/* fixed: low <= 0 and high >= 0 as a calibration fixed them, or NULL for those of the row */
static void quantize_row(const float *x, int64_t n, const float *fixed, integer_row_form form, float *row)
{
    /* two of each take turns: the order of neither minima nor maxima shows */
    f32x16 low[2], high[2], poison[2];
    for (int j = 0; j < 2; j++)
        low[j] = high[j] = poison[j] = f32x16_zero();
    for (int64_t i = 0; i < n; i += 32)
        for (int j = 0; j < 2 && i + 16 * j < n; j++) {
            const f32x16 value = load_part(x, i + 16 * j, n);
            low[j] = f32x16_min(value, low[j]);
            high[j] = f32x16_max(value, high[j]);
            poison[j] = f32x16_add(poison[j], f32x16_mul(value, f32x16_zero()));
        }
    low[0] = f32x16_min(low[0], low[1]);
    high[0] = f32x16_max(high[0], high[1]);
    const float least = fixed != NULL ? fixed[0] : -f32x16_fold_max(f32x16_neg(low[0]));
    const float range = (fixed != NULL ? fixed[1] : f32x16_fold_max(high[0])) - least;
    const int flat = !(range >= 0x1p-100f);
    const float inverse = flat ? 0.0f : 255.0f / range;
    float lanes[16];
    f32x16_store(lanes, f32x16_round(f32x16_set1(-least * inverse)));
    const int32_t zero = lanes[0] <= 255.0f ? (int32_t)lanes[0] : 0; /* 0 where it is NaN */
    const float scale = (flat ? 0.0f : range / 255.0f) + f32x16_fold_add(f32x16_add(poison[0], poison[1]));
    const int32_t moved_zero = form == ROW_SIGNED_BYTES ? zero - 128 : zero;
    memcpy(row, &scale, sizeof scale);
    memcpy(row + 1, &moved_zero, sizeof moved_zero);
    char *elements = (char *)row + INTEGER_ROW_HEADER;
    /* round(v) + zero between 0 and 255 is round(v between -zero and 255 - zero) + zero: the bounds are integers */
    const f32x16 least_moved = f32x16_set1((float)-zero), most_moved = f32x16_set1((float)(255 - zero));
    for (int64_t i = 0; i < n; i += 16) {
        const f32x16 value = f32x16_mul(load_part(x, i, n), f32x16_set1(inverse));
        const i32x16 rounded = i32x16_round_f32x16(f32x16_min(f32x16_max(value, least_moved), most_moved));
        const i32x16 q = i32x16_add(rounded, i32x16_set1(moved_zero));
        if (form == ROW_WORDS)
            i32x16_store_words((int16_t *)elements + i, q);
        else
            i32x16_store_bytes(elements + i, q);
    }
}

#endif
