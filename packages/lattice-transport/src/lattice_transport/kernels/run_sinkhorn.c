/* See run_sinkhorn.h. Compiled once, for the baseline. */
#include "run_sinkhorn.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "lattice/cpu.h"

#define LN_2 0x1.62e42fefa39efp-1
#define ALONE 16384        /* entries of a problem that one thread has done before others are awake */
#define GAP_EVERY 4        /* iterations between two looks at the duality gap, whose sums are scalar */
#define ADAPT_EVERY 8      /* iterations over which a rate of convergence is measured */
#define MOST_RELAXED 1.97

#if defined(__x86_64__)
extern const lattice_sinkhorn_kernels lattice_sinkhorn_kernels_baseline, lattice_sinkhorn_kernels_avx2,
    lattice_sinkhorn_kernels_avx512;
static const lattice_sinkhorn_kernels *const tables[LATTICE_ISA_COUNT] = {
    &lattice_sinkhorn_kernels_baseline, &lattice_sinkhorn_kernels_avx2, &lattice_sinkhorn_kernels_avx512, NULL};
#elif defined(__aarch64__)
extern const lattice_sinkhorn_kernels lattice_sinkhorn_kernels_baseline, lattice_sinkhorn_kernels_neon;
static const lattice_sinkhorn_kernels *const tables[LATTICE_ISA_COUNT] = {&lattice_sinkhorn_kernels_baseline, NULL, NULL,
                                                                          &lattice_sinkhorn_kernels_neon};
#else
extern const lattice_sinkhorn_kernels lattice_sinkhorn_kernels_baseline;
static const lattice_sinkhorn_kernels *const tables[LATTICE_ISA_COUNT] = {&lattice_sinkhorn_kernels_baseline, NULL, NULL,
                                                                          NULL};
#endif

const lattice_sinkhorn_kernels *lattice_sinkhorn_table(int isa)
{
    return isa >= 0 && isa < LATTICE_ISA_COUNT ? tables[isa] : NULL;
}

/* A region of the pool, or none for small work. */
typedef struct {
    lattice_pool *pool; /* NULL: this thread alone */
    uint64_t environment;
} crew;

static crew crew_enter(lattice_pool *pool, int threads, int64_t work)
{
    crew c = {NULL, 0};
    if (threads > 1 && work > ALONE && pool->enter(pool, threads, 1) > 0)
        c.pool = pool;
    c.environment = lattice_float_environment_default();
    return c;
}

static void crew_loop(const crew *c, int64_t count, lattice_task task, void *context)
{
    if (c->pool != NULL) {
        c->pool->loop(c->pool, count, task, context);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        task(context, i, 0);
}

static void crew_leave(const crew *c)
{
    lattice_float_environment_restore(c->environment);
    if (c->pool != NULL)
        c->pool->leave(c->pool);
}

static int64_t work_of(const lattice_problem *p)
{
    return p->rows * p->columns * (p->matrix != NULL ? 1 : 1 + p->dimension / 8);
}

typedef struct {
    const lattice_problem *problem;
    const lattice_sinkhorn_kernels *kernels;
    void *output;
    int64_t row, rows, step;
} job;

static void row_block_task(void *opaque, int64_t task, int thread)
{
    const job *j = opaque;
    j->kernels->row_block[j->problem->precision](j->problem, task, thread);
}

static void column_group_task(void *opaque, int64_t task, int thread)
{
    const job *j = opaque;
    j->kernels->column_group[j->problem->precision](j->problem, task, thread);
}

static void narrow_v(const lattice_problem *p)
{
    if (p->precision == LATTICE_FLOAT64) {
        memcpy(p->v_real, p->v, (size_t)p->padded * sizeof(double));
        return;
    }
    float *narrow = p->v_real;
    for (int64_t j = 0; j < p->padded; j++) {
        narrow[j] = (float)p->v[j];
        p->v[j] = (double)narrow[j]; /* the sums belong to what the kernels read */
    }
}

static double residual(const double *sums, const double *wanted, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += fabs(sums[i] - wanted[i]);
    return total;
}

/* Potentials in units of epsilon, as the dual problem has them: without the reference measure of the entropy. */
static double dual_potential(const double *potential, const double *log_weights, double damping, int product, int64_t i)
{
    return (product ? potential[i] - log_weights[i] * damping : potential[i]) * LN_2;
}

/* The parts of one marginal: adds to the primal and the dual objective, in units of epsilon. Returns its mass. */
static double marginal_objectives(const double *potential, const double *sums, const double *weights,
                                  const double *log_weights, double damping, int product, int64_t count, double tau,
                                  double *primal, double *dual)
{
    double mass = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double f = dual_potential(potential, log_weights, damping, product, i), r = sums[i], w = weights[i];
        mass += r;
        *primal += r > 0.0 ? f * r : 0.0;
        if (isinf(tau)) {
            *dual += f * w;
        } else {
            *primal += tau * ((r > 0.0 ? r * log(r / w) : 0.0) - r + w);
            *dual -= tau * w * expm1(-f / tau);
        }
    }
    return mass;
}

