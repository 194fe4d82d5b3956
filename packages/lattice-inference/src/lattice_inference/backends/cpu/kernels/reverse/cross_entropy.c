/* The cross-entropy of a linear's outputs with a target a row, and its gradient by the linear's input, without the outputs: of one
 * instruction set, as this file is compiled once for each.
 *
 *     z = x W^T     m = max(z)     l = sum of exp(z - m)     loss = log(l) + m - z[target]
 *     dx = weight (sum over n of exp(z[n] - m) W[n] / l - W[target])
 *
 * A task takes up to 128 rows, and 256 outputs at a time: their panels of W are widened and turned once (turned_weights.h), for
 * z and for dx. The maximum, l and the sum for dx go from one stretch of outputs to the next; where a stretch moves the maximum,
 * the two sums before it are multiplied by exp(old - new). So W is read once, and rows times outputs never exist.
 *
 * Numeric design: z is one chain over k; in a stretch the sum for dx is one chain over n from 0, added to the scaled sum before.
 * l is float64, over eight lanes in a stretch. Neither rows, tasks nor threads show in a bit.
 */
#include "kernel_functions.h"

#include "lattice/simd_f64.h"
#include "lattice/vector_math.h"
#include "reverse/turned_weights.h"

#define STRETCH LATTICE_LOSS_COLUMNS

/* Rows of a task, and where its parts lie. */
typedef struct {
    int64_t row, rows, depth; /* depth: k, in whole vectors */
    float *logits;            /* [rows][STRETCH] */
    float *sums;              /* [rows][depth] */
    float *widened, *turned;  /* [STRETCH / 16][k][16], [depth / 16][STRETCH][16] */
    float most[LATTICE_LOSS_ROWS];
    double total[LATTICE_LOSS_ROWS];
} loss_task;

LATTICE_INLINE f64x8 add_doubles(f64x8 sum, f32x16 p)
{
    return f64x8_add(f64x8_add(sum, f64x8_from_low(p)), f64x8_from_high(p));
}

/* z -> exp(z - m) of `count` outputs; m and l go on. Returns what the sums before are multiplied by. */
static float go_on(float *z, int64_t count, float *most, double *total)
{
    const int64_t padded = lattice_round_up(count, LATTICE_PANEL);
    for (int64_t n = count; n < padded; n++)
        z[n] = -__builtin_inff();
    f32x16 highest = f32x16_set1(*most);
    for (int64_t n = 0; n < padded; n += 16)
        highest = f32x16_max(highest, f32x16_load(z + n));
    const float before = *most, now = f32x16_fold_max(highest);
    float factor[16];
    f32x16_store(factor, f32x16_exp(f32x16_set1(before - now)));
    f64x8 sum = f64x8_set1(0.0);
    for (int64_t n = 0; n < padded; n += 16) {
        const f32x16 p = f32x16_exp(f32x16_sub(f32x16_load(z + n), f32x16_set1(now)));
        f32x16_store(z + n, p);
        sum = add_doubles(sum, p);
    }
    *most = now;
    *total = *total * (double)factor[0] + f64x8_fold_add(sum);
    return factor[0];
}

