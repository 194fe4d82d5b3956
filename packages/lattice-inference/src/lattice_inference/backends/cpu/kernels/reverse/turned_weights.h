/* A linear's resident panels, widened to float32 and turned: what multiplies gradients of outputs, and no second copy of the
 * weights, as a task turns what it multiplies and forgets it.
 *
 *     panel [k][16] of W [n][k], any form  ->  elements [first, first + count) as float32 [count][16]
 *     those of several panels, turned      ->  [count / 16][16 panels][16], panels of W^T
 */
#ifndef LATTICE_TURNED_WEIGHTS_H
#define LATTICE_TURNED_WEIGHTS_H

#include "lattice/half.h"
#include "lattice/simd_integer.h"
#include "lattice/transpose.h"
#include "linear/bfloat16_linear.h"
#include "reverse/scratch.h"
#include "rows/rows.h"

/* Elements [first, first + count) of k of a panel of 16-bit floats in pairs, [k / 2][16][2]; `first` is even. */
static void widen_pairs(const uint16_t *panel, int64_t first, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i += 2) {
        const i32x16 both = i32x16_load((const int32_t *)(panel + (first + i) * LATTICE_PANEL));
        f32x16_store(y + i * LATTICE_PANEL, f32x16_from_bits(i32x16_shift_left(both, 16)));
        if (i + 1 < count)
            f32x16_store(y + (i + 1) * LATTICE_PANEL,
                         f32x16_from_bits(i32x16_shift_left(i32x16_shift_right(both, 16), 16)));
    }
}

/* Elements [first, first + count) of the k of a panel as float32 [count][16]: in place, or in `room`, which holds them. They
 * begin and end where lattice_turned_unit says, or with k. */
static const float *widened_stretch(int weight_type, const void *weights, int64_t k, int64_t panel, int64_t first, int64_t count,
                                    float *room)
{
    const int64_t begin = (panel * k + first) * LATTICE_PANEL;
    const uint16_t *halves = weights;
    switch (weight_type) {
    case LATTICE_WEIGHT_FLOAT32:
        return (const float *)weights + begin;
    case LATTICE_WEIGHT_BFLOAT16:
        for (int64_t i = 0; i < count * LATTICE_PANEL; i += 16)
            f32x16_store(room + i, f32x16_load_bfloat16(halves + begin + i));
        return room;
    case LATTICE_WEIGHT_FLOAT16:
        for (int64_t i = 0; i < count * LATTICE_PANEL; i += 16)
            f32x16_store(room + i, f32x16_load_float16(halves + begin + i));
        return room;
    case LATTICE_WEIGHT_BFLOAT16_PAIRS:
        widen_pairs(halves + panel * (lattice_bfloat16_panel_bytes(k) / 2), first, count, room);
        return room;
    default:
        LATTICE_FN(lattice_widen_panel)(weight_type, weights, k, panel, first, count, room);
        return room;
    }
}

/* source [count][16] of panel `panel` of `panels` to its rows of y [count / 16][16 panels][16]; y's last panel is filled with
 * zeros. */
static void turn_panel(const float *source, int64_t count, int64_t panel, int64_t panels, float *y)
{
    float *target = y + panel * LATTICE_PANEL * LATTICE_PANEL;
    const int64_t stride = panels * LATTICE_PANEL * LATTICE_PANEL;
    float last[LATTICE_PANEL * LATTICE_PANEL];
    for (int64_t i = 0; i < count; i += LATTICE_PANEL, source += LATTICE_PANEL * LATTICE_PANEL, target += stride) {
        if (count - i < LATTICE_PANEL) {
            memset(last, 0, sizeof last);
            source = memcpy(last, source, (size_t)((count - i) * LATTICE_PANEL) * sizeof(float));
        }
        for (int half = 0; half < LATTICE_PANEL; half += 8)
            for (int other = 0; other < LATTICE_PANEL; other += 8)
                transpose_8x8(source + half * LATTICE_PANEL + other, LATTICE_PANEL, target + other * LATTICE_PANEL + half,
                              LATTICE_PANEL);
    }
}

#endif