static double sum_of(const double *values, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += values[i];
    return total;
}

void lattice_objectives(const lattice_problem *p, lattice_progress *progress)
{
    const double *column_sums = p->symmetric ? p->row_sums : p->column_sums;
    double primal = 0.0, dual = 0.0;
    const double mass = marginal_objectives(p->u, p->row_sums, p->a, p->log_a, p->row_damping, p->product, p->rows,
                                            p->row_tau, &primal, &dual);
    marginal_objectives(p->v, column_sums, p->b, p->log_b, p->column_damping, p->product, p->columns, p->column_tau,
                        &primal, &dual);
    const double reference = p->product ? sum_of(p->a, p->rows) * sum_of(p->b, p->columns) : 0.0;
    progress->primal = primal - mass + reference;
    progress->dual = dual - mass + reference;
}

/* log of the sum over i of w[i] exp(-f[i] / tau) */
static double log_penalty(const double *potential, const double *weights, const double *log_weights, double damping,
                          int product, int64_t count, double tau)
{
    double most = -INFINITY, total = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double t = -dual_potential(potential, log_weights, damping, product, i) / tau;
        most = t > most ? t : most;
    }
    for (int64_t i = 0; i < count; i++)
        total += weights[i] * exp(-dual_potential(potential, log_weights, damping, product, i) / tau - most);
    return most + log(total);
}

/* With both marginals penalised, adding a constant to u and taking it from v leaves the plan alone: the constant that is best
 * for the dual is known, and setting it removes the mode in which plain iterations are slowest (Sejourne et al. 2022). */
static void centre_potentials(const lattice_problem *p)
{
    const double rows = log_penalty(p->u, p->a, p->log_a, p->row_damping, p->product, p->rows, p->row_tau);
    const double columns =
        log_penalty(p->v, p->b, p->log_b, p->column_damping, p->product, p->columns, p->column_tau);
    const double shift = p->row_tau * p->column_tau / (p->row_tau + p->column_tau) * (rows - columns) / LN_2;
    if (!(fabs(shift) < INFINITY))
        return;
    for (int64_t i = 0; i < p->rows; i++)
        p->u[i] += shift;
    for (int64_t j = 0; j < p->columns; j++)
        p->v[j] -= shift;
}

/* Chooses the relaxation from the rate at which the residual falls. With plain steps the error shrinks by eta an iteration;
 * the best relaxation is 2 / (1 + sqrt(1 - eta)), and a rate seen under another one tells eta as well: the theory of
 * successive over-relaxation, which holds near the solution. When the residual grows, plain steps take over again. */
