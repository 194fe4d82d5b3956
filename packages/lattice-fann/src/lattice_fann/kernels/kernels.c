/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include "forward.h"
#include "losses.h"
#include "optimizers.h"
#include "train.h"

static void row_losses(int loss, float parameter, float hard_share, const float *sums, const float *outputs,
                       const float *targets, int64_t n, int64_t rows, float *losses)
{
    for (int64_t row = 0; row < rows; row++)
        losses[row] = loss_row(loss, parameter, hard_share, sums + row * fann_padded(n), outputs + row * fann_padded(n),
                               targets + row * n, n);
}

static void activation_rows(int activation, float alpha, const float *z, float *y, int64_t rows, int64_t n, int64_t stride)
{
    activate_rows(activation, alpha, z, y, rows, n, stride);
}

const fann_kernel_table LATTICE_FN(fann_kernel_table) = {
    .tile_rows = TILE_ROWS,
    .forward = forward_rows,
    .transpose = transpose_block,
    .rows = train_rows,
    .gradient = gradient_block,
    .update = update_block,
    .update_flat = update_flat,
    .row_losses = row_losses,
    .activation = activation_rows,
};
