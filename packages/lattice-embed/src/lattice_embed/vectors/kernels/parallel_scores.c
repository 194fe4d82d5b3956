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
 * rows of a by GROUP_COLUMNS of b, which the second-level cache holds beside their scores.
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
#define A_BYTES ((size_t)384 << 10)
#define SEARCH_BYTES ((size_t)160 << 10) /* the same of rows that are searched: they are read once */
#define GROUP_COLUMNS 128
#define PACKING_COLUMNS 128 /* from here on it pays to copy the rows of a */
#define PACKED_FLOATS ((size_t)2 << 20)

static size_t smaller(size_t x, size_t y) { return x < y ? x : y; }
static size_t larger(size_t x, size_t y) { return x > y ? x : y; }
static size_t pieces(size_t count, size_t piece) { return (count + piece - 1) / piece; }
static size_t whole(size_t count, size_t piece) { return pieces(count, piece) * piece; }

/* How many threads such work (bytes, roughly) is worth. The pool's number may be raised by others meanwhile: who makes room
 * for each thread bounds its own regions by this. */
static size_t threads_for(lattice_pool *pool, size_t work, size_t count)
{
    return work <= SMALL_BYTES || count <= 1 ? 1 : (size_t)pool->get_threads(pool);
}

/* Runs tasks 0 .. count-1 on so many threads at most. */
static void run_on(lattice_pool *pool, size_t threads, size_t count, lattice_task task, void *context)
{
    if (threads == 1) {
        for (size_t i = 0; i < count; i++)
            task(context, (int64_t)i, 0);
        return;
    }
    pool->enter(pool, (int)threads, 1);
    pool->loop(pool, (int64_t)count, task, context);
    pool->leave(pool);
}

/* Runs tasks 0 .. count-1 at once, or on the pool where `work` is worth it. */
static void run(lattice_pool *pool, size_t work, size_t count, lattice_task task, void *context)
{
    run_on(pool, threads_for(pool, work, count), count, task, context);
}

/* Shares of the tasks, one a thread. Whoever has done its own goes on with the next thread's. */
typedef struct {
    _Alignas(64) atomic_size_t next;
    size_t end;
} task_share;

typedef struct {
    lattice_task task;
    void *context;
    size_t threads;
    task_share *shares;
} shared_tasks;

static void run_shares(void *context, int64_t task, int thread)
{
    const shared_tasks *all = context;
    (void)task;
    for (size_t i = 0; i < all->threads; i++) {
        task_share *share = &all->shares[((size_t)thread + i) % all->threads];
        for (;;) {
            const size_t next = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (next >= share->end)
                break;
            all->task(all->context, (int64_t)next, thread);
        }
    }
}

/* `run_on` where a thread gains from doing tasks that follow each other. */
static void run_in_shares(lattice_pool *pool, size_t threads, size_t count, lattice_task task, void *context)
{
    task_share shares[LATTICE_MAX_THREADS];
    shared_tasks all = {task, context, threads, shares};
    for (size_t i = 0; i < threads; i++) {
        atomic_init(&shares[i].next, count * i / threads);
        shares[i].end = count * (i + 1) / threads;
    }
    run_on(pool, threads, threads, run_shares, &all);
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

static void search_some_rows(void *context, int64_t task, int thread)
{
    const row_work *work = context;
    const size_t scan = work->rows->kind < LATTICE_INT8 ? SCAN_ROWS : SHORT_SCAN_ROWS;
    const size_t first = (size_t)task * work->task_rows, end = first + smaller(work->task_rows, work->rows->count - first);
    for (size_t q = 0; q < work->query_count; q++)
        for (size_t row = first; row < end; row += scan) {
            float scores[SCAN_ROWS];
            const size_t count = smaller(scan, end - row);
            work->kernels->score[work->rows->kind](work->rows, &work->queries[q], row, count, scores);
            lattice_offer(heap_of(&work->nearest, (size_t)thread, q), work->kernels->vectors->find_candidate,
                          scores, count, (int64_t)row);
        }
}

int lattice_nearest_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const lattice_rows *rows,
                         const lattice_query *queries, size_t query_count, int64_t wanted, int is_largest,
                         int64_t *positions, float *scores)
{
    const size_t task_rows = rows_of_task(rows, query_count, pool->get_threads(pool)), tasks = pieces(rows->count, task_rows);
    for (size_t q = 0; q < query_count; q += QUERY_GROUP) {
        const size_t here = smaller(QUERY_GROUP, query_count - q), bytes = rows->count * rows->row_bytes * here;
        const size_t threads = threads_for(pool, bytes, tasks);
        const heaps nearest = make_heaps(threads, here, wanted, is_largest);
        if (nearest.memory == NULL)
            return -1;
        row_work work = {.kernels = kernels, .rows = rows, .queries = queries + q, .query_count = here,
                         .task_rows = task_rows, .nearest = nearest};
        run_in_shares(pool, threads, tasks, search_some_rows, &work);
        take_all(&nearest, wanted, positions + q * (size_t)wanted, scores + q * (size_t)wanted);
        free(nearest.memory);
    }
    return 0;
}

