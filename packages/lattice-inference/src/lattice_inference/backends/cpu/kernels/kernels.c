/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "normalize.h"
#include "paged.h"
#include "rope.h"
#include "tokens.h"

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
            [LATTICE_KERNEL_KV_WRITE] = {row_tasks, LATTICE_FN(kv_write_run)},
            [LATTICE_KERNEL_PAGED_ATTENTION] = {LATTICE_FN(paged_attention_tasks), LATTICE_FN(paged_attention_run)},
            [LATTICE_KERNEL_PAGED_MERGE] = {LATTICE_FN(paged_merge_tasks), LATTICE_FN(paged_merge_run)},
            [LATTICE_KERNEL_GATHER_ROWS] = {row_tasks, gather_rows_run},
        },
    .elementwise = elementwise_run,
};
