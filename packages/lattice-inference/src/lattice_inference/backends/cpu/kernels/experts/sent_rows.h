/* Rows on their way to the experts and back: copied to the places of their groups, and added up again.
 *
 *     sent[place] = x[row];   y[row] = chain over the row's experts, ascending:  y = fma(share, d[place], y), from 0
 *     with a shared expert, then  y = fma(1 / (1 + exp(-g)), s, y)
 *
 * What is copied are whole rows as a linear takes them, floats, bfloat16 or integers: they were rounded once, before.
 */
#ifndef LATTICE_SENT_ROWS_H
#define LATTICE_SENT_ROWS_H

#include "experts/routes.h"
#include "lattice/vector_math.h"
#include "rows/rows.h"

void LATTICE_FN(send_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t sent = lattice_rows(op, step);
    const lattice_routes routes = lattice_routes_of(op, step, sent);
    int64_t first, end;
    task_rows(sent, task, tasks, &first, &end);
    for (int64_t place = first; place < end; place++)
        memcpy(lattice_row(step, &op->output, place), lattice_row(step, &op->input[0], routes.order[place] / op->experts.chosen),
               (size_t)op->n * sizeof(float));
}

void LATTICE_FN(add_experts_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t rows = lattice_rows(op, step), chosen = op->experts.chosen, n = op->n;
    const lattice_routes routes = lattice_routes_of(op, step, rows * chosen);
    const int has_shared = op->input[1].slot >= 0;
    int64_t first, end;
    task_rows(rows, task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        float *y = lattice_row(step, &op->output, row);
        const int32_t *place = routes.place + row * chosen;
        const float *share = routes.share + row * chosen;
        const float *s = NULL;
        f32x16 shared_share = f32x16_zero();
        if (has_shared) {
            const f32x16 one = f32x16_set1(1.0f), g = f32x16_set1(*lattice_row(step, &op->input[2], row));
            shared_share = f32x16_div(one, f32x16_add(one, f32x16_exp(f32x16_neg(g))));
            s = lattice_row(step, &op->input[1], row);
        }
        for (int64_t i = 0; i < n; i += 16) {
            f32x16 sum = f32x16_zero();
            for (int64_t j = 0; j < chosen; j++)
                sum = f32x16_fma(f32x16_set1(share[j]), load_part(lattice_row(step, &op->input[0], place[j]), i, n), sum);
            if (has_shared)
                sum = f32x16_fma(shared_share, load_part(s, i, n), sum);
            store_part(y, i, n, sum);
        }
    }
}

#endif
