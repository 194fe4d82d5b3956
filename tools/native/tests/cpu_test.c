/* Tests of lattice/cpu.h: what is made of a CPU's and an operating system's word. */
#include "lattice/cpu.h"

#include <stdio.h>

#if defined(__x86_64__)
#define XSAVE (1u << 27)
#define AVX (1u << 28)
#define FMA_F16C ((1u << 12) | (1u << 29))
#define ALL_OF_AVX (XSAVE | AVX | FMA_F16C)
#define AVX2 (1u << 5)
#define AVX512 ((1u << 16) | (1u << 17) | (1u << 30) | (1u << 31))
#define VNNI (1u << 11)
#define AMX_BF16 (1u << 22)
#define AMX_TILE (1u << 24)
#define AMX_INT8 (1u << 25)
#define ALL_OF_AMX (AMX_BF16 | AMX_TILE | AMX_INT8)

static const struct {
    const char *what;
    lattice_cpuid id;
    uint32_t features;
} cases[] = {
    {"x86-64-v2", {0, 0, 0, 0, 0, 0, 0}, 0},
    {"AVX2", {ALL_OF_AVX, AVX2, 0, 0, 0x7, 0, 0}, LATTICE_FEATURE_AVX2},
    {"AVX without AVX2", {ALL_OF_AVX, 0, 0, 0, 0x7, 0, 0}, 0},
    {"AVX2 without FMA and F16C", {XSAVE | AVX, AVX2, 0, 0, 0x7, 0, 0}, 0},
    {"AVX2 masked by a hypervisor, though leaf 7 names it", {XSAVE | FMA_F16C, AVX2, 0, 0, 0x7, 0, 0}, 0},
    {"an operating system that saves no upper halves", {ALL_OF_AVX, AVX2, 0, 0, 0x3, 0, 0}, 0},
    {"an operating system without XSAVE: XCR0 may not be read", {AVX | FMA_F16C, AVX2 | AVX512, 0, 0, ~0ull, 0, 0}, 0},
    {"AVX-512 with VNNI",
     {ALL_OF_AVX, AVX2 | AVX512, VNNI, 0, 0xe7, 0, 0},
     LATTICE_FEATURE_AVX2 | LATTICE_FEATURE_AVX512 | LATTICE_FEATURE_AVX512_VNNI},
    {"AVX-512 whose registers are not saved", {ALL_OF_AVX, AVX2 | AVX512, VNNI, 0, 0x7, 0, 0}, LATTICE_FEATURE_AVX2},
    {"AVX-512 whose mask registers are not saved", {ALL_OF_AVX, AVX2 | AVX512, VNNI, 0, 0xc7, 0, 0}, LATTICE_FEATURE_AVX2},
    {"AVX-512 whose upper 16 registers are not saved", {ALL_OF_AVX, AVX2 | AVX512, 0, 0, 0x67, 0, 0}, LATTICE_FEATURE_AVX2},
    {"AVX-512 F alone", {ALL_OF_AVX, AVX2 | (1u << 16), VNNI, 0, 0xe7, 0, 0}, LATTICE_FEATURE_AVX2},
    {"AVX-VNNI", {ALL_OF_AVX, AVX2, 0, 1u << 4, 0x7, 0, 0}, LATTICE_FEATURE_AVX2 | LATTICE_FEATURE_AVX_VNNI},
    {"AMX",
     {ALL_OF_AVX, AVX2 | AVX512, 0, 0, 0x600e7, ALL_OF_AMX, 1},
     LATTICE_FEATURE_AVX2 | LATTICE_FEATURE_AVX512 | LATTICE_FEATURE_AMX_INT8 | LATTICE_FEATURE_AMX_BF16},
    {"AMX of int8 alone",
     {ALL_OF_AVX, AVX2, 0, 0, 0x60007, AMX_TILE | AMX_INT8, 1},
     LATTICE_FEATURE_AVX2 | LATTICE_FEATURE_AMX_INT8},
    {"AMX that this process may not use", {ALL_OF_AVX, AVX2, 0, 0, 0x60007, ALL_OF_AMX, 0}, LATTICE_FEATURE_AVX2},
    {"AMX whose tiles are not saved", {ALL_OF_AVX, AVX2, 0, 0, 0x20007, ALL_OF_AMX, 1}, LATTICE_FEATURE_AVX2},
    {"AMX whose shapes are not saved", {ALL_OF_AVX, AVX2, 0, 0, 0x40007, ALL_OF_AMX, 1}, LATTICE_FEATURE_AVX2},
    {"products of tiles without tiles", {ALL_OF_AVX, AVX2, 0, 0, 0x60007, AMX_BF16 | AMX_INT8, 1}, LATTICE_FEATURE_AVX2},
};
#endif

int main(void)
{
    int failures = 0;
#if defined(__x86_64__)
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint32_t features = lattice_features_of(&cases[i].id);
        if (features != cases[i].features) {
            fprintf(stderr, "%s: features %x instead of %x\n", cases[i].what, features, cases[i].features);
            failures++;
        }
    }
#endif
    if (!lattice_isa_available(LATTICE_BASELINE) || lattice_isa_select("sse9") != -1 || lattice_isa_select(NULL) < 0) {
        fprintf(stderr, "the choice of a level is wrong\n");
        failures++;
    }
    if (failures == 0)
        printf("cpu: ok, %s here\n", lattice_isa_name(lattice_isa_select(NULL)));
    return failures != 0;
}
