/* The tables of each instruction set, and the choice among them. */
#include "stored_rows.h"

#define DECLARE(isa)                                                                                                   \
    extern const lattice_vector_kernels lattice_vector_kernels_##isa;                                                  \
    extern const lattice_product_kernels lattice_product_kernels_##isa;                                                \
    extern const lattice_row_kernels lattice_row_kernels_##isa;                                                        \
    extern const lattice_integer_kernels lattice_integer_kernels_##isa;                                                \
    extern const lattice_binary_kernels lattice_binary_kernels_##isa;                                                  \
    extern const lattice_storing_kernels lattice_storing_kernels_##isa;
#define CHOOSE(isa)                                                                                                    \
    do {                                                                                                               \
        choice->vectors = &lattice_vector_kernels_##isa;                                                               \
        choice->products = &lattice_product_kernels_##isa;                                                             \
        choice->integers = &lattice_integer_kernels_##isa;                                                             \
        choice->bits = &lattice_binary_kernels_##isa;                                                                  \
        choice->storing = &lattice_storing_kernels_##isa;                                                              \
        rows = &lattice_row_kernels_##isa;                                                                             \
    } while (0)

DECLARE(baseline)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
extern const lattice_integer_kernels lattice_integer_kernels_dot_avx512;
extern const lattice_binary_kernels lattice_binary_kernels_popcount_avx512;
#elif defined(__aarch64__)
DECLARE(neon)
#if !defined(__clang__) || __clang_major__ >= 16
extern const lattice_integer_kernels lattice_integer_kernels_dot_neon;
#endif
#endif

void lattice_choose_kernels(int isa, int extensions, lattice_kernel_choice *choice)
{
    const lattice_row_kernels *rows;
    uint32_t features = extensions ? lattice_cpu_features() : 0;
#if defined(LATTICE_EMULATE_AVX512) /* a build for tests: single instructions are made of AVX2 ones, as the level is */
    if (extensions)
        features |= LATTICE_FEATURE_AVX512_VNNI | LATTICE_FEATURE_AVX512_VPOPCNTDQ;
#endif
    CHOOSE(baseline);
#if defined(__x86_64__)
    if (isa == LATTICE_AVX2)
        CHOOSE(avx2);
    if (isa == LATTICE_AVX512) {
        CHOOSE(avx512);
        if (features & LATTICE_FEATURE_AVX512_VNNI)
            choice->integers = &lattice_integer_kernels_dot_avx512;
        if (features & LATTICE_FEATURE_AVX512_VPOPCNTDQ)
            choice->bits = &lattice_binary_kernels_popcount_avx512;
    }
#elif defined(__aarch64__)
    if (isa == LATTICE_NEON) {
        CHOOSE(neon);
#if !defined(__clang__) || __clang_major__ >= 16
        if (features & LATTICE_FEATURE_DOTPROD)
            choice->integers = &lattice_integer_kernels_dot_neon;
#endif
    }
#endif
    (void)isa;
    (void)features;
    choice->score[LATTICE_FLOAT32] = rows->score_float32;
    choice->score[LATTICE_BFLOAT16] = rows->score_bfloat16;
    choice->score[LATTICE_FLOAT16] = rows->score_float16;
    choice->score[LATTICE_INT8] = choice->integers->score_int8;
    choice->score[LATTICE_INT4] = choice->integers->score_int4;
    choice->score[LATTICE_BINARY] = choice->bits->score_binary;
}