/* What a thread has made of a block of rows of a: the tasks that it does one after the other mostly share it. */
typedef struct {
    _Alignas(64) float *tiles; /* or NULL: rows are read in place */
    float *inverses;
    size_t row; /* the first one, or SIZE_MAX */
} row_block;

typedef struct {
    const lattice_kernel_choice *kernels;
    int metric;
    const float *a, *b;
    size_t a_count, b_count, width, a_rows, columns, stride;
    float *b_inverses;
    float *panels, *scores, *target;
    row_block *blocks; /* one a thread */
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
    work->kernels->products->pack_panels(rows, count, work->width, work->panels + first * work->width);
    if (work->metric == LATTICE_COSINE)
        work->kernels->vectors->invert_lengths(rows, count, work->width, work->b_inverses + first);
}

/* The block of rows from `row` on, as `thread` keeps it. */
static const row_block *block_at(const product_work *work, size_t row, size_t count, int thread)
{
    row_block *block = &work->blocks[thread];
    const float *rows = work->a + row * work->width;
    if (block->row == row)
        return block;
    if (work->metric == LATTICE_COSINE)
        work->kernels->vectors->invert_lengths(rows, count, work->width, block->inverses);
    if (block->tiles != NULL)
        work->kernels->products->pack_tiles(rows, count, work->width, block->tiles);
    block->row = row;
    return block;
}

static void multiply_one_block(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t row = (size_t)task / work->columns * work->a_rows;
    const size_t column = (size_t)task % work->columns * GROUP_COLUMNS;
    const size_t a_count = smaller(work->a_rows, work->a_count - row);
    const row_block *block = block_at(work, row, a_count, thread);
    const lattice_product product = {
        .metric = work->metric, .width = work->width,
        .a = work->a + row * work->width, .tiles = block->tiles, .a_count = a_count, .a_inverses = block->inverses,
        .b = work->b + column * work->width, .panels = work->panels + column * work->width,
        .b_count = smaller(GROUP_COLUMNS, work->b_count - column), .b_inverses = work->b_inverses + column,
        .scores = work->scores + row * work->stride + column, .stride = work->stride,
    };
    work->kernels->products->score(&product);
}

static size_t rows_of_block(size_t width, size_t bytes)
{
    return larger(bytes / (larger(width, 1) * sizeof(float)) / 12, 2) * 12; /* whole tiles on every instruction set */
}

static float *make_panels(size_t rows, size_t width)
{
    const size_t bytes = whole(rows, LATTICE_PANEL) * width * sizeof(float);
    return aligned_alloc(64, whole(larger(bytes, 64), 64));
}

/* Room for a block of rows of each thread, packed where that pays. NULL when memory is short. */
static row_block *make_blocks(const lattice_kernel_choice *kernels, int metric, size_t threads, size_t rows,
                              size_t columns, size_t width)
{
    const int is_product = metric == LATTICE_DOT || metric == LATTICE_COSINE;
    const int is_packed = is_product && kernels->products->pack_tiles != NULL && columns >= PACKING_COLUMNS;
    const size_t line = LINE_BYTES / sizeof(float), tiles = is_packed ? whole(rows * width, line) : 0;
    const size_t floats = tiles + whole(rows, line), head = whole(threads * sizeof(row_block), LINE_BYTES);
    row_block *blocks = aligned_alloc(LINE_BYTES, head + threads * floats * sizeof(float));
    for (size_t thread = 0; blocks != NULL && thread < threads; thread++) {
        float *room = (float *)((char *)blocks + head) + thread * floats;
        blocks[thread] = (row_block){.tiles = is_packed ? room : NULL, .inverses = room + tiles, .row = SIZE_MAX};
    }
    return blocks;
}

