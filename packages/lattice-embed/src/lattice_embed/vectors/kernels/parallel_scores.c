/* Scores between many vectors, cut into tasks for the thread pool.
 *
 * Who does a task never changes a bit: every score is one sum of its own, in the order that the kernels define, and which rows
 * are nearest is a total order.
 *
 * Rows against queries: tasks of TASK_BYTES of rows, longer for a single query. A task's rows stay in the second-level cache
 * while it goes through the queries, so the matrix is read from memory once for all of them. Where only the nearest are
 * wanted, a task scores SCAN_ROWS rows at a time into a buffer and offers them to its thread's heap; the heaps are merged at
 * the end. A thread begins with its own share of the rows, the same in every call, and then helps the others: what a core's
 * cache holds of the rows it finds again. Quantized rows are scored fewer at a time: the processor then loads the next ones
 * while it judges these.
 *
 * All against all: the rows of b are packed into panels, PACKED_FLOATS at a time, and then read by a grid of tasks, A_BYTES of
 * rows of a by GROUP_COLUMNS of b.
 *
 * Work below SMALL_BYTES (some 30 us) is done at once: waking the pool would take as long.
 */
#include "parallel_scores.h"

#include <stdatomic.h>
#include <stdlib.h>

#define TASK_BYTES ((size_t)128 << 10)
#define LONG_TASK_BYTES ((size_t)1 << 20)
#define LEAST_TASK_BYTES ((size_t)24 << 10)
#define SHARE_TASKS 64 /* of one thread: what it may wait for the others at the end is a part of one */
#define LINE_BYTES ((size_t)128) /* processors fetch cache lines in pairs */
#define SMALL_BYTES ((size_t)1 << 20)
#define SCAN_ROWS 1024 /* of floats */
#define SHORT_SCAN_ROWS 256
#define QUERY_GROUP 64
#define PRODUCT_GROUP 256
#define A_BYTES ((size_t)160 << 10)
#define GROUP_COLUMNS 256
#define PACKED_FLOATS ((size_t)2 << 20)

static size_t smaller(size_t x, size_t y) { return x < y ? x : y; }
static size_t larger(size_t x, size_t y) { return x > y ? x : y; }
static size_t pieces(size_t count, size_t piece) { return (count + piece - 1) / piece; }
static size_t whole(size_t count, size_t piece) { return pieces(count, piece) * piece; }

/* Runs tasks 0 .. count-1 at once, or on the pool where `work` (bytes, roughly) is worth it. */
static void run(lattice_pool *pool, size_t work, size_t count, lattice_task task, void *context)
{
    if (work <= SMALL_BYTES || count <= 1) {
        for (size_t i = 0; i < count; i++)
            task(context, (int64_t)i, 0);
        return;
    }
    pool->enter(pool, LATTICE_MAX_THREADS, 1);
    pool->loop(pool, (int64_t)count, task, context);
    pool->leave(pool);
}

/* How many threads `run` may use for such work, at most. */
static size_t threads_for(lattice_pool *pool, size_t work, size_t count)
{
    return work <= SMALL_BYTES || count <= 1 ? 1 : (size_t)pool->get_threads(pool);
}

/* The best so far, of each thread and query: [thread][query], a thread's in cache lines of its own (they are written with
 * every offer), then its candidates.
 */
typedef struct {
    char *memory;
    size_t threads, queries, thread_bytes;
} heaps;

static lattice_nearest *heap_of(const heaps *all, size_t thread, size_t query)
{
    return (lattice_nearest *)(all->memory + thread * all->thread_bytes) + query;
}

/* Memory is NULL when it is short. */
static heaps make_heaps(size_t threads, size_t queries, int64_t wanted, int is_largest)
{
    const size_t bytes = queries * (sizeof(lattice_nearest) + (size_t)wanted * sizeof(lattice_candidate));
    heaps all = {.threads = threads, .queries = queries, .thread_bytes = whole(larger(bytes, 1), LINE_BYTES)};
    all.memory = aligned_alloc(LINE_BYTES, threads * all.thread_bytes);
    for (size_t thread = 0; all.memory != NULL && thread < threads; thread++) {
        lattice_candidate *room = (lattice_candidate *)heap_of(&all, thread, queries);
        for (size_t q = 0; q < queries; q++)
            *heap_of(&all, thread, q) = (lattice_nearest){room + q * (size_t)wanted, 0, wanted, is_largest, -1};
    }
    return all;
}

