/* The tile registers of AMX, for products of unsigned by signed bytes: eight registers of up to 16 rows of 64 bytes.
 *
 * Registers have names known when compiling, so what works on them are macros that take a number. Shapes belong to a thread:
 * it sets them, multiplies, and lets the registers go, so that the system has nothing to save for it. A compiler that is too
 * old for the instructions gets none; the emulated build has them written out.
 */
#ifndef LATTICE_AMX_TILES_H
#define LATTICE_AMX_TILES_H

#include <stdint.h>
#include <string.h>

#include "lattice/simd.h"

#if defined(LATTICE_ISA_AVX512) &&                                                                                     \
    (defined(LATTICE_EMULATE_AVX512) || (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11))
#define LATTICE_AMX_INT8 1
#else
#define LATTICE_AMX_INT8 0
#endif

#if LATTICE_AMX_INT8
#define AMX_REGISTERS 8
#define AMX_ROWS 16
#define AMX_ROW_BYTES 64
#define AMX_MOST_ROWS (2 * AMX_ROWS) /* multiplied at once */

/* What LDTILECFG reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shapes;

#if defined(LATTICE_EMULATE_AVX512)
static _Thread_local struct {
    amx_shapes shapes;
    uint8_t bytes[AMX_REGISTERS][AMX_ROWS][AMX_ROW_BYTES];
} emulated_tiles;

LATTICE_INLINE void amx_shape(const amx_shapes *shapes)
{
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
    emulated_tiles.shapes = *shapes;
}
LATTICE_INLINE void amx_release(void)
{
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
}
#define amx_zero(tile) memset(emulated_tiles.bytes[tile], 0, sizeof emulated_tiles.bytes[tile])
#define amx_load(tile, p, stride)                                                                                   \
    do {                                                                                                               \
        amx_zero(tile);                                                                                             \
        for (int row_ = 0; row_ < emulated_tiles.shapes.rows[tile]; row_++)                                            \
            memcpy(emulated_tiles.bytes[tile][row_], (const char *)(p) + row_ * (stride),                              \
                   emulated_tiles.shapes.row_bytes[tile]);                                                             \
    } while (0)
#define amx_store(tile, p, stride)                                                                                  \
    do {                                                                                                               \
        for (int row_ = 0; row_ < emulated_tiles.shapes.rows[tile]; row_++)                                            \
            memcpy((char *)(p) + row_ * (stride), emulated_tiles.bytes[tile][row_],                                    \
                   emulated_tiles.shapes.row_bytes[tile]);                                                             \
    } while (0)
static void emulated_dot(int sums, int u, int s)
{
    for (int row = 0; row < emulated_tiles.shapes.rows[sums]; row++)
        for (int column = 0; column < AMX_ROW_BYTES / 4; column++) {
            int32_t sum;
            memcpy(&sum, emulated_tiles.bytes[sums][row] + 4 * column, sizeof sum);
            for (int k = 0; k < emulated_tiles.shapes.row_bytes[u]; k++) {
                const int weight = emulated_tiles.bytes[s][k / 4][4 * column + k % 4];
                sum += emulated_tiles.bytes[u][row][k] * (weight < 128 ? weight : weight - 256);
            }
            memcpy(emulated_tiles.bytes[sums][row] + 4 * column, &sum, sizeof sum);
        }
}
#define amx_dot_bytes(sums, u, s) emulated_dot(sums, u, s)
#else
LATTICE_INLINE void amx_shape(const amx_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
}
LATTICE_INLINE void amx_release(void)
{
    __asm__ volatile("tilerelease");
}
#define amx_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define amx_load(tile, p, stride)                                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define amx_store(tile, p, stride)                                                                                  \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) : "memory")
/* sums[row][column] += sum over 64 k of u8 u[row][k] * s8 s[k / 4][column][k % 4] */
#define amx_dot_bytes(sums, u, s) __asm__ volatile("tdpbusd %%tmm" #s ", %%tmm" #u ", %%tmm" #sums : :)
#endif
#endif

#endif