int lattice_scores_of_all(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *a,
                          size_t a_count, const float *b, size_t b_count, size_t width, float *scores)
{
    if (a_count == 0 || b_count == 0)
        return 0;
    const size_t packed = smaller(larger(PACKED_FLOATS / larger(width, 1) / GROUP_COLUMNS, 1) * GROUP_COLUMNS, b_count);
    const size_t block = smaller(rows_of_block(width, A_BYTES), a_count);
    const size_t tasks = pieces(a_count, block) * pieces(packed, GROUP_COLUMNS);
    const size_t threads = threads_for(pool, a_count * b_count * larger(width, 1), tasks);
    float *panels = make_panels(packed, width), *inverses = malloc(packed * sizeof(float));
    row_block *blocks = make_blocks(kernels, metric, threads, block, packed, width);
    const int failed = panels == NULL || inverses == NULL || blocks == NULL;
    for (size_t first = 0; first < b_count && !failed; first += packed) {
        product_work work = {.kernels = kernels, .metric = metric, .a = a, .b = b + first * width, .a_count = a_count,
                             .b_count = smaller(packed, b_count - first), .width = width, .a_rows = block,
                             .stride = b_count, .b_inverses = inverses, .panels = panels, .scores = scores + first,
                             .blocks = blocks};
        work.columns = pieces(work.b_count, GROUP_COLUMNS);
        run(pool, work.b_count * width * sizeof(float), work.columns, pack_some_rows, &work);
        run_in_shares(pool, threads, pieces(a_count, block) * work.columns, multiply_one_block, &work);
    }
    free(blocks);
    free(panels);
    free(inverses);
    return failed ? -1 : 0;
}

/* A block of rows against all queries of a group, into a buffer of the thread; then query by query to its heap. */
static void search_one_block(void *context, int64_t task, int thread)
{
    const product_work *work = context;
    const size_t row = (size_t)task * work->a_rows, count = smaller(work->a_rows, work->a_count - row);
    const float *rows = work->a + row * work->width;
    float *scores = work->scores + (size_t)thread * work->a_rows * work->stride;
    const row_block *kept = block_at(work, row, count, thread);
    const lattice_product product = {
        .metric = work->metric, .width = work->width,
        .a = rows, .tiles = kept->tiles, .a_count = count, .a_inverses = kept->inverses,
        .b = work->b, .panels = work->panels, .b_count = work->b_count, .b_inverses = work->b_inverses,
        .scores = scores, .stride = work->stride,
    };
    work->kernels->products->score(&product);
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
    const size_t group = smaller(PRODUCT_GROUP, query_count), stride = whole(group, LATTICE_PANEL);
    const size_t block = rows_of_block(width, SEARCH_BYTES), tasks = pieces(count, block);
    const size_t threads = threads_for(pool, count * width * group, tasks);
    float *panels = make_panels(group, width), *buffers = malloc((threads * block * stride + 1) * sizeof(float));
    float *inverses = malloc((group + 1) * sizeof(float));
    row_block *blocks = make_blocks(kernels, metric, threads, block, group, width);
    int failed = panels == NULL || buffers == NULL || inverses == NULL || blocks == NULL;
    for (size_t q = 0; q < query_count && !failed; q += group) {
        const size_t here = smaller(group, query_count - q);
        product_work work = {.kernels = kernels, .metric = metric, .a = rows, .b = queries + q * width, .a_count = count,
                             .b_count = here, .width = width, .a_rows = block, .stride = stride,
                             .b_inverses = inverses, .panels = panels, .scores = buffers, .blocks = blocks,
                             .nearest = make_heaps(threads, here, wanted, is_largest)};
        if (work.nearest.memory == NULL) {
            failed = 1;
            break;
        }
        run(pool, here * width * sizeof(float), pieces(here, GROUP_COLUMNS), pack_some_rows, &work);
        run_on(pool, threads, tasks, search_one_block, &work);
        take_all(&work.nearest, wanted, positions + q * (size_t)wanted, scores + q * (size_t)wanted);
        free(work.nearest.memory);
    }
    free(blocks);
    free(panels);
    free(buffers);
    free(inverses);
    return failed ? -1 : 0;
}