static void take_all(const heaps *all, int64_t wanted, int64_t *positions, float *scores)
{
    for (size_t q = 0; q < all->queries; q++) {
        for (size_t thread = 1; thread < all->threads; thread++)
            lattice_offer_all(heap_of(all, 0, q), heap_of(all, thread, q));
        lattice_take_nearest(heap_of(all, 0, q), positions + q * (size_t)wanted, scores + q * (size_t)wanted);
    }
}

typedef struct {
    const lattice_kernel_choice *kernels;
    const lattice_rows *rows;
    const lattice_query *queries;
    size_t query_count, task_rows;
    float *scores;
    heaps nearest;
} row_work;

/* One query reads rows once: its tasks are long, because the prefetcher begins anew in each. Short rows come in whole scans. */
static size_t rows_of_task(const lattice_rows *rows, size_t query_count, int threads)
{
    const size_t share = rows->count * rows->row_bytes / (SHARE_TASKS * (size_t)threads);
    const size_t most = query_count > 1 ? TASK_BYTES : LONG_TASK_BYTES;
    const size_t count = smaller(larger(share, LEAST_TASK_BYTES), most) / larger(rows->row_bytes, 1);
    const size_t unit = count < SHORT_SCAN_ROWS ? 4 : SHORT_SCAN_ROWS;
    return larger(count / unit * unit, 32);
}

static void score_some_rows(void *context, int64_t task, int thread)
{
    const row_work *work = context;
    const size_t first = (size_t)task * work->task_rows;
    const size_t count = smaller(work->task_rows, work->rows->count - first);
    (void)thread;
    for (size_t q = 0; q < work->query_count; q++)
        work->kernels->score[work->rows->kind](work->rows, &work->queries[q], first, count,
                                               work->scores + q * work->rows->count + first);
}

void lattice_scores_of_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const lattice_rows *rows,
                            const lattice_query *queries, size_t query_count, float *scores)
{
    row_work work = {.kernels = kernels, .rows = rows, .queries = queries, .query_count = query_count,
                     .task_rows = rows_of_task(rows, query_count, pool->get_threads(pool)), .scores = scores};
    run(pool, rows->count * rows->row_bytes * query_count, pieces(rows->count, work.task_rows), score_some_rows, &work);
}

static void search_some_rows(const row_work *work, size_t task, int thread)
{
    const size_t first = task * work->task_rows, scan = work->rows->kind < LATTICE_INT8 ? SCAN_ROWS : SHORT_SCAN_ROWS;
    const size_t end = first + smaller(work->task_rows, work->rows->count - first);
    for (size_t q = 0; q < work->query_count; q++)
        for (size_t row = first; row < end; row += scan) {
            float scores[SCAN_ROWS];
            const size_t count = smaller(scan, end - row);
            work->kernels->score[work->rows->kind](work->rows, &work->queries[q], row, count, scores);
            lattice_offer(heap_of(&work->nearest, (size_t)thread, q), work->kernels->vectors->find_candidate,
                          scores, count, (int64_t)row);
        }
}

/* Shares of the tasks, one a thread. Whoever has done its own goes on with the next thread's. */
typedef struct {
    _Alignas(64) atomic_size_t next;
    size_t end;
} task_share;

typedef struct {
    const row_work *work;
    size_t threads;
    task_share *shares;
} shared_search;

static void search_shares(void *context, int64_t task, int thread)
{
    const shared_search *search = context;
    (void)task;
    for (size_t i = 0; i < search->threads; i++) {
        task_share *share = &search->shares[((size_t)thread + i) % search->threads];
        for (;;) {
            const size_t next = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (next >= share->end)
                break;
            search_some_rows(search->work, next, thread);
        }
    }
}

static void search_on_pool(lattice_pool *pool, const row_work *work, size_t tasks, size_t threads)
{
    task_share shares[LATTICE_MAX_THREADS];
    shared_search search = {work, threads, shares};
    for (size_t i = 0; i < threads; i++) {
        atomic_init(&shares[i].next, tasks * i / threads);
        shares[i].end = tasks * (i + 1) / threads;
    }
    pool->enter(pool, (int)threads, 1);
    pool->loop(pool, (int64_t)threads, search_shares, &search);
    pool->leave(pool);
}

