/* Products of bfloat16 by AMX: C[rows][16 p] = A[rows][k] B, up to 32 rows and any number of panels.
 *
 * A tile register holds 16 rows of 64 bytes. A's rows are read where they lie; a panel of B is [k / 2][16][2]
 * (bfloat16_linear.h), of which 32 steps of k are a tile as they lie. Eight registers make
 *
 *     more than 16 rows:  C C | C C   A A   B B          up to 16 rows:  C C C C   A   B B B
 *                         two tiles of rows by two panels                one tile of rows by four panels
 *
 * so that four chains of products run at once: one product takes 52 cycles, and a new one may begin every 16.
 *
 * Numeric design: TDPBF16PS adds the products of even k and those of odd k of its 32 in ascending order, each in a chain of
 * its own, then their sum to C. Products are exact, sums round to nearest even, subnormal numbers are zero. The order is
 * the same for every shape of tile, so an element of C does not depend on how many rows or panels there are.
 */
#ifndef LATTICE_AMX_BFLOAT16_H
#define LATTICE_AMX_BFLOAT16_H

#include "lattice/cpu.h"
#include "amx/amx_tiles.h"

#if LATTICE_AMX_INT8 && !defined(LATTICE_EMULATE_AVX512)
#define LATTICE_AMX_BFLOAT16 1
#define BFLOAT16_AMX_FEATURE LATTICE_FEATURE_AMX_BF16
#else
#define BFLOAT16_AMX_FEATURE 0
#endif

#if defined(LATTICE_AMX_BFLOAT16)

#define AMX_TILE_BYTES 1024 /* of B: 32 steps of k of a panel */
#define AMX_AHEAD_BYTES 2048 /* how far before its use a line of B is asked for, where rows are few and B is what takes time */
#define amx_dot_bfloat16(sums, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : :)

/* Shapes the tile registers for `rows` rows of A, from 1 to AMX_MOST_ROWS. */
LATTICE_INLINE void amx_shape_bfloat16(int64_t rows)
{
    const int two = rows > AMX_ROWS;
    const uint8_t first = (uint8_t)(two ? (rows + 1) / 2 : rows), second = (uint8_t)(two ? rows / 2 : rows);
    amx_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int i = 0; i < AMX_REGISTERS; i++)
        shapes.row_bytes[i] = AMX_ROW_BYTES;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = first;
    shapes.rows[2] = shapes.rows[3] = second;
    shapes.rows[5] = two ? second : AMX_ROWS;
    shapes.rows[6] = shapes.rows[7] = AMX_ROWS;
    amx_shape(&shapes);
}

/* Two tiles of rows by two panels; `second`: where A's second tile of rows begins. c: [rows][stride bytes]. */
LATTICE_INLINE void amx_bfloat16_2x2(const char *a, const char *second, int64_t a_stride, const char *b, int64_t panel_bytes,
                            int64_t steps, char *c, char *c_second, int64_t c_stride)
{
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int64_t i = 0; i < steps; i++) {
        amx_load(6, b + i * AMX_TILE_BYTES, AMX_ROW_BYTES);
        amx_load(4, a + i * 64, a_stride);
        amx_dot_bfloat16(0, 4, 6);
        amx_load(7, b + panel_bytes + i * AMX_TILE_BYTES, AMX_ROW_BYTES);
        amx_dot_bfloat16(1, 4, 7);
        amx_load(5, second + i * 64, a_stride);
        amx_dot_bfloat16(2, 5, 6);
        amx_dot_bfloat16(3, 5, 7);
    }
    amx_store(0, c, c_stride);
    amx_store(1, c + 64, c_stride);
    amx_store(2, c_second, c_stride);
    amx_store(3, c_second + 64, c_stride);
}

