/* dx = dy W, the gradient of a linear's input; of one instruction set: this file is compiled once for each.
 *
 *     dx[t, i] = sum over n of dy[t, n] * W[n, i], plus a residual
 *
 * W lies in the panels that the forward product reads, in any form. A task takes some columns i: it widens that stretch of every
 * panel and turns it (turned_weights.h), and multiplies rows of dy by it with the tiles of every float32 linear.
 *
 * Weights of bfloat16 in pairs are multiplied by rows of bfloat16, as in the forward product, by the same instructions.
 *
 * Numeric design: the sum goes over stretches of LATTICE_TURNED_DEPTH of n; each is one chain of fused multiply-adds over
 * ascending n from 0, and is added to those before it. Neither rows, columns nor threads show in a bit.
 * Bound by multiply-adds where rows are many; turning costs a few loads and stores for each element of W.
 */
#include "kernel_functions.h"

#include "reverse/turned_weights.h"

/* Columns of a task. */
static int64_t task_columns(const lattice_op *op, const lattice_step *step)
{
    const int64_t unit = lattice_turned_unit(op->linear.weight_type);
    const int64_t most = lattice_turned_columns(op->linear.weight_type);
    if (step->threads == 1)
        return most;
    const int64_t even = lattice_round_up(lattice_divide_up(op->n, 4 * step->threads), unit);
    return even < most ? even : most;
}

int64_t LATTICE_FN(linear_input_grad_tasks)(const lattice_op *op, const lattice_step *step)
{
    return lattice_divide_up(op->n, task_columns(op, step));
}

/* The op for outputs [n, n + depth) and columns [first, first + columns), as a linear over turned pairs. */
static void multiply_turned_pairs(const lattice_op *op, const lattice_step *step, int64_t n, int64_t depth, int64_t first,
                                  int64_t columns, uint16_t *turned)
{
    const int64_t padded = lattice_bfloat16_depth(depth), panels = lattice_divide_up(depth, LATTICE_PANEL);
    const int64_t panel_elements = lattice_bfloat16_panel_bytes(op->n) / (int64_t)sizeof(uint16_t);
    if (panels * LATTICE_PANEL < padded) /* the rest of what a tile takes at once */
        memset(turned, 0, (size_t)(lattice_round_up(columns, LATTICE_PANEL) * padded) * sizeof(uint16_t));
    for (int64_t panel = 0; panel < panels; panel++)
        turn_pairs((const uint16_t *)op->linear.weight + (n / LATTICE_PANEL + panel) * panel_elements, first, columns, panel,
                   padded, turned);
    lattice_op part = *op;
    part.k = depth;
    part.n = columns;
    part.input[0].column += n / 2; /* two elements lie in the place of a float */
    part.output.column += first;
    part.linear.weight = turned;
    part.linear.residual = n > 0 ? op->output : op->linear.residual;
    part.linear.residual.column += first;
    LATTICE_FN(lattice_multiply_pairs)(&part, step);
}

void LATTICE_FN(linear_input_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t width = task_columns(op, step), first = task * width;
    const int64_t columns = op->n - first < width ? op->n - first : width;
    const int64_t rows = lattice_rows(op, step), block = lattice_linear_block(LATTICE_TURNED_DEPTH, step->sizes);
    float *turned = (float *)(step->scratch + thread * step->scratch_bytes);
    float *room = turned + lattice_turned_depth(op->k) * lattice_round_up(width, LATTICE_PANEL);
    for (int64_t n = 0; n < op->k; n += LATTICE_TURNED_DEPTH) {
        const int64_t depth = op->k - n < LATTICE_TURNED_DEPTH ? op->k - n : LATTICE_TURNED_DEPTH;
        const int64_t panels = lattice_divide_up(depth, LATTICE_PANEL);
        if (op->linear.weight_type == LATTICE_WEIGHT_BFLOAT16_PAIRS) {
            multiply_turned_pairs(op, step, n, depth, first, columns, (uint16_t *)turned);
            continue;
        }
        for (int64_t panel = 0; panel < panels; panel++)
            turn_panel(widened_stretch(op->linear.weight_type, op->linear.weight, op->n, n / LATTICE_PANEL + panel, first, columns,
                                       room),
                       columns, panel, panels, turned);
        const lattice_view *before = n > 0 ? &op->output : &op->linear.residual;
        for (int64_t row = 0; row < rows; row += block) {
            const lattice_output output = {
                .y = lattice_row(step, &op->output, row) + first,
                .stride = op->output.stride,
                .columns = columns,
                .residual = before->slot >= 0 ? lattice_row(step, before, row) + first : NULL,
                .residual_stride = before->stride,
            };
            LATTICE_FN(lattice_multiply_panels)(lattice_row(step, &op->input[0], row) + n, op->input[0].stride,
                                                rows - row < block ? rows - row : block, turned,
                                                panels * LATTICE_PANEL * LATTICE_PANEL, lattice_divide_up(columns, LATTICE_PANEL), depth, &output);
        }
    }
}
