/* Products of bfloat16 by AMX: C[rows][16 p] = A[rows][k] B, up to 32 rows and any number of panels.
 *
 * A tile register holds 16 rows of 64 bytes. A's rows are read where they lie; a panel of B is [k / 2][16][2] (bfloat16_linear.h),
 * of which 32 steps of k are a tile as they lie. Eight registers make
 *
 *     more than 16 rows:  C C | C C   A A   B B          up to 16 rows:  C C C C   A   B B B
 *                         two tiles of rows by two panels                one tile of rows by four panels
 *
 * so that four chains of products run at once: one product takes 52 cycles, and a new one may begin every 16.
 *
 * Numeric design: TDPBF16PS adds the products of even k and those of odd k of its 32 in ascending order, each in a chain of
 * its own, then their sum to C. Products are exact, sums round to nearest even, subnormal numbers count as zero. The order is
 * the same for every shape of tile, so an element of C does not depend on how many rows or panels there are.
 */
#ifndef LATTICE_AMX_H
#define LATTICE_AMX_H

#include <stdint.h>
#include <string.h>

#include "lattice/cpu.h"
#include "lattice/simd.h"

/* A compiler that knows the intrinsics has an assembler that knows the instructions. */
#if defined(LATTICE_ISA_AVX512) && !defined(LATTICE_EMULATE_AVX512) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define LATTICE_AMX 1
#endif
#endif
#if defined(LATTICE_AMX)
#define BFLOAT16_TILE_FEATURE LATTICE_FEATURE_AMX_BF16
#else
#define BFLOAT16_TILE_FEATURE 0
#endif

#if defined(LATTICE_AMX)

#define AMX_ROWS 32 /* of A that are multiplied together */

/* The operand of LDTILECFG: how many rows, and bytes a row, each tile register has. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shapes;

/* Shapes the tile registers for `rows` rows of A, from 1 to AMX_ROWS. */
LATTICE_INLINE void amx_begin(int64_t rows)
{
    const int two = rows > 16;
    const uint8_t first = (uint8_t)(two ? (rows + 1) / 2 : rows), second = (uint8_t)(two ? rows / 2 : rows);
    amx_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int i = 0; i < 8; i++)
        shapes.row_bytes[i] = 64;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = first;
    shapes.rows[2] = shapes.rows[3] = second;
    shapes.rows[5] = two ? second : 16;
    shapes.rows[6] = shapes.rows[7] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

/* Gives the tile registers back: the system saves none for a thread that uses none. */
LATTICE_INLINE void amx_end(void)
{
    __asm__ volatile("tilerelease");
}

#define AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define AMX_LOAD(t, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"(stride) : "memory")
#define AMX_STORE(t, p, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"(stride) : "memory")
#define AMX_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#define AMX_TILE_BYTES 1024 /* of B: 32 steps of k of a panel */

/* Two tiles of rows by two panels; `second`: where A's second tile of rows begins. c: [rows][stride bytes]. */
LATTICE_INLINE void amx_2x2(const char *a, const char *second, int64_t a_stride, const char *b, int64_t panel_bytes, int64_t steps,
                           char *c, char *c_second, int64_t c_stride)
{
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (int64_t i = 0; i < steps; i++) {
        AMX_LOAD(6, b + i * AMX_TILE_BYTES, (int64_t)64);
        AMX_LOAD(4, a + i * 64, a_stride);
        AMX_PRODUCT(0, 4, 6);
        AMX_LOAD(7, b + panel_bytes + i * AMX_TILE_BYTES, (int64_t)64);
        AMX_PRODUCT(1, 4, 7);
        AMX_LOAD(5, second + i * 64, a_stride);
        AMX_PRODUCT(2, 5, 6);
        AMX_PRODUCT(3, 5, 7);
    }
    AMX_STORE(0, c, c_stride);
    AMX_STORE(1, c + 64, c_stride);
    AMX_STORE(2, c_second, c_stride);
    AMX_STORE(3, c_second + 64, c_stride);
}