LATTICE_INLINE void amx_bfloat16_2x1(const char *a, const char *second, int64_t a_stride, const char *b, int64_t steps, char *c,
                           char *c_second, int64_t c_stride)
{
    amx_zero(0);
    amx_zero(2);
    for (int64_t i = 0; i < steps; i++) {
        amx_load(6, b + i * AMX_TILE_BYTES, AMX_ROW_BYTES);
        amx_load(4, a + i * 64, a_stride);
        amx_dot_bfloat16(0, 4, 6);
        amx_load(5, second + i * 64, a_stride);
        amx_dot_bfloat16(2, 5, 6);
    }
    amx_store(0, c, c_stride);
    amx_store(2, c_second, c_stride);
}

LATTICE_INLINE void ask_for_tile(const char *b)
{
    for (int line = 0; line < AMX_TILE_BYTES; line += 64)
        __builtin_prefetch(b + AMX_AHEAD_BYTES + line, 0, 3);
}

LATTICE_INLINE void amx_bfloat16_1x4(const char *a, int64_t a_stride, const char *b, int64_t panel_bytes, int64_t steps, char *c,
                           int64_t c_stride)
{
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int64_t i = 0; i < steps; i++, b += AMX_TILE_BYTES) {
        for (int p = 0; p < 4; p++)
            ask_for_tile(b + p * panel_bytes);
        amx_load(4, a + i * 64, a_stride);
        amx_load(5, b, AMX_ROW_BYTES);
        amx_dot_bfloat16(0, 4, 5);
        amx_load(6, b + panel_bytes, AMX_ROW_BYTES);
        amx_dot_bfloat16(1, 4, 6);
        amx_load(7, b + 2 * panel_bytes, AMX_ROW_BYTES);
        amx_dot_bfloat16(2, 4, 7);
        amx_load(5, b + 3 * panel_bytes, AMX_ROW_BYTES);
        amx_dot_bfloat16(3, 4, 5);
    }
    amx_store(0, c, c_stride);
    amx_store(1, c + 64, c_stride);
    amx_store(2, c + 128, c_stride);
    amx_store(3, c + 192, c_stride);
}

LATTICE_INLINE void amx_bfloat16_1x1(const char *a, int64_t a_stride, const char *b, int64_t steps, char *c, int64_t c_stride)
{
    amx_zero(0);
    for (int64_t i = 0; i < steps; i++) {
        amx_load(4, a + i * 64, a_stride);
        amx_load(5, b + i * AMX_TILE_BYTES, AMX_ROW_BYTES);
        amx_dot_bfloat16(0, 4, 5);
    }
    amx_store(0, c, c_stride);
}

/* c[rows][16 panels] = a[rows][32 steps] times panels `panel_bytes` apart; strides in bytes. `rows`: as
 * amx_shape_bfloat16 was told. */
LATTICE_INLINE void amx_multiply_bfloat16(const uint16_t *rows_of_a, int64_t a_stride, int64_t rows, const void *panels_of_b,
                                          int64_t panel_bytes, int64_t panels, int64_t steps, float *sums, int64_t c_stride)
{
    const char *a = (const char *)rows_of_a, *b = panels_of_b;
    char *c = (char *)sums;
    int64_t p = 0;
    if (rows > AMX_ROWS) {
        const int64_t first = (rows + 1) / 2;
        for (; p + 2 <= panels; p += 2)
            amx_bfloat16_2x2(a, a + first * a_stride, a_stride, b + p * panel_bytes, panel_bytes, steps, c + p * 64,
                    c + first * c_stride + p * 64, c_stride);
        if (p < panels)
            amx_bfloat16_2x1(a, a + first * a_stride, a_stride, b + p * panel_bytes, steps, c + p * 64,
                             c + first * c_stride + p * 64, c_stride);
        return;
    }
    for (; p + 4 <= panels; p += 4)
        amx_bfloat16_1x4(a, a_stride, b + p * panel_bytes, panel_bytes, steps, c + p * 64, c_stride);
    for (; p < panels; p++)
        amx_bfloat16_1x1(a, a_stride, b + p * panel_bytes, steps, c + p * 64, c_stride);
}

#endif

#endif