int lattice_nearest_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const lattice_rows *rows,
                         const lattice_query *queries, size_t query_count, int64_t wanted, int is_largest,
                         int64_t *positions, float *scores)
{
    const size_t task_rows = rows_of_task(rows, query_count, pool->get_threads(pool)), tasks = pieces(rows->count, task_rows);
    for (size_t q = 0; q < query_count; q += QUERY_GROUP) {
        const size_t here = smaller(QUERY_GROUP, query_count - q), bytes = rows->count * rows->row_bytes * here;
        /* the number of threads may be raised by others meanwhile: a region of our own is bounded by what we made room for */
        const size_t threads = threads_for(pool, bytes, tasks);
        const heaps nearest = make_heaps(threads, here, wanted, is_largest);
        if (nearest.memory == NULL)
            return -1;
        row_work work = {.kernels = kernels, .rows = rows, .queries = queries + q, .query_count = here,
                         .task_rows = task_rows, .nearest = nearest};
        if (threads == 1) {
            for (size_t task = 0; task < tasks; task++)
                search_some_rows(&work, task, 0);
        } else {
            search_on_pool(pool, &work, tasks, threads);
        }
        take_all(&nearest, wanted, positions + q * (size_t)wanted, scores + q * (size_t)wanted);
        free(nearest.memory);
    }
    return 0;
}

typedef struct {
    const lattice_kernel_choice *kernels;
    int metric;
    const float *a, *b;
    size_t a_count, b_count, width, a_rows, columns, stride;
    double *a_norms, *b_norms;
    float *panels, *scores, *target;
    heaps nearest;
} product_work;

static void pair_some_rows(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t first = (size_t)task * work->a_rows, at = first * work->width;
    (void)thread;
    work->kernels->vectors->score_rows(work->metric, work->a + at, work->width, work->b + at,
                                       smaller(work->a_rows, work->a_count - first), work->width, work->scores + first);
}

void lattice_scores_of_pairs(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *a,
                             const float *b, size_t count, size_t width, float *scores)
{
    product_work work = {.kernels = kernels, .metric = metric, .a = a, .b = b, .a_count = count, .width = width,
                         .a_rows = larger(TASK_BYTES / (larger(width, 1) * sizeof(float)), 16), .scores = scores};
    run(pool, count * width * sizeof(float), pieces(count, work.a_rows), pair_some_rows, &work);
}

static void normalize_some_rows(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t first = (size_t)task * work->a_rows, at = first * work->width;
    (void)thread;
    work->kernels->vectors->normalize(work->a + at, work->target + at, smaller(work->a_rows, work->a_count - first),
                                      work->width);
}

void lattice_normalize_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const float *source, float *target,
                            size_t count, size_t width)
{
    product_work work = {.kernels = kernels, .a = source, .a_count = count, .width = width, .target = target,
                         .a_rows = larger(TASK_BYTES / (larger(width, 1) * sizeof(float)), 16)};
    run(pool, count * width * sizeof(float), pieces(count, work.a_rows), normalize_some_rows, &work);
}

/* Packs a group of columns and, for cosine, measures its rows. */
static void pack_some_rows(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t first = (size_t)task * GROUP_COLUMNS, count = smaller(GROUP_COLUMNS, work->b_count - first);
    const float *rows = work->b + first * work->width;
    (void)thread;
    work->kernels->products->pack(rows, count, work->width, work->panels + first * work->width);
    if (work->metric == LATTICE_COSINE)
        work->kernels->vectors->fill_norms(rows, count, work->width, work->b_norms + first);
}

static void measure_some_rows(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t first = (size_t)task * work->a_rows;
    (void)thread;
    work->kernels->vectors->fill_norms(work->a + first * work->width, smaller(work->a_rows, work->a_count - first),
                                       work->width, work->a_norms + first);
}

static void multiply_one_block(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t row = (size_t)task / work->columns * work->a_rows;
    const size_t column = (size_t)task % work->columns * GROUP_COLUMNS;
    const size_t a_count = smaller(work->a_rows, work->a_count - row);
    const size_t b_count = smaller(GROUP_COLUMNS, work->b_count - column);
    const float *a = work->a + row * work->width;
    float *scores = work->scores + row * work->stride + column;
    (void)thread;
    work->kernels->products->multiply(work->metric, a, a_count, work->panels + column * work->width, b_count,
                                      work->width, scores, work->stride);
    work->kernels->products->finish(work->metric, a, a_count, work->b + column * work->width, b_count, work->width,
                                    work->a_norms + row, work->b_norms + column, scores, work->stride);
}

static size_t rows_of_block(size_t width)
{
    return larger(A_BYTES / (larger(width, 1) * sizeof(float)) / 12, 2) * 12; /* whole tiles on every instruction set */
}

static float *make_panels(size_t rows, size_t width)
{
    const size_t bytes = whole(rows, LATTICE_PANEL) * width * sizeof(float);
    return aligned_alloc(64, whole(larger(bytes, 64), 64));
}

