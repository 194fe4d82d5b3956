/* int8 and int4 kernels with the CPU's dot-product instructions: VNNI on AVX-512, SDOT on NEON. Nothing on other levels.
 *
 * Compiled with the flags of its level; the pragma adds the instructions to the functions below it. clang before 16 knows no
 * such pragma for SDOT and has it only where the target's default has (Apple's CPUs).
 */
#include "stored_rows.h"

#if defined(LATTICE_ISA_AVX512) || (defined(LATTICE_ISA_NEON) && (!defined(__clang__) || __clang_major__ >= 16))
#include "lattice/simd.h"

#define LATTICE_DOT_INSTRUCTIONS 1
#if defined(LATTICE_EMULATE_AVX512)
#elif defined(LATTICE_ISA_AVX512) && defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#elif defined(LATTICE_ISA_AVX512)
#pragma GCC target("avx512vnni")
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#include "integer_kernels.h"

const lattice_integer_kernels LATTICE_FN(lattice_integer_kernels_dot) = {
    .score_int8 = score_int8,
    .score_int4 = score_int4,
    .dot_int8 = dot_int8,
    .dot_int4 = dot_int4,
};

#if defined(__clang__) && !defined(LATTICE_EMULATE_AVX512)
#pragma clang attribute pop
#endif
#endif
