/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "attention.h"
#include "bfloat16_kernels.h"
#include "bfloat16_matrix.h"
#include "block_kernels.h"
#include "block_pairs.h"
#include "elementwise.h"
#include "int8_kernels.h"
#include "lattice/cpu.h"
#include "linear.h"
#include "matrix_tiles.h"
#include "normalize.h"
#include "paged.h"
#include "rope.h"
#include "tokens.h"

#if defined(LATTICE_ISA_AVX512)
#define DOT_FEATURE LATTICE_FEATURE_AVX512_VNNI
#elif defined(LATTICE_ISA_AVX2)
#define DOT_FEATURE LATTICE_FEATURE_AVX_VNNI
#elif defined(LATTICE_ISA_NEON)
#define DOT_FEATURE LATTICE_FEATURE_DOTPROD
#else
#define DOT_FEATURE 0
#endif

#if MATRIX_TILES
#define TILE_FEATURES LATTICE_FEATURE_AMX_INT8
#else
#define TILE_FEATURES 0
#endif

const lattice_kernel_table LATTICE_FN(lattice_kernel_table) = {
    .kernels =
        {
            [LATTICE_KERNEL_EMBED_ROWS] = {row_tasks, embed_rows_run},
            [LATTICE_KERNEL_LINEAR] = {linear_tasks, linear_run},
            [LATTICE_KERNEL_ADD] = {row_tasks, add_run},
            [LATTICE_KERNEL_ACTIVATION] = {row_tasks, activation_run},
            [LATTICE_KERNEL_LAYER_NORM] = {row_tasks, layer_norm_run},
            [LATTICE_KERNEL_ATTENTION] = {attention_tasks, attention_run},
            [LATTICE_KERNEL_POOL] = {sequence_tasks, pool_run},
            [LATTICE_KERNEL_L2_NORMALIZE] = {sequence_tasks, l2_normalize_run},
            [LATTICE_KERNEL_MUL] = {row_tasks, multiply_run},
            [LATTICE_KERNEL_SILU_MUL] = {row_tasks, multiply_run},
            [LATTICE_KERNEL_RMS_NORM] = {row_tasks, rms_norm_run},
            [LATTICE_KERNEL_ROPE_ANGLES] = {row_tasks, rope_angles_run},
            [LATTICE_KERNEL_ROPE] = {row_tasks, rope_run},
            [LATTICE_KERNEL_KV_WRITE] = {LATTICE_FN(kv_write_tasks), LATTICE_FN(kv_write_run)},
            [LATTICE_KERNEL_PAGED_ATTENTION] = {LATTICE_FN(paged_attention_tasks), LATTICE_FN(paged_attention_run)},
            [LATTICE_KERNEL_PAGED_MERGE] = {LATTICE_FN(paged_merge_tasks), LATTICE_FN(paged_merge_run)},
            [LATTICE_KERNEL_GATHER_ROWS] = {row_tasks, gather_rows_run},
            [LATTICE_KERNEL_QUANTIZE_ROWS] = {LATTICE_FN(lattice_quantize_rows_tasks), LATTICE_FN(lattice_quantize_rows_run)},
            [LATTICE_KERNEL_INT8_LINEAR] = {LATTICE_FN(lattice_int8_linear_tasks), LATTICE_FN(lattice_int8_linear_run)},
            [LATTICE_KERNEL_QUANTIZE_BLOCKS] = {LATTICE_FN(lattice_quantize_blocks_tasks),
                                                LATTICE_FN(lattice_quantize_blocks_run)},
            [LATTICE_KERNEL_BLOCK_LINEAR] = {LATTICE_FN(lattice_block_linear_tasks), LATTICE_FN(lattice_block_linear_run)},
            [LATTICE_KERNEL_DEQUANTIZED_LINEAR] = {LATTICE_FN(lattice_block_linear_tasks),
                                                   LATTICE_FN(lattice_dequantized_linear_run)},
            [LATTICE_KERNEL_ROUND_ROWS] = {row_tasks, round_rows_run},
            [LATTICE_KERNEL_BFLOAT16_LINEAR] = {LATTICE_FN(lattice_bfloat16_linear_tasks),
                                                LATTICE_FN(lattice_bfloat16_linear_run)},
            [LATTICE_KERNEL_TILE_ATTENTION] = {LATTICE_FN(lattice_tile_attention_tasks),
                                               LATTICE_FN(lattice_tile_attention_run)},
            [LATTICE_KERNEL_CAUSAL_ATTENTION] = {LATTICE_FN(causal_attention_tasks), LATTICE_FN(causal_attention_run)},
            [LATTICE_KERNEL_QUANTIZE_BLOCK_PAIRS] = {row_tasks, quantize_block_pairs_run},
        },
    .elementwise = elementwise_run,
    .dot_feature = DOT_FEATURE,
    .tile_features = TILE_FEATURES,
    .bfloat16_dot_feature = BFLOAT16_DOT_FEATURE,
    .bfloat16_tile_feature = BFLOAT16_TILE_FEATURE,
};

void LATTICE_FN(lattice_multiply_panel)(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t k,
                                        const lattice_output *output)
{
    gemm_float32(x, x_stride, rows, panel, k * LATTICE_PANEL, 1, k, output, 0);
}
