/* Scores between many vectors, cut into tasks for the thread pool.
 *
 * Who does a task never changes a bit: every score is one sum of its own, in the order that vector_kernels.c defines.
 *
 * Rows:            tasks of ROWS_FLOATS floats, read once.
 * All against all: a grid of tasks. The rows of b that a task reads stay in the second-level cache while it goes through
 *                  its A_ROWS rows of a:
 *
 *                       b 0..g      b g..2g     b 2g..
 *          a 0..63   [ task 0    | task 1    | task 2   ]
 *          a 64..127 [ task 3    | ...                  ]
 *
 * Work below SMALL_FLOATS multiply-adds (some 30 us) is done at once: waking the pool would take as long.
 */
#include "parallel_scores.h"

#define ROWS_FLOATS (64 * 1024)
#define CACHE_FLOATS (48 * 1024)
#define A_ROWS 64
#define SMALL_FLOATS (256 * 1024)

typedef struct {
    const lattice_vector_kernels *kernels;
    int metric;
    const float *a, *b;
    size_t a_step, a_count, b_count, width;
    size_t rows; /* of b in a task */
    size_t columns; /* tasks side by side in the grid */
    double *a_norms, *b_norms;
    float *scores;
} scoring;

static size_t smaller(size_t x, size_t y) { return x < y ? x : y; }

static void score_some_rows(void *context, int64_t task, int thread)
{
    const scoring *work = context;
    const size_t first = (size_t)task * work->rows;
    (void)thread;
    work->kernels->score_rows(work->metric, work->a + first * work->a_step, work->a_step, work->b + first * work->width,
                              smaller(work->rows, work->b_count - first), work->width, work->scores + first);
}

static void measure_some_rows(void *context, int64_t task, int thread)
{
    const scoring *work = context;
    const size_t first = (size_t)task * work->rows;
    (void)thread;
    work->kernels->fill_norms(work->b + first * work->width, smaller(work->rows, work->b_count - first), work->width,
                              work->b_norms + first);
}

static void score_one_block(void *context, int64_t task, int thread)
{
    const scoring *work = context;
    const size_t i = (size_t)task / work->columns * A_ROWS, j = (size_t)task % work->columns * work->rows;
    (void)thread;
    work->kernels->score_block(work->metric, work->a + i * work->width, smaller(A_ROWS, work->a_count - i),
                               work->b + j * work->width, smaller(work->rows, work->b_count - j), work->width,
                               work->a_norms + i, work->b_norms + j, work->scores + i * work->b_count + j,
                               work->b_count);
}

static size_t rows_of(size_t floats, size_t width)
{
    const size_t rows = floats / (width ? width : 1) / 12 * 12; /* whole tiles, three or four rows of b wide */
    return rows ? rows : 12;
}

static size_t pieces(size_t count, size_t piece) { return (count + piece - 1) / piece; }

void lattice_scores_of_rows(const lattice_vector_kernels *kernels, lattice_pool *pool, int metric, const float *a,
                            size_t a_step, const float *b, size_t count, size_t width, float *scores)
{
    if (count * width <= SMALL_FLOATS) {
        kernels->score_rows(metric, a, a_step, b, count, width, scores);
        return;
    }
    scoring work = {.kernels = kernels, .metric = metric, .a = a, .b = b, .a_step = a_step, .b_count = count,
                    .width = width, .rows = rows_of(ROWS_FLOATS, width), .scores = scores};
    pool->enter(pool, LATTICE_MAX_THREADS, 1);
    pool->loop(pool, (int64_t)pieces(count, work.rows), score_some_rows, &work);
    pool->leave(pool);
}

void lattice_scores_of_all(const lattice_vector_kernels *kernels, lattice_pool *pool, int metric, const float *a,
                           size_t a_count, const float *b, size_t b_count, size_t width, double *norms, float *scores)
{
    if (a_count == 0 || b_count == 0)
        return;
    scoring work = {.kernels = kernels, .metric = metric, .a = a, .b = b, .a_count = a_count, .b_count = b_count,
                    .width = width, .rows = rows_of(CACHE_FLOATS, width), .a_norms = norms,
                    .b_norms = norms + a_count, .scores = scores};
    work.columns = pieces(b_count, work.rows);
    if (metric == LATTICE_COSINE)
        kernels->fill_norms(a, a_count, width, work.a_norms);
    if (a_count * b_count * (width ? width : 1) <= SMALL_FLOATS) {
        if (metric == LATTICE_COSINE)
            kernels->fill_norms(b, b_count, width, work.b_norms);
        kernels->score_block(metric, a, a_count, b, b_count, width, work.a_norms, work.b_norms, scores, b_count);
        return;
    }
    pool->enter(pool, LATTICE_MAX_THREADS, 1);
    if (metric == LATTICE_COSINE)
        pool->loop(pool, (int64_t)work.columns, measure_some_rows, &work);
    pool->loop(pool, (int64_t)(pieces(a_count, A_ROWS) * work.columns), score_one_block, &work);
    pool->leave(pool);
}
