/* Runs a kernel over rows that are grouped by expert: each group is an op of its rows and its expert's weights.
 *
 *     rows     [ expert 3 | expert 3 | expert 3 | expert 5 | expert 8 | expert 8 ]      one after the other in a slot
 *     tasks    [ as the kernel cuts three rows  | one row  | two rows            ]      one list over all threads
 *
 * So every kernel of a linear serves experts, whatever its weights are kept in, and gives the bits that it gives alone. With
 * few rows each expert's panels are cut for all threads; with many, groups are.
 */
#ifndef LATTICE_GROUPED_H
#define LATTICE_GROUPED_H

#include "experts/routes.h"

/* Whether each group of an op's rows has another weight. */
static inline int lattice_is_grouped(const lattice_op *op)
{
    return op->experts.matrix_bytes > 0;
}

/* The op over the rows of group `group`. */
static inline lattice_op lattice_group_op(const lattice_op *op, const lattice_routes *routes, int64_t group)
{
    const int64_t first = group > 0 ? routes->end[group - 1] : 0;
    lattice_op part = *op;
    part.rows = LATTICE_ROWS_PART;
    part.part_rows = routes->end[group] - first;
    part.input[0].column += first * op->input[0].stride;
    part.output.column += first * op->output.stride;
    part.linear.weight = (const char *)op->linear.weight + routes->expert[group] * op->experts.matrix_bytes;
    return part;
}

/* The tasks of all groups; where each group's end is kept in the table. */
static inline int64_t lattice_grouped_tasks(const lattice_kernel *kernel, const lattice_op *op, const lattice_step *step)
{
    const lattice_routes routes = lattice_routes_of(op, step, lattice_rows(op, step));
    int64_t tasks = 0;
    for (int64_t group = 0; group < *routes.groups; group++) {
        const lattice_op part = lattice_group_op(op, &routes, group);
        tasks += kernel->tasks(&part, step);
        routes.task_end[group] = (int32_t)tasks;
    }
    return tasks;
}

static inline void lattice_run_grouped(const lattice_kernel *kernel, const lattice_op *op, const lattice_step *step, int64_t task,
                                       int thread)
{
    const lattice_routes routes = lattice_routes_of(op, step, lattice_rows(op, step));
    int64_t group = 0, beyond = *routes.groups; /* the group of the task is from `group` on, before `beyond` */
    while (beyond - group > 1) {
        const int64_t middle = (group + beyond) / 2;
        if (routes.task_end[middle - 1] <= task)
            group = middle;
        else
            beyond = middle;
    }
    const int64_t before = group > 0 ? routes.task_end[group - 1] : 0;
    const lattice_op part = lattice_group_op(op, &routes, group);
    kernel->run(&part, step, task - before, routes.task_end[group] - before, thread);
}

#endif
