/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "attention.h"
#include "bfloat16_matrix.h"
#include "block_kernels.h"
#include "block_pairs.h"
#include "elementwise.h"
#include "int8_kernels.h"
#include "kernel_functions.h"
#include "lattice/cpu.h"
#include "linear.h"
#include "matrix_tiles.h"
#include "normalize.h"
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

int64_t LATTICE_FN(row_tasks)(const lattice_op *op, const lattice_step *step)
{
    return step->threads == 1 ? 1 : lattice_divide_up(lattice_rows(op, step), step->sizes->row_task_rows);
}

#define TABLE_ENTRY(id, name, record, tasks, run) [LATTICE_KERNEL_##id] = {LATTICE_FN(tasks), LATTICE_FN(run)},

const lattice_kernel_table LATTICE_FN(lattice_kernel_table) = {
    .kernels = {LATTICE_KERNELS(TABLE_ENTRY)},
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