int lattice_scores_of_all(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *a,
                          size_t a_count, const float *b, size_t b_count, size_t width, float *scores)
{
    if (a_count == 0 || b_count == 0)
        return 0;
    const size_t packed = smaller(larger(PACKED_FLOATS / larger(width, 1) / GROUP_COLUMNS, 1) * GROUP_COLUMNS, b_count);
    float *panels = make_panels(packed, width);
    double *norms = malloc((a_count + packed) * sizeof(double));
    if (panels == NULL || norms == NULL) {
        free(panels);
        free(norms);
        return -1;
    }
    if (metric == LATTICE_COSINE) {
        product_work work = {.kernels = kernels, .a = a, .a_count = a_count, .width = width, .a_rows = rows_of_block(width),
                             .a_norms = norms};
        run(pool, a_count * width * sizeof(float), pieces(a_count, work.a_rows), measure_some_rows, &work);
    }
    for (size_t first = 0; first < b_count; first += packed) {
        product_work work = {.kernels = kernels, .metric = metric, .a = a, .b = b + first * width, .a_count = a_count,
                             .b_count = smaller(packed, b_count - first), .width = width, .a_rows = rows_of_block(width),
                             .stride = b_count, .a_norms = norms, .b_norms = norms + a_count, .panels = panels,
                             .scores = scores + first};
        work.columns = pieces(work.b_count, GROUP_COLUMNS);
        run(pool, work.b_count * width * sizeof(float), work.columns, pack_some_rows, &work);
        run(pool, a_count * work.b_count * larger(width, 1), pieces(a_count, work.a_rows) * work.columns,
            multiply_one_block, &work);
    }
    free(panels);
    free(norms);
    return 0;
}

/* A block of rows against all queries of a group, into a buffer of the thread; then query by query to its heap. */
static void search_one_block(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t row = (size_t)task * work->a_rows, count = smaller(work->a_rows, work->a_count - row);
    const float *rows = work->a + row * work->width;
    float *scores = work->scores + (size_t)thread * work->a_rows * work->stride;
    double *norms = work->a_norms + (size_t)thread * work->a_rows;
    if (work->metric == LATTICE_COSINE)
        work->kernels->vectors->fill_norms(rows, count, work->width, norms);
    work->kernels->products->multiply(work->metric, rows, count, work->panels, work->b_count, work->width, scores,
                                      work->stride);
    work->kernels->products->finish(work->metric, rows, count, work->b, work->b_count, work->width, norms, work->b_norms,
                                    scores, work->stride);
    for (size_t q = 0; q < work->b_count; q++)
        for (size_t i = 0; i < count; i += SCAN_ROWS) {
            float column[SCAN_ROWS];
            const size_t here = smaller(SCAN_ROWS, count - i);
            for (size_t j = 0; j < here; j++)
                column[j] = scores[(i + j) * work->stride + q];
            lattice_offer(heap_of(&work->nearest, (size_t)thread, q), work->kernels->vectors->find_candidate,
                          column, here, (int64_t)(row + i));
        }
}

int lattice_nearest_of_all(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *queries,
                           size_t query_count, const float *rows, size_t count, size_t width, int64_t wanted,
                           int is_largest, int64_t *positions, float *scores)
{
    const size_t block = rows_of_block(width), tasks = pieces(count, block), group = smaller(PRODUCT_GROUP, query_count);
    const size_t threads = threads_for(pool, count * width * group, tasks), stride = whole(group, LATTICE_PANEL);
    float *panels = make_panels(group, width), *buffers = malloc((threads * block * stride + 1) * sizeof(float));
    double *norms = malloc((threads * block + group + 1) * sizeof(double));
    int failed = panels == NULL || buffers == NULL || norms == NULL;
    for (size_t q = 0; q < query_count && !failed; q += group) {
        const size_t here = smaller(group, query_count - q);
        product_work work = {.kernels = kernels, .metric = metric, .a = rows, .b = queries + q * width, .a_count = count,
                             .b_count = here, .width = width, .a_rows = block, .stride = stride, .a_norms = norms + group,
                             .b_norms = norms, .panels = panels, .scores = buffers,
                             .nearest = make_heaps(threads, here, wanted, is_largest)};
        if (work.nearest.memory == NULL) {
            failed = 1;
            break;
        }
        pack_some_rows(&work, 0, 0);
        if (threads == 1) {
            for (size_t task = 0; task < tasks; task++)
                search_one_block(&work, (int64_t)task, 0);
        } else {
            pool->enter(pool, (int)threads, 1);
            pool->loop(pool, (int64_t)tasks, search_one_block, &work);
            pool->leave(pool);
        }
        take_all(&work.nearest, wanted, positions + q * (size_t)wanted, scores + q * (size_t)wanted);
        free(work.nearest.memory);
    }
    free(panels);
    free(buffers);
    free(norms);
    return failed ? -1 : 0;
}
