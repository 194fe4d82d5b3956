/* What products by matrix tiles (AMX) cost on this CPU: tiles ROUNDS prints a line of JSON, nanoseconds a product of each kind.
 *
 * A product is 16 rows by 16 columns by 32 deep, 8,192 multiply-adds, in bfloat16 or in int8. Kinds:
 *
 *   bfloat16      products only: four sums side by side, nothing loaded or stored
 *   int8          the same
 *   tiles         int8 with what a block of 32 needs of tiles: rows and lines loaded, sums zeroed and stored
 *   links         what it needs of vectors, sixteen times: convert, multiply two scales, multiply-add; no tiles
 *   links_beside  the same with one tile zeroed each sixteen links
 *   added_beside  and with integers that become floats by additions
 *   blocks        all that a product by a block of 32 needs, from L1: tiles and links interleaved
 *
 * Every time is the least of a round; rounds take turns.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

#define BLOCKS 32
#define REPEATS 2000
#define SHIFT 12582912.0f /* 1.5 * 2^23 */

#define LOAD(tile, p, stride)                                                                                          \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define STORE(tile, p) __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((int64_t)64) : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define DOT(sums, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : :)
#define DOT_BFLOAT16(sums, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums : :)
#define UNROLL _Pragma("GCC unroll 16")

static int8_t rows[16 * BLOCKS * 32] __attribute__((aligned(64))), lines[BLOCKS * 512] __attribute__((aligned(64)));
static int32_t sums[4][256] __attribute__((aligned(64)));
static float columns[BLOCKS][16] __attribute__((aligned(64))), scales[BLOCKS][16] __attribute__((aligned(64)));
static volatile float kept;

/* Registers 0 to 3: sums; 4 and 7: rows, `deep` bytes of them; 5 and 6: lines. */
static void shape(int deep)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = (uint8_t)(tile == 5 || tile == 6 ? deep / 4 : 16);
        shapes.row_bytes[tile] = (uint16_t)(tile == 4 || tile == 7 ? deep : 64);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

static void keep(const __m512 *c)
{
    __m512 sum = c[0];
    UNROLL for (int r = 1; r < 16; r++)
        sum = _mm512_add_ps(sum, c[r]);
    kept = _mm512_reduce_add_ps(sum);
}

#define LINKS(at, b, first, end, value)                                                                                \
    do {                                                                                                               \
        const __m512 d = _mm512_load_ps(columns[b]);                                                                   \
        UNROLL for (int r = first; r < end; r++)                                                                       \
        {                                                                                                              \
            const __m512i integers = _mm512_load_si512(sums[at] + 16 * r);                                             \
            c[r] = _mm512_fmadd_ps(value, _mm512_mul_ps(d, _mm512_set1_ps(scales[b][r])), c[r]);                       \
        }                                                                                                              \
    } while (0)
#define CONVERTED _mm512_cvtepi32_ps(integers)
#define ADDED                                                                                                          \
    _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(integers, _mm512_castps_si512(shift))), shift)

#define ONLY_PRODUCTS(name, product)                                                                                   \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        for (int b = 0; b < BLOCKS; b += 4) {                                                                          \
            product(0, 4, 5);                                                                                          \
            product(1, 4, 6);                                                                                          \
            product(2, 7, 5);                                                                                          \
            product(3, 7, 6);                                                                                          \
        }                                                                                                              \
    }
ONLY_PRODUCTS(bfloat16, DOT_BFLOAT16)
ONLY_PRODUCTS(int8, DOT)

#define BEGIN(to, a, l, b)                                                                                             \
    do {                                                                                                               \
        LOAD(a, rows + (b) * 32, BLOCKS * 32);                                                                         \
        ZERO(to);                                                                                                      \
        LOAD(l, lines + (b) * 512, 64);                                                                                \
        DOT(to, a, l);                                                                                                 \
    } while (0)

static void tiles(void)
{
    BEGIN(0, 4, 5, 0);
    for (int b = 0; b < BLOCKS; b += 2) {
        BEGIN(1, 7, 6, b + 1);
        STORE(0, sums[b % 4]);
        BEGIN(0, 4, 5, (b + 2) % BLOCKS);
        STORE(1, sums[(b + 1) % 4]);
    }
}