/* Outputs [first, first + count) of all rows of the task. */
static void take_outputs(const lattice_op *op, const lattice_step *step, loss_task *task, int64_t first, int64_t count)
{
    const lattice_loss_record *loss = &op->loss;
    const int64_t k = op->k, panels = lattice_divide_up(count, LATTICE_PANEL);
    const int has_gradient = loss->dx.slot >= 0;
    const float *weights = NULL;
    for (int64_t p = 0; p < panels; p++) {
        const float *panel = widened_stretch(loss->weight_type, loss->weight, k, first / LATTICE_PANEL + p, 0, k,
                                             task->widened + p * k * LATTICE_PANEL);
        if (p == 0)
            weights = panel;
        if (has_gradient)
            turn_panel(panel, k, p, panels, task->turned);
    }
    const lattice_output to_logits = {.y = task->logits, .stride = STRETCH, .columns = panels * LATTICE_PANEL};
    LATTICE_FN(lattice_multiply_panels)(lattice_row(step, &op->input[0], task->row), op->input[0].stride, task->rows, weights,
                                        k * LATTICE_PANEL, panels, k, &to_logits);
    for (int64_t r = 0; r < task->rows; r++) {
        float *z = task->logits + r * STRETCH;
        const int64_t target = step->training->targets[task->row + r] - first;
        if (target >= 0 && target < count) {
            lattice_row(step, &op->output, task->row + r)[3] = z[target];
            if (has_gradient) { /* dx keeps W[target] until the sum is whole */
                const float *column = weights + target / LATTICE_PANEL * k * LATTICE_PANEL + target % LATTICE_PANEL;
                float *dx = lattice_row(step, &loss->dx, task->row + r);
                for (int64_t i = 0; i < k; i++)
                    dx[i] = column[i * LATTICE_PANEL];
            }
        }
        const float factor = go_on(z, count, &task->most[r], &task->total[r]);
        if (has_gradient && factor != 1.0f)
            for (int64_t i = 0; i < task->depth; i += 16) {
                float *sum = task->sums + r * task->depth + i;
                f32x16_store(sum, f32x16_mul(f32x16_load(sum), f32x16_set1(factor)));
            }
    }
    if (!has_gradient)
        return;
    const lattice_output to_sums = {.y = task->sums, .stride = task->depth, .columns = task->depth, .residual = task->sums,
                                    .residual_stride = task->depth};
    LATTICE_FN(lattice_multiply_panels)(task->logits, STRETCH, task->rows, task->turned, panels * LATTICE_PANEL * LATTICE_PANEL,
                                        task->depth / LATTICE_PANEL, count, &to_sums);
}

int64_t LATTICE_FN(linear_cross_entropy_tasks)(const lattice_op *op, const lattice_step *step)
{
    const int64_t rows = lattice_rows(op, step), least = lattice_divide_up(rows, LATTICE_LOSS_ROWS);
    return least > step->threads || rows < step->threads ? least : step->threads;
}

void LATTICE_FN(linear_cross_entropy_run)(const lattice_op *op, const lattice_step *step, int64_t number, int64_t tasks, int thread)
{
    int64_t row, end;
    task_rows(lattice_rows(op, step), number, tasks, &row, &end);
    loss_task task = {.row = row, .rows = end - row, .depth = lattice_round_up(op->k, LATTICE_PANEL)};
    task.logits = (float *)(step->scratch + thread * step->scratch_bytes);
    task.sums = task.logits + LATTICE_LOSS_ROWS * STRETCH;
    task.widened = task.sums + LATTICE_LOSS_ROWS * task.depth;
    task.turned = task.widened + STRETCH * task.depth;
    memset(task.sums, 0, (size_t)(task.rows * task.depth) * sizeof(float));
    for (int64_t r = 0; r < task.rows; r++) {
        task.most[r] = -__builtin_inff();
        task.total[r] = 0.0;
    }
    for (int64_t first = 0; first < op->loss.outputs; first += STRETCH)
        take_outputs(op, step, &task, first, op->loss.outputs - first < STRETCH ? op->loss.outputs - first : STRETCH);
    for (int64_t r = 0; r < task.rows; r++) {
        float *sums = lattice_row(step, &op->output, row + r);
        sums[0] = task.most[r];
        sums[1] = (float)task.total[r];
        sums[2] = (float)(task.total[r] - (double)sums[1]);
        if (op->loss.dx.slot < 0)
            continue;
        const f32x16 inverse = f32x16_div(f32x16_set1(1.0f), f32x16_set1(sums[1]));
        const f32x16 weight = f32x16_set1(step->training->target_weights[row + r]);
        float *dx = lattice_row(step, &op->loss.dx, row + r);
        for (int64_t i = 0; i < op->k; i += 16) {
            const f32x16 expected = f32x16_mul(f32x16_load(task.sums + r * task.depth + i), inverse);
            store_part(dx, i, op->k, f32x16_mul(f32x16_sub(expected, load_part(dx, i, op->k)), weight));
        }
    }
}
