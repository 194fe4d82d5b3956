/* Products with the factors of a trained adapter, A [rank][k] and B [n][rank], float32 memory that lies in rows, and the gradients
 * of both; of one instruction set: this file is compiled once for each.
 *
 *     low_rank_inner        u[t, j]   = sum over k of x~[t, k] A[j, k]                  x~: x after dropout
 *     low_rank_outer        y[t, n]  += sum over j of (scale u[t, j]) B[n, j]           from y on, in place
 *     low_rank_inner_grad   du[t, j]  = scale (sum over n of dy[t, n] B[n, j])
 *     low_rank_input_grad   dx[t, k] += f[t, k] (sum over j of du[t, j] A[j, k])        in place; f: factors of dropout
 *     low_rank_grad         dA[j, k] += sum over t of du[t, j] x~[t, k]
 *                           dB[n, j] += scale (sum over t of dy[t, n] u[t, j])
 *
 * A task of the first four takes rows; of the last some columns of A, or some rows of B, with all rows t. So no two tasks write
 * the same number, and each sum is one chain in ascending order, whatever the number of threads. The factors are small: a task
 * turns what it needs of them in its scratch.
 */
#include "kernel_functions.h"

#include "rows/lane_panels.h"
#include "reverse/draws.h"
#include "reverse/products.h"

int64_t LATTICE_FN(factor_row_tasks)(const lattice_op *op, const lattice_step *step)
{
    return lattice_divide_up(lattice_rows(op, step), LATTICE_FACTOR_ROWS);
}

LATTICE_INLINE const lattice_site *site_of(const lattice_op *op, const lattice_step *step)
{
    return &step->training->sites[op->factors.site];
}

LATTICE_INLINE float *scratch_of(const lattice_step *step, int thread)
{
    return (float *)(step->scratch + thread * step->scratch_bytes);
}

/* y [columns rounded up to 16 / 16][rows][16] of rows of `columns` floats. */
static void copy_to_panels(const float *x, int64_t x_stride, int64_t rows, int64_t columns, float *y)
{
    for (int64_t i = 0; i < columns; i += LATTICE_PANEL, y += rows * LATTICE_PANEL)
        for (int64_t r = 0; r < rows; r++)
            f32x16_store(y + r * LATTICE_PANEL, load_part(x + r * x_stride, i, columns));
}

/* y = x * f for columns [first, first + count) of row `row` of `width` columns, `first` being a multiple of eight; with x NULL,
 * f itself. `count` is at most LATTICE_FACTOR_COLUMNS. */
static void drop(const lattice_draws *dropout, int64_t number, int64_t row, int64_t width, int64_t first, int64_t count,
                 const float *x, float *y)
{
    uint32_t words[LATTICE_FACTOR_COLUMNS];
    draw_columns(dropout, 1, number, row, width, first, count, words);
    for (int64_t i = 0; i < count; i++) {
        const float factor = words[i] < dropout->threshold ? 0.0f : dropout->factor;
        y[i] = x == NULL ? factor : x[i] * factor;
    }
}

void LATTICE_FN(low_rank_inner_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const lattice_site *site = site_of(op, step);
    const lattice_draws *dropout = &step->training->dropout;
    const int64_t k = op->k, rank = op->n, panels = lattice_divide_up(rank, LATTICE_PANEL);
    int64_t row, end;
    task_rows(lattice_rows(op, step), task, tasks, &row, &end);
    float *a = scratch_of(step, thread), *dropped = a + panels * LATTICE_PANEL * k;
    pack_rows_in_lanes(site->a, k, rank, k, a);
    const float *x = lattice_row(step, &op->input[0], row);
    int64_t stride = op->input[0].stride;
    if (dropout->is_on) {
        for (int64_t r = row; r < end; r++)
            for (int64_t i = 0; i < k; i += LATTICE_FACTOR_COLUMNS) {
                const int64_t here = k - i < LATTICE_FACTOR_COLUMNS ? k - i : LATTICE_FACTOR_COLUMNS;
                drop(dropout, op->factors.number, r, k, i, here, x + (r - row) * stride + i, dropped + (r - row) * k + i);
            }
        x = dropped;
        stride = k;
    }
    const lattice_output output = {.y = lattice_row(step, &op->output, row), .stride = op->output.stride, .columns = rank};
    LATTICE_FN(lattice_multiply_panels)(x, stride, end - row, a, k * LATTICE_PANEL, panels, k, &output);
}

