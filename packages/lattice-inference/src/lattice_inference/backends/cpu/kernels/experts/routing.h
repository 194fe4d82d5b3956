/* Which experts each row goes through, and where its rows lie for them.
 *
 *     m = max(r),  e = exp(r - m),  p = e / fold16(e)          over a row r of the router's logits
 *     the `chosen` largest p, of equal ones those of lower numbers; normalized: p / (p0 + p1 + ...), in ascending numbers
 *
 * A row's choice depends on that row alone. Rows are then grouped by expert by counting, each group in the order of the rows.
 */
#ifndef LATTICE_ROUTING_H
#define LATTICE_ROUTING_H

#include "experts/routes.h"
#include "lattice/vector_math.h"
#include "rows/rows.h"

/* Logits to probabilities, in place. */
LATTICE_INLINE void probabilities(float *r, int64_t count)
{
    float most = r[0];
    for (int64_t i = 1; i < count; i++)
        most = r[i] > most ? r[i] : most;
    const f32x16 shift = f32x16_set1(most);
    f32x16 total = f32x16_zero();
    for (int64_t i = 0; i < count; i += 16) {
        store_part(r, i, count, f32x16_exp(f32x16_sub(load_part(r, i, count), shift)));
        total = f32x16_add(total, load_part(r, i, count)); /* lanes beyond the row are zeros */
    }
    const f32x16 sum = f32x16_set1(f32x16_fold_add(total));
    for (int64_t i = 0; i < count; i += 16)
        store_part(r, i, count, f32x16_div(load_part(r, i, count), sum));
}

/* Where in `choice` the smallest of p is, of equal ones the last: it gives way to a larger one. */
LATTICE_INLINE int64_t smallest(const float *p, const int32_t *choice, int64_t chosen)
{
    int64_t least = 0;
    for (int64_t j = 1; j < chosen; j++)
        if (p[choice[j]] <= p[choice[least]])
            least = j;
    return least;
}

/* The numbers of the `chosen` largest of p, ascending. They differ whatever p holds: nothing gives way to a NaN. */
LATTICE_INLINE void choose(const float *p, int64_t count, int64_t chosen, int32_t *choice)
{
    for (int64_t j = 0; j < chosen; j++)
        choice[j] = (int32_t)j;
    int64_t least = smallest(p, choice, chosen);
    for (int64_t i = chosen; i < count; i++)
        if (p[i] > p[choice[least]]) {
            for (int64_t j = least; j + 1 < chosen; j++)
                choice[j] = choice[j + 1];
            choice[chosen - 1] = (int32_t)i;
            least = smallest(p, choice, chosen);
        }
}

/* The logits become probabilities where they lie: nothing else reads them. */
void LATTICE_FN(choose_experts_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)thread;
    const int64_t rows = lattice_rows(op, step), count = op->experts.count, chosen = op->experts.chosen;
    const lattice_routes routes = lattice_routes_of(op, step, rows * chosen);
    int64_t first, end;
    task_rows(rows, task, tasks, &first, &end);
    for (int64_t row = first; row < end; row++) {
        float *p = lattice_row(step, &op->input[0], row), *share = routes.share + row * chosen;
        int32_t *choice = routes.choice + row * chosen;
        probabilities(p, count);
        choose(p, count, chosen, choice);
        float sum = 0.0f;
        for (int64_t j = 0; j < chosen; j++) {
            share[j] = p[choice[j]];
            sum += share[j];
        }
        if (op->experts.normalized)
            for (int64_t j = 0; j < chosen; j++)
                share[j] /= sum;
    }
}

int64_t LATTICE_FN(one_task)(const lattice_op *op, const lattice_step *step)
{
    (void)op;
    (void)step;
    return 1;
}

void LATTICE_FN(group_rows_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)task;
    (void)tasks;
    (void)thread;
    const int64_t count = op->experts.count, sent = lattice_rows(op, step) * op->experts.chosen;
    const lattice_routes routes = lattice_routes_of(op, step, sent);
    int32_t *counts = routes.end, *next = routes.task_end; /* until the groups are known */
    memset(counts, 0, (size_t)count * sizeof(int32_t));
    for (int64_t i = 0; i < sent; i++)
        counts[routes.choice[i]]++;
    for (int64_t expert = 0, before = 0; expert < count; before += counts[expert++])
        next[expert] = (int32_t)before;
    for (int64_t i = 0; i < sent; i++) {
        routes.place[i] = next[routes.choice[i]]++;
        routes.order[routes.place[i]] = (int32_t)i;
    }
    int32_t groups = 0;
    for (int64_t expert = 0; expert < count; expert++)
        if (counts[expert] > 0) {
            routes.expert[groups] = (int32_t)expert;
            routes.end[groups++] = next[expert]; /* groups <= expert: counts that are still wanted stay */
        }
    *routes.groups = groups;
}

#endif