#define ONLY_LINKS(name, value, beside)                                                                                \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        const __m512 shift = _mm512_set1_ps(SHIFT);                                                                    \
        (void)shift;                                                                                                   \
        __m512 c[16];                                                                                                  \
        UNROLL for (int r = 0; r < 16; r++)                                                                            \
            c[r] = _mm512_setzero_ps();                                                                                \
        for (int b = 0; b < BLOCKS; b++) {                                                                             \
            LINKS(b % 4, b, 0, 16, value);                                                                             \
            beside;                                                                                                    \
            __asm__ volatile("" : : : "memory");                                                                       \
        }                                                                                                              \
        keep(c);                                                                                                       \
    }
ONLY_LINKS(links, CONVERTED, )
ONLY_LINKS(links_beside, CONVERTED, ZERO(0))
ONLY_LINKS(added_beside, ADDED, ZERO(0))

#define TURN(to, a, l, next, b)                                                                                        \
    do {                                                                                                               \
        LOAD(a, rows + ((b) + 2) % BLOCKS * 32, BLOCKS * 32);                                                          \
        ZERO(to);                                                                                                      \
        LINKS((b) % 4, b, 0, 4, ADDED);                                                                                \
        LOAD(l, lines + ((b) + 2) % BLOCKS * 512, 64);                                                                 \
        DOT(to, a, l);                                                                                                 \
        LINKS((b) % 4, b, 4, 8, ADDED);                                                                                \
        STORE(next, sums[((b) + 1) % 4]);                                                                              \
        LINKS((b) % 4, b, 8, 16, ADDED);                                                                               \
    } while (0)

static void blocks(void)
{
    const __m512 shift = _mm512_set1_ps(SHIFT);
    __m512 c[16];
    UNROLL for (int r = 0; r < 16; r++)
        c[r] = _mm512_setzero_ps();
    BEGIN(0, 4, 5, 0);
    BEGIN(1, 7, 6, 1);
    STORE(0, sums[0]);
    for (int b = 0; b < BLOCKS; b += 2) {
        TURN(0, 4, 5, 1, b);
        TURN(1, 7, 6, 0, b + 1);
    }
    keep(c);
}

static const struct {
    const char *name;
    void (*run)(void);
    int deep; /* bytes of a row */
} kinds[] = {{"bfloat16", bfloat16, 64},         {"int8", int8, 32},
             {"tiles", tiles, 32},               {"links", links, 0},
             {"links_beside", links_beside, 32}, {"added_beside", added_beside, 32},
             {"blocks", blocks, 32}};
#define KINDS (sizeof kinds / sizeof kinds[0])

int main(int count, char **arguments)
{
    const int rounds = count > 1 ? atoi(arguments[1]) : 20;
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) { /* ARCH_REQ_XCOMP_PERM, the registers of tiles */
        fprintf(stderr, "this system has no matrix tiles\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (int8_t)(i * 37 % 255 - 127);
    for (size_t i = 0; i < sizeof lines; i++)
        lines[i] = (int8_t)(i * 11 % 15 - 7);
    for (int b = 0; b < BLOCKS; b++)
        for (int r = 0; r < 16; r++)
            columns[b][r] = scales[b][r] = 0.01f * (float)(r + 1);
    for (int round = 0; round < rounds; round++) {
        printf("%s{", round == 0 ? "[" : ", ");
        for (size_t kind = 0; kind < KINDS; kind++) {
            double best = 1e9;
            if (kinds[kind].deep > 0)
                shape(kinds[kind].deep);
            for (int turn = 0; turn < 5; turn++) {
                const double start = now();
                for (int i = 0; i < REPEATS / 5; i++)
                    kinds[kind].run();
                const double took = now() - start;
                best = took < best ? took : best;
            }
            printf("%s\"%s\": %.4f", kind == 0 ? "" : ", ", kinds[kind].name, best / (REPEATS / 5) / BLOCKS * 1e9);
            if (kinds[kind].deep > 0)
                __asm__ volatile("tilerelease");
        }
        printf("}");
    }
    printf("]\n");
    return 0;
}
