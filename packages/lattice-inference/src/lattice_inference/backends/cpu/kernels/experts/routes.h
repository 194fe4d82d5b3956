/* The table of who goes where: which rows each expert multiplies, and by how much each row counts what it gets back.
 *
 * It lies in a slot. `sent` counts the rows that are sent, `chosen` of each row of the step:
 *
 *     groups           experts that rows are sent to, in ascending order of their numbers
 *     expert [groups]  the number of each
 *     end    [groups]  rows of a group and of those before it; a group's rows lie one after the other
 *     task_end [groups] the same of tasks, for the op that runs
 *     order  [sent]    the sent row that lies at a place: row * chosen + j
 *     place  [sent]    where it lies
 *     choice [sent]    the experts of row t, ascending, at t * chosen
 *     share  [sent]    what the output of each is multiplied by
 *
 * `choose_experts` writes choice and share, row by row; `group_rows` writes the others by counting.
 */
#ifndef LATTICE_ROUTES_H
#define LATTICE_ROUTES_H

#include "step.h"

typedef struct {
    int32_t *groups, *expert, *end, *task_end, *order, *place, *choice;
    float *share;
} lattice_routes;

#define LATTICE_ROUTES_HEADER 16 /* words, of which one is used: the number of groups */

/* Floats of a row of the slot: as many rows as the step has are enough for the table. */
static inline int64_t lattice_routes_floats(int64_t experts, int64_t chosen)
{
    return LATTICE_ROUTES_HEADER + 3 * experts + 4 * chosen;
}

static inline lattice_routes lattice_routes_of(const lattice_op *op, const lattice_step *step, int64_t sent)
{
    int32_t *words = (int32_t *)lattice_row(step, &op->experts.table, 0);
    const int64_t count = op->experts.count;
    lattice_routes routes = {.groups = words, .expert = words + LATTICE_ROUTES_HEADER};
    routes.end = routes.expert + count;
    routes.task_end = routes.end + count;
    routes.order = routes.task_end + count;
    routes.place = routes.order + sent;
    routes.choice = routes.place + sent;
    routes.share = (float *)(routes.choice + sent);
    return routes;
}

#endif
