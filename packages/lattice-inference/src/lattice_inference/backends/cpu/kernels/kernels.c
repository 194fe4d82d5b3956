/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "normalize.h"
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
        },
    .elementwise = elementwise_run,
};