void LATTICE_FN(low_rank_outer_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const lattice_site *site = site_of(op, step);
    const int64_t rank = op->k;
    int64_t row, end;
    task_rows(lattice_rows(op, step), task, tasks, &row, &end);
    float *v = scratch_of(step, thread), *b = v + LATTICE_FACTOR_ROWS * rank;
    for (int64_t r = row; r < end; r++) {
        const float *u = lattice_row(step, &op->input[1], r);
        for (int64_t j = 0; j < rank; j++)
            v[(r - row) * rank + j] = u[j] * op->factors.scale;
    }
    for (int64_t first = 0; first < op->n; first += LATTICE_FACTOR_COLUMNS) {
        const int64_t here = op->n - first < LATTICE_FACTOR_COLUMNS ? op->n - first : LATTICE_FACTOR_COLUMNS;
        pack_rows_in_lanes(site->b + first * rank, rank, here, rank, b);
        for (int64_t i = 0; i < here; i += LATTICE_PANEL) {
            const lattice_product product = {.a = v, .a_row = rank, .a_step = 1, .b = b + i * rank, .b_step = LATTICE_PANEL,
                                             .depth = rank, .c = lattice_row(step, &op->output, row) + first + i,
                                             .c_stride = op->output.stride};
            add_product(&product, end - row, here - i < LATTICE_PANEL ? here - i : LATTICE_PANEL);
        }
    }
}

void LATTICE_FN(low_rank_inner_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const int64_t n = op->k, rank = op->n, panels = lattice_divide_up(rank, LATTICE_PANEL);
    int64_t row, end;
    task_rows(lattice_rows(op, step), task, tasks, &row, &end);
    float *b = scratch_of(step, thread);
    copy_to_panels(site_of(op, step)->b, rank, n, rank, b);
    const lattice_output output = {.y = lattice_row(step, &op->output, row), .stride = op->output.stride, .columns = rank};
    LATTICE_FN(lattice_multiply_panels)(lattice_row(step, &op->input[0], row), op->input[0].stride, end - row, b,
                                        n * LATTICE_PANEL, panels, n, &output);
    for (; row < end; row++) {
        float *du = lattice_row(step, &op->output, row);
        for (int64_t j = 0; j < rank; j++)
            du[j] *= op->factors.scale;
    }
}

void LATTICE_FN(low_rank_input_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    const lattice_site *site = site_of(op, step);
    const lattice_draws *dropout = &step->training->dropout;
    const int64_t k = op->n, rank = op->k;
    int64_t row, end;
    task_rows(lattice_rows(op, step), task, tasks, &row, &end);
    float *sums = scratch_of(step, thread), factors[LATTICE_FACTOR_COLUMNS];
    for (int64_t first = 0; first < k; first += LATTICE_FACTOR_COLUMNS) {
        const int64_t here = k - first < LATTICE_FACTOR_COLUMNS ? k - first : LATTICE_FACTOR_COLUMNS;
        memset(sums, 0, (size_t)((end - row) * LATTICE_FACTOR_COLUMNS) * sizeof(float));
        const lattice_product product = {.a = lattice_row(step, &op->input[1], row), .a_row = op->input[1].stride, .a_step = 1,
                                         .b = site->a + first, .b_step = k, .depth = rank, .c = sums,
                                         .c_stride = LATTICE_FACTOR_COLUMNS};
        add_product(&product, end - row, here);
        for (int64_t r = row; r < end; r++) {
            float *dx = lattice_row(step, &op->output, r) + first;
            const float *sum = sums + (r - row) * LATTICE_FACTOR_COLUMNS;
            if (dropout->is_on)
                drop(dropout, op->factors.number, r, k, first, here, NULL, factors);
            for (int64_t i = 0; i < here; i += 16) {
                const f32x16 before = load_part(dx, i, here), c = load_part(sum, i, here);
                store_part(dx, i, here,
                           dropout->is_on ? f32x16_fma(c, load_part(factors, i, here), before) : f32x16_add(c, before));
            }
        }
    }
}

int64_t LATTICE_FN(low_rank_grad_tasks)(const lattice_op *op, const lattice_step *step)
{
    (void)step;
    return lattice_divide_up(op->n, LATTICE_FACTOR_SHARE) + lattice_divide_up(op->k, LATTICE_FACTOR_SHARE);
}