LATTICE_INLINE void amx_2x1(const char *a, const char *second, int64_t a_stride, const char *b, int64_t steps, char *c,
                           char *c_second, int64_t c_stride)
{
    AMX_ZERO(0);
    AMX_ZERO(2);
    for (int64_t i = 0; i < steps; i++) {
        AMX_LOAD(6, b + i * AMX_TILE_BYTES, (int64_t)64);
        AMX_LOAD(4, a + i * 64, a_stride);
        AMX_PRODUCT(0, 4, 6);
        AMX_LOAD(5, second + i * 64, a_stride);
        AMX_PRODUCT(2, 5, 6);
    }
    AMX_STORE(0, c, c_stride);
    AMX_STORE(2, c_second, c_stride);
}

LATTICE_INLINE void amx_1x4(const char *a, int64_t a_stride, const char *b, int64_t panel_bytes, int64_t steps, char *c,
                           int64_t c_stride)
{
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (int64_t i = 0; i < steps; i++, b += AMX_TILE_BYTES) {
        AMX_LOAD(4, a + i * 64, a_stride);
        AMX_LOAD(5, b, (int64_t)64);
        AMX_PRODUCT(0, 4, 5);
        AMX_LOAD(6, b + panel_bytes, (int64_t)64);
        AMX_PRODUCT(1, 4, 6);
        AMX_LOAD(7, b + 2 * panel_bytes, (int64_t)64);
        AMX_PRODUCT(2, 4, 7);
        AMX_LOAD(5, b + 3 * panel_bytes, (int64_t)64);
        AMX_PRODUCT(3, 4, 5);
    }
    AMX_STORE(0, c, c_stride);
    AMX_STORE(1, c + 64, c_stride);
    AMX_STORE(2, c + 128, c_stride);
    AMX_STORE(3, c + 192, c_stride);
}

LATTICE_INLINE void amx_1x1(const char *a, int64_t a_stride, const char *b, int64_t steps, char *c, int64_t c_stride)
{
    AMX_ZERO(0);
    for (int64_t i = 0; i < steps; i++) {
        AMX_LOAD(4, a + i * 64, a_stride);
        AMX_LOAD(5, b + i * AMX_TILE_BYTES, (int64_t)64);
        AMX_PRODUCT(0, 4, 5);
    }
    AMX_STORE(0, c, c_stride);
}

/* c[rows][16 panels] = a[rows][32 steps] times panels `panel_bytes` apart. `rows` is what amx_begin was told. Strides in bytes. */
LATTICE_INLINE void amx_multiply(const uint16_t *rows_of_a, int64_t a_stride, int64_t rows, const void *panels_of_b,
                                int64_t panel_bytes, int64_t panels, int64_t steps, float *sums, int64_t c_stride)
{
    const char *a = (const char *)rows_of_a, *b = panels_of_b;
    char *c = (char *)sums;
    int64_t p = 0;
    if (rows > 16) {
        const int64_t first = (rows + 1) / 2;
        for (; p + 2 <= panels; p += 2)
            amx_2x2(a, a + first * a_stride, a_stride, b + p * panel_bytes, panel_bytes, steps, c + p * 64,
                    c + first * c_stride + p * 64, c_stride);
        if (p < panels)
            amx_2x1(a, a + first * a_stride, a_stride, b + p * panel_bytes, steps, c + p * 64, c + first * c_stride + p * 64,
                    c_stride);
        return;
    }
    for (; p + 4 <= panels; p += 4)
        amx_1x4(a, a_stride, b + p * panel_bytes, panel_bytes, steps, c + p * 64, c_stride);
    for (; p < panels; p++)
        amx_1x1(a, a_stride, b + p * panel_bytes, steps, c + p * 64, c_stride);
}

#endif

#endif
