/* The numbers that block-quantized weights stand for, as ggml's reference code computes them: scale * q, rounded, then the
 * offset added, where there is one. Scales of the K formats are d * s, which is exact.
 */
#ifndef LATTICE_BLOCK_VALUES_H
#define LATTICE_BLOCK_VALUES_H

#include "linear/block_tiles.h"

/* Step P (a literal) of the four steps of k that a line of codes holds: sixteen columns' numbers. */
#define WRITE_STEP(P)                                                                                                  \
    do {                                                                                                               \
        const i32x16 q_ = format == LATTICE_Q8_0                                                                       \
                              ? i32x16_shift_right(i32x16_shift_left(words, 24 - 8 * P), 24)                           \
                              : i32x16_sub(i32x16_and(i32x16_shift_right(words, 8 * P), i32x16_set1(255)),             \
                                           i32x16_set1(layout.center));                                                \
        f32x16 value_ = f32x16_mul(f32x16_from_i32x16(q_), scale);                                                     \
        if (layout.header_bytes == 64)                                                                                 \
            value_ = f32x16_add(value_, offset);                                                                       \
        f32x16_store(y + (4 * group + P) * LATTICE_PANEL, value_);                                                     \
    } while (0)

/* A panel as float32 [k][16]. */
LATTICE_INLINE void dequantize_panel_of(int format, const uint8_t *panel, int64_t k, float *y)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const uint8_t *record = panel;
    for (int64_t b = 0; b < k / LATTICE_BLOCK; record += layout.header_bytes + layout.blocks * layout.block_bytes) {
        const f32x16 d = load_scales(record), m = layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero();
        const uint8_t *block = record + layout.header_bytes;
        for (int inside = 0; inside < layout.blocks;
             inside++, b++, block += layout.block_bytes, y += LATTICE_BLOCK * LATTICE_PANEL) {
            const uint8_t *lines = block + layout.scale_bytes;
            uint8_t codes[8][64];
            bytes64 low, high;
#define KEEP_LINE(J)                                                                                                   \
    UNPACK_LINE(format, lines, J, low, high, 0);                                                                       \
    line_store(codes[J], low);                                                                                         \
    line_store(codes[J + 4], high)
            KEEP_LINE(0);
            KEEP_LINE(1);
            KEEP_LINE(2);
            KEEP_LINE(3);
#undef KEEP_LINE
            f32x16 scale = d, offset = m;
            if (layout.scale_bytes > 0 && format != LATTICE_Q6_K) {
                scale = f32x16_mul(d, f32x16_from_i32x16(i32x16_load_uint8(block)));
                offset = f32x16_neg(f32x16_mul(m, f32x16_from_i32x16(i32x16_load_uint8(block + 16))));
            }
            for (int group = 0; group < 8; group++) {
                if (format == LATTICE_Q6_K)
                    scale = f32x16_mul(d, f32x16_from_i32x16(i32x16_load_int8((const int8_t *)block + 16 * (group / 4))));
                int32_t lanes[16];
                memcpy(lanes, codes[group], sizeof lanes);
                const i32x16 words = i32x16_load(lanes);
                WRITE_STEP(0);
                WRITE_STEP(1);
                WRITE_STEP(2);
                WRITE_STEP(3);
            }
        }
    }
}

static void dequantize_panel(int format, const uint8_t *panel, int64_t k, float *y)
{
#if defined(LATTICE_ISA_BASELINE)
    dequantize_panel_of(format, panel, k, y);
#else
    switch (format) {
#define ONE_FORMAT(FORMAT, ...)                                                                                        \
    case LATTICE_##FORMAT:                                                                                             \
        dequantize_panel_of(LATTICE_##FORMAT, panel, k, y);                                                            \
        return;
        LATTICE_BLOCK_FORMATS(ONE_FORMAT)
#undef ONE_FORMAT
    }
#endif
}

/* Column `column` of a panel as k floats, a row of a table, to y; plus `residual`, which may lie where y does, if not NULL. */
static void dequantize_column(int format, const uint8_t *panel, int column, int64_t k, const float *residual, float *y)
{
    const lattice_block_layout layout = lattice_block_layout_of(format);
    const int five = has_fifth_bits(format);
    const uint8_t *record = panel;
    for (int64_t b = 0; b < k / LATTICE_BLOCK; record += layout.header_bytes + layout.blocks * layout.block_bytes) {
        float d[16], m[16];
        f32x16_store(d, load_scales(record));
        f32x16_store(m, layout.header_bytes == 64 ? load_scales(record + 32) : f32x16_zero());
        const uint8_t *block = record + layout.header_bytes;
        for (int inside = 0; inside < layout.blocks; inside++, b++, block += layout.block_bytes, y += LATTICE_BLOCK) {
            const uint8_t *byte = block + layout.scale_bytes + 4 * column;
            float scales[2] = {d[column], d[column]}, offset = m[column];
            if (format == LATTICE_Q6_K) {
                scales[0] = d[column] * (float)((const int8_t *)block)[column];
                scales[1] = d[column] * (float)((const int8_t *)block)[16 + column];
            } else if (layout.scale_bytes > 0) {
                scales[0] = scales[1] = d[column] * (float)block[column];
                offset = -(m[column] * (float)block[16 + column]);
            }
            for (int i = 0; i < LATTICE_BLOCK; i++) {
                const int group = i / 4, part = i % 4;
                int q;
                if (format == LATTICE_Q8_0) {
                    q = ((const int8_t *)byte)[64 * group + part];
                } else {
                    q = byte[64 * (group % 4) + part] >> (group < 4 ? 0 : 4) & 15;
                    if (five)
                        q |= (byte[256 + part] >> group & 1) << 4;
                    if (format == LATTICE_Q6_K)
                        q |= (byte[256 + 64 * (group / 4) + part] >> 2 * (group % 4) & 3) << 4;
                    q -= layout.center;
                }
                float value = (float)q * scales[i / 16];
                if (layout.header_bytes == 64)
                    value += offset;
                y[i] = residual != NULL ? *residual++ + value : value;
            }
        }
    }
}

#endif
