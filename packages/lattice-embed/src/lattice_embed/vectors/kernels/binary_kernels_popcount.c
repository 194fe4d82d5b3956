/* Binary kernels with AVX-512's population count of whole registers (VPOPCNTDQ). Nothing on other levels. */
#include "stored_rows.h"

#if defined(LATTICE_ISA_AVX512)
#include "lattice/simd.h"

#define LATTICE_VECTOR_POPCOUNT 1
#if defined(LATTICE_EMULATE_AVX512)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vpopcntdq"))), apply_to = function)
#else
#pragma GCC target("avx512vpopcntdq")
#endif

#include "binary_kernels.h"

const lattice_binary_kernels LATTICE_FN(lattice_binary_kernels_popcount) = {
    .score_binary = score_binary,
    .hamming = hamming,
};

#if defined(__clang__) && !defined(LATTICE_EMULATE_AVX512)
#pragma clang attribute pop
#endif
#endif
