/* The vector vocabulary that kernels are written in: sixteen virtual lanes, the same bits on every instruction set.
 *
 * `f32x16` is one zmm register, two ymm, four NEON q registers, or four SSE registers / plain C in the baseline. Every
 * operation is defined lane by lane as IEEE binary32 with round to nearest even, and the folds are one fixed tree:
 *
 *     lanes 0..15  ->  i + (i+8)  ->  i + (i+4)  ->  i + (i+2)  ->  i + (i+1)
 *
 * so AVX2, AVX-512 and NEON agree bit for bit. The baseline has no fused multiply-add: `f32x16_fma` rounds twice there,
 * and results differ in the last bits. `f32x16_max(a, b)` is a > b ? a : b and `f32x16_min(a, b)` is a < b ? a : b on all
 * of them, so a NaN in either argument yields b.
 *
 * Define exactly one of LATTICE_ISA_BASELINE, LATTICE_ISA_AVX2, LATTICE_ISA_AVX512, LATTICE_ISA_NEON before including this
 * (the build does). Name functions of a kernel file through LATTICE_FN(name): it adds the level's suffix.
 *
 * `vf` is the native register of the level, VF_LANES wide, for tiles of many sums (GEMM, many-vs-many) only.
 * `vf_accumulate(&sum, a, b)` is sum = vf_fma(a, b, sum) in the register that holds `sum` and in the order written: left to
 * itself, gcc 12 renames the sums of an unrolled tile, and copies and spills some of them (a tenth of a tile's time).
 */
#ifndef LATTICE_SIMD_H
#define LATTICE_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Lattice's kernels are written for little-endian machines"
#endif

#define LATTICE_INLINE static inline __attribute__((always_inline, unused))

/* Before a loop of constant length whose variables must live in registers: the compiler writes it out. */
#if defined(__clang__)
#define LATTICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATTICE_UNROLL _Pragma("GCC unroll 64")
#endif

#if defined(LATTICE_ISA_AVX512)
#define LATTICE_FN(name) name##_avx512
#include "simd_avx512.h"
#elif defined(LATTICE_ISA_AVX2)
#define LATTICE_FN(name) name##_avx2
#include "simd_avx2.h"
#elif defined(LATTICE_ISA_NEON)
#define LATTICE_FN(name) name##_neon
#include "simd_neon.h"
#elif defined(LATTICE_ISA_BASELINE)
#define LATTICE_FN(name) name##_baseline
#include "simd_baseline.h"
#else
#error "no instruction set named: define LATTICE_ISA_<NAME>"
#endif

/* Loads of fewer than sixteen floats run the same code on a copy padded with zeros: no tail ever takes another path. */
LATTICE_INLINE f32x16 f32x16_load_tail(const float *source, size_t count)
{
    float padded[16] = {0};
    memcpy(padded, source, count * sizeof(float));
    return f32x16_load(padded);
}

LATTICE_INLINE void f32x16_store_tail(float *target, f32x16 value, size_t count)
{
    float padded[16];
    f32x16_store(padded, value);
    memcpy(target, padded, count * sizeof(float));
}

LATTICE_INLINE f32x16 f32x16_zero(void)
{
    return f32x16_set1(0.0f);
}

/* Clears the lanes from `count` on. */
LATTICE_INLINE f32x16 f32x16_keep(f32x16 value, size_t count)
{
    float padded[16] = {0}, lanes[16];
    f32x16_store(lanes, value);
    memcpy(padded, lanes, count * sizeof(float));
    return f32x16_load(padded);
}

#endif