/* dA's columns [first, first + count). */
static void add_inner_gradient(const lattice_op *op, const lattice_step *step, int64_t first, int64_t count, float *sums)
{
    const lattice_site *site = site_of(op, step);
    const lattice_draws *dropout = &step->training->dropout;
    const lattice_view *du = &op->input[2], *x = &op->factors.input;
    const int64_t rows = lattice_rows(op, step), rank = op->factors.rank;
    float *dropped = sums + rank * LATTICE_FACTOR_SHARE;
    memset(sums, 0, (size_t)(rank * LATTICE_FACTOR_SHARE) * sizeof(float));
    lattice_product product = {.a_row = 1, .a_step = du->stride, .c = sums, .c_stride = LATTICE_FACTOR_SHARE};
    for (int64_t row = 0; row < rows; row += LATTICE_FACTOR_ROWS) {
        product.depth = rows - row < LATTICE_FACTOR_ROWS ? rows - row : LATTICE_FACTOR_ROWS;
        product.a = lattice_row(step, du, row);
        product.b = lattice_row(step, x, row) + first;
        product.b_step = x->stride;
        if (dropout->is_on) {
            for (int64_t r = 0; r < product.depth; r++)
                drop(dropout, op->factors.number, row + r, op->k, first, count, product.b + r * x->stride,
                     dropped + r * LATTICE_FACTOR_SHARE);
            product.b = dropped;
            product.b_step = LATTICE_FACTOR_SHARE;
        }
        add_product(&product, rank, count);
    }
    for (int64_t j = 0; j < rank; j++)
        for (int64_t i = 0; i < count; i += 16) {
            float *da = site->da + j * op->k + first;
            store_part(da, i, count, f32x16_add(load_part(da, i, count), load_part(sums + j * LATTICE_FACTOR_SHARE, i, count)));
        }
}

/* dB's rows [first, first + count). */
static void add_outer_gradient(const lattice_op *op, const lattice_step *step, int64_t first, int64_t count, float *sums)
{
    const lattice_site *site = site_of(op, step);
    const lattice_view *u = &op->input[1], *dy = &op->input[0];
    const int64_t rows = lattice_rows(op, step), rank = op->factors.rank, width = lattice_round_up(rank, LATTICE_PANEL);
    float *padded = sums + LATTICE_FACTOR_SHARE * width;
    memset(sums, 0, (size_t)(LATTICE_FACTOR_SHARE * width) * sizeof(float));
    lattice_product product = {.a_row = 1, .a_step = dy->stride, .c = sums, .c_stride = width};
    for (int64_t row = 0; row < rows; row += LATTICE_FACTOR_ROWS) {
        product.depth = rows - row < LATTICE_FACTOR_ROWS ? rows - row : LATTICE_FACTOR_ROWS;
        product.a = lattice_row(step, dy, row) + first;
        product.b = lattice_row(step, u, row);
        product.b_step = u->stride;
        if (rank < width) { /* whole vectors: a tail would cost more than this copy */
            for (int64_t r = 0; r < product.depth; r++)
                for (int64_t j = 0; j < width; j += 16)
                    f32x16_store(padded + r * width + j, load_part(product.b + r * u->stride, j, rank));
            product.b = padded;
            product.b_step = width;
        }
        add_product(&product, count, width);
    }
    const f32x16 scale = f32x16_set1(op->factors.scale);
    for (int64_t n = 0; n < count; n++) {
        float *db = site->db + (first + n) * rank;
        for (int64_t j = 0; j < rank; j += 16)
            store_part(db, j, rank, f32x16_fma(scale, load_part(sums + n * width, j, rank), load_part(db, j, rank)));
    }
}

void LATTICE_FN(low_rank_grad_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const int64_t of_inner = lattice_divide_up(op->k, LATTICE_FACTOR_SHARE);
    const int64_t first = (task < of_inner ? task : task - of_inner) * LATTICE_FACTOR_SHARE;
    const int64_t total = task < of_inner ? op->k : op->n, left = total - first;
    (task < of_inner ? add_inner_gradient : add_outer_gradient)(
        op, step, first, left < LATTICE_FACTOR_SHARE ? left : LATTICE_FACTOR_SHARE, scratch_of(step, thread));
}
