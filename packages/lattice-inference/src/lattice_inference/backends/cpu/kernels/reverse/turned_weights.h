/* A linear's resident panels, widened to float32 and turned: what multiplies gradients of outputs, and no second copy of the
 * weights, as a task turns what it multiplies and forgets it.
 *
 *     panel [k][16] of W [n][k], any form  ->  elements [first, first + count) as float32 [count][16]
 *     those of several panels, turned      ->  [count / 16][16 panels][16], panels of W^T
 *
 * Bfloat16 in pairs is turned without widening.
 */
#ifndef LATTICE_TURNED_WEIGHTS_H
#define LATTICE_TURNED_WEIGHTS_H

#include "lattice/half.h"
#include "lattice/transpose.h"
#include "linear/bfloat16_linear.h"
#include "reverse/scratch.h"
#include "rows/rows.h"

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

/* Columns [first, first + count) of k of a panel of bfloat16 in pairs, [k / 2][16][2], to its lines of y
 * [count / 16][depth / 2][16][2], panels of W^T in pairs: an element of W^T's k is an output of W. `first` is a multiple of 16. */
LATTICE_INLINE void turn_pairs(const uint16_t *panel, int64_t first, int64_t count, int64_t number, int64_t depth, uint16_t *y)
{
    uint16_t *target = y + number * LATTICE_PANEL * LATTICE_PANEL;
    const int64_t lines = lattice_divide_up(count, 2);
    for (int64_t i = 0; i < count; i += LATTICE_PANEL, target += depth * LATTICE_PANEL) {
        float words[8 * LATTICE_PANEL] = {0}, turned[LATTICE_PANEL * 8]; /* moved, and never computed with */
        const int64_t here = lines - i / 2 < 8 ? lines - i / 2 : 8;
        memcpy(words, panel + (first + i) * LATTICE_PANEL, (size_t)(here * LATTICE_PANEL) * sizeof(float));
        transpose_8x8(words, LATTICE_PANEL, turned, 8);
        transpose_8x8(words + 8, LATTICE_PANEL, turned + 64, 8);
        uint32_t pairs[LATTICE_PANEL * 8];
        memcpy(pairs, turned, sizeof pairs);
        for (int line = 0; line < 8; line++) {
            const uint32_t *a = pairs + 16 * line, *b = a + 8;
            uint32_t both[LATTICE_PANEL];
            for (int j = 0; j < 8; j++) {
                both[2 * j] = (a[j] & 0xffff) | b[j] << 16;
                both[2 * j + 1] = a[j] >> 16 | (b[j] & 0xffff0000);
            }
            memcpy(target + line * 2 * LATTICE_PANEL, both, sizeof both);
        }
    }
}

#endif