static void adapt_relaxation(lattice_problem *p, lattice_progress *progress, double residual_now)
{
    progress->anchor_age++;
    if (progress->anchor_residual == 0.0 || progress->anchor_age < 0) {
        progress->anchor_residual = residual_now;
        return;
    }
    if (p->relaxation > 1.0 && residual_now > 4.0 * progress->anchor_residual) {
        p->relaxation = 1.0;
        progress->anchor_age = -ADAPT_EVERY; /* plain steps for a while before a rate is trusted again */
        progress->anchor_residual = residual_now;
        return;
    }
    if (progress->anchor_age < ADAPT_EVERY)
        return;
    const double rate = pow(residual_now / progress->anchor_residual, 1.0 / (double)progress->anchor_age);
    const double w = p->relaxation;
    progress->anchor_age = 0;
    progress->anchor_residual = residual_now;
    if (!(rate > 0.3 && rate < 1.0) || rate <= w - 1.0)
        return;
    double eta = (rate + w - 1.0) * (rate + w - 1.0) / (rate * w * w);
    eta = eta < 0.9998 ? eta : 0.9998;
    const double best = 2.0 / (1.0 + sqrt(1.0 - eta));
    p->relaxation = best < MOST_RELAXED ? best : MOST_RELAXED;
}

void lattice_sinkhorn_run(lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                          int64_t iterations, double threshold, int adapt, lattice_progress *progress)
{
    job j = {p, kernels, NULL, 0, 0, 0};
    const int by_gap = !isinf(p->row_tau) || !isinf(p->column_tau);
    const int centred = !isinf(p->row_tau) && !isinf(p->column_tau) && !p->symmetric;
    const int64_t groups = (p->padded + LATTICE_COLUMN_GROUP - 1) / LATTICE_COLUMN_GROUP;
    const crew c = crew_enter(pool, threads, work_of(p));
    narrow_v(p);
    if (p->symmetric)
        memcpy(p->u, p->v, (size_t)p->rows * sizeof(double));
    progress->converged = 0;
    for (int64_t i = 0; i < iterations; i++) {
        crew_loop(&c, p->blocks, row_block_task, &j);
        if (!p->symmetric)
            crew_loop(&c, groups, column_group_task, &j);
        progress->iterations++;
        progress->row_residual = residual(p->row_sums, p->a, p->rows);
        progress->column_residual =
            p->symmetric ? progress->row_residual : residual(p->column_sums, p->b, p->columns);
        const double worst = progress->row_residual > progress->column_residual ? progress->row_residual
                                                                                 : progress->column_residual;
        const int last = i + 1 == iterations;
        if (by_gap) {
            if (last || i % GAP_EVERY == GAP_EVERY - 1) {
                lattice_objectives(p, progress);
                const double mass = sum_of(p->row_sums, p->rows);
                /* a marginal that is held must fit: until it does, the plan is not feasible and the gap bounds nothing */
                const double held = fmax(isinf(p->row_tau) ? progress->row_residual : 0.0,
                                         isinf(p->column_tau) ? progress->column_residual : 0.0);
                progress->converged = held <= threshold && mass < INFINITY &&
                                      fabs(progress->primal - progress->dual) <= threshold * (fabs(progress->primal) + mass);
            }
        } else {
            progress->converged = worst <= threshold;
        }
        if (progress->converged || last || !(worst < INFINITY))
            break;
        if (adapt && !p->symmetric)
            adapt_relaxation(p, progress, progress->row_residual + progress->column_residual);
        memcpy(p->v, p->v_next, (size_t)p->padded * sizeof(double));
        if (centred)
            centre_potentials(p);
        narrow_v(p);
        if (p->symmetric)
            memcpy(p->u, p->v, (size_t)p->rows * sizeof(double));
    }
    progress->relaxation = p->relaxation;
    if (!by_gap)
        lattice_objectives(p, progress);
    crew_leave(&c);
}

static void rows_of_task(const job *j, int64_t task, int64_t *row, int64_t *rows)
{
    *row = j->row + task * j->step;
    const int64_t left = j->row + j->rows - *row;
    *rows = left < j->step ? left : j->step;
}

