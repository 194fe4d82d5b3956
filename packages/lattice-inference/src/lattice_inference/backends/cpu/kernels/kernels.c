/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "kernel_functions.h"

#include "amx/amx_bfloat16.h"
#include "attention/attention.h"
#include "experts/routing.h"
#include "experts/sent_rows.h"
#include "lattice/cpu.h"
#include "linear/linear.h"
#include "linear/low_rank.h"
#include "rows/block_pairs.h"
#include "rows/elementwise.h"
#include "rows/normalize.h"
#include "rows/rope.h"
#include "rows/tokens.h"

#if defined(LATTICE_ISA_AVX512)
#define DOT_FEATURE LATTICE_FEATURE_AVX512_VNNI
#elif defined(LATTICE_ISA_AVX2)
#define DOT_FEATURE LATTICE_FEATURE_AVX_VNNI
#elif defined(LATTICE_ISA_NEON)
#define DOT_FEATURE LATTICE_FEATURE_DOTPROD
#else
#define DOT_FEATURE 0
#endif

#if LATTICE_AMX_INT8
#define AMX_FEATURES LATTICE_FEATURE_AMX_INT8
#else
#define AMX_FEATURES 0
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
    .amx_features = AMX_FEATURES,
    .bfloat16_dot_feature = BFLOAT16_DOT_FEATURE,
    .bfloat16_amx_feature = BFLOAT16_AMX_FEATURE,
};

void LATTICE_FN(lattice_multiply_panels)(const float *x, int64_t x_stride, int64_t rows, const float *weights, int64_t panel_stride,
                                         int64_t panels, int64_t k, const lattice_output *output)
{
    gemm_float32(x, x_stride, rows, weights, panel_stride, panels, k, output, 0);
}
