/* Runs the kernels over a problem, on the pool: the door from Python into them. */
#ifndef LATTICE_RUN_SINKHORN_H
#define LATTICE_RUN_SINKHORN_H

#include "lattice/pool.h"
#include "sinkhorn.h"

/* The kernels of an instruction set; NULL when this build has none for it. */
const lattice_sinkhorn_kernels *lattice_sinkhorn_table(int isa);

/* How an unfinished run came out. */
typedef struct {
    int64_t iterations;
    int converged;
    double row_residual, column_residual; /* L1 */
    double primal, dual;                  /* in units of epsilon, for marginals held or penalised */
    double relaxation;                    /* in use at the end */
    double anchor_residual;               /* state of the adaptation, zero at first */
    int64_t anchor_age;
} lattice_progress;

/* Runs up to `iterations` iterations. Balanced problems stop on the L1 residuals, others on the relative duality gap and
 * the residual of a marginal that is held, the first time they are at most `threshold`; u and v are left so that residuals and objectives are theirs. Allocates nothing. */
void lattice_sinkhorn_run(lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                          int64_t iterations, double threshold, int adapt, lattice_progress *progress);

/* Objectives of (u, v) with its marginals, in units of epsilon. */
void lattice_objectives(const lattice_problem *p, lattice_progress *progress);

void lattice_plan(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                  int64_t row, int64_t rows, void *plan);
void lattice_row_costs(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                       double *cost);
void lattice_cost_matrix(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                         void *costs);
int64_t lattice_extremes(const void *values, int64_t count, int precision, const lattice_sinkhorn_kernels *kernels,
                         lattice_pool *pool, int threads, double *least, double *most);

#endif