static void plan_task(void *opaque, int64_t task, int thread)
{
    const job *j = opaque;
    int64_t row, rows;
    rows_of_task(j, task, &row, &rows);
    const size_t size = j->problem->precision == LATTICE_FLOAT64 ? sizeof(double) : sizeof(float);
    j->kernels->plan_rows[j->problem->precision](
        j->problem, row, rows, (char *)j->output + (size_t)((row - j->row) * j->problem->columns) * size, thread);
}

void lattice_plan(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                  int64_t row, int64_t rows, void *plan)
{
    job j = {p, kernels, plan, row, rows, LATTICE_CLOUD_ROWS};
    const crew c = crew_enter(pool, threads, work_of(p));
    narrow_v(p);
    crew_loop(&c, (rows + j.step - 1) / j.step, plan_task, &j);
    crew_leave(&c);
}

static void row_costs_task(void *opaque, int64_t task, int thread)
{
    const job *j = opaque;
    j->kernels->row_costs[j->problem->precision](j->problem, task, j->output, thread);
}

void lattice_row_costs(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                       double *cost)
{
    job j = {p, kernels, cost, 0, 0, 0};
    const crew c = crew_enter(pool, threads, work_of(p));
    narrow_v(p);
    crew_loop(&c, p->blocks, row_costs_task, &j);
    crew_leave(&c);
}

static void cost_rows_task(void *opaque, int64_t task, int thread)
{
    const job *j = opaque;
    int64_t row, rows;
    rows_of_task(j, task, &row, &rows);
    const size_t size = j->problem->precision == LATTICE_FLOAT64 ? sizeof(double) : sizeof(float);
    j->kernels->cost_rows[j->problem->precision](j->problem, row, rows,
                                                 (char *)j->output + (size_t)(row * j->problem->columns) * size, thread);
}

void lattice_cost_matrix(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *pool, int threads,
                         void *costs)
{
    job j = {p, kernels, costs, 0, p->rows, LATTICE_CLOUD_ROWS};
    const crew c = crew_enter(pool, threads, work_of(p));
    crew_loop(&c, (p->rows + j.step - 1) / j.step, cost_rows_task, &j);
    crew_leave(&c);
}

#define EXTREME_TASKS 32

typedef struct {
    const char *values;
    int64_t count;
    int precision;
    const lattice_sinkhorn_kernels *kernels;
    double least[EXTREME_TASKS], most[EXTREME_TASKS];
    int64_t bad[EXTREME_TASKS];
} extremes_job;

static void extremes_task(void *opaque, int64_t task, int thread)
{
    (void)thread;
    extremes_job *j = opaque;
    const int64_t first = j->count * task / EXTREME_TASKS, last = j->count * (task + 1) / EXTREME_TASKS;
    const size_t size = j->precision == LATTICE_FLOAT64 ? sizeof(double) : sizeof(float);
    const int64_t bad = j->kernels->extremes[j->precision](j->values + (size_t)first * size, last - first, &j->least[task],
                                                           &j->most[task]);
    j->bad[task] = bad < 0 ? -1 : first + bad;
}

int64_t lattice_extremes(const void *values, int64_t count, int precision, const lattice_sinkhorn_kernels *kernels,
                         lattice_pool *pool, int threads, double *least, double *most)
{
    extremes_job j = {.values = values, .count = count, .precision = precision, .kernels = kernels};
    const crew c = crew_enter(pool, threads, count / 4);
    crew_loop(&c, EXTREME_TASKS, extremes_task, &j);
    crew_leave(&c);
    *least = INFINITY;
    *most = -INFINITY;
    for (int task = 0; task < EXTREME_TASKS; task++) {
        if (j.bad[task] >= 0)
            return j.bad[task];
        *least = j.least[task] < *least ? j.least[task] : *least;
        *most = j.most[task] > *most ? j.most[task] : *most;
    }
    return -1;
}
