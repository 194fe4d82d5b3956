/* See run.h. Compiled once, for the baseline. */
#include "run.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lattice/cpu.h"

/* Multiply-adds below which waking other threads costs more than they save. */
#define WORTH_THREADS (1 << 20)
/* Rows taken through all layers together: enough to use a weight many times, few enough to stay in L2. */
#define CHUNK_ROWS 192
/* And the fewest worth a thread of their own: a row tile or two. */
#define FEWEST_ROWS 12
#define STACK_FLOATS 8192

#if defined(__x86_64__)
extern const fann_kernel_table fann_kernel_table_baseline, fann_kernel_table_avx2, fann_kernel_table_avx512;
static const fann_kernel_table *const tables[LATTICE_ISA_COUNT] = {&fann_kernel_table_baseline, &fann_kernel_table_avx2,
                                                                   &fann_kernel_table_avx512, NULL};
#elif defined(__aarch64__)
extern const fann_kernel_table fann_kernel_table_baseline, fann_kernel_table_neon;
static const fann_kernel_table *const tables[LATTICE_ISA_COUNT] = {&fann_kernel_table_baseline, NULL, NULL,
                                                                   &fann_kernel_table_neon};
#else
extern const fann_kernel_table fann_kernel_table_baseline;
static const fann_kernel_table *const tables[LATTICE_ISA_COUNT] = {&fann_kernel_table_baseline, NULL, NULL, NULL};
#endif

const fann_kernel_table *fann_kernels(int isa)
{
    return isa >= 0 && isa < LATTICE_ISA_COUNT ? tables[isa] : NULL;
}

static int64_t multiply_adds(const fann_network *network)
{
    int64_t total = 0;
    for (int64_t l = 0; l < network->count; l++)
        total += network->layers[l].inputs * network->layers[l].stride;
    return total;
}

int fann_forward_one(const fann_network *network, const fann_kernel_table *table, const float *x, float *y,
                     fann_fault *fault)
{
    const int64_t floats = 2 * network->widest;
    const uint64_t environment = lattice_float_environment_default();
    int status = -1;
    if (floats <= STACK_FLOATS) {
        float scratch[STACK_FLOATS] __attribute__((aligned(64)));
        status = table->forward(network, x, 0, 1, y, 0, scratch, fault);
    } else {
        float *scratch = malloc((size_t)floats * sizeof(float));
        if (scratch != NULL)
            status = table->forward(network, x, 0, 1, y, 0, scratch, fault);
        free(scratch);
    }
    lattice_float_environment_restore(environment);
    return status;
}

typedef struct {
    const fann_network *network;
    const fann_kernel_table *table;
    const float *x;
    float *y, *scratch;
    int64_t rows, chunks, chunk_floats;
    fann_fault *faults; /* [chunks], row -1 where all is well */
} batch_in_progress;

static void forward_chunk(void *opaque, int64_t chunk, int thread)
{
    const batch_in_progress *batch = opaque;
    const fann_network *network = batch->network;
    const int64_t inputs = network->layers[0].inputs, outputs = network->layers[network->count - 1].outputs;
    const int64_t first = batch->rows * chunk / batch->chunks, end = batch->rows * (chunk + 1) / batch->chunks;
    batch->table->forward(network, batch->x + first * inputs, inputs, end - first, batch->y + first * outputs, outputs,
                          batch->scratch + thread * batch->chunk_floats, &batch->faults[chunk]);
}

int fann_forward_batch(const fann_network *network, const fann_kernel_table *table, lattice_pool *pool, const float *x,
                       int64_t rows, float *y, fann_fault *fault)
{
    if (rows == 0)
        return 1;
    const int64_t work = rows * multiply_adds(network);
    int threads = work >= WORTH_THREADS ? pool->get_threads(pool) : 1;
    int64_t chunk_rows = fann_divide_up(rows, threads);
    if (chunk_rows < FEWEST_ROWS)
        chunk_rows = FEWEST_ROWS;
    if (chunk_rows > CHUNK_ROWS)
        chunk_rows = CHUNK_ROWS;
    const int64_t chunks = fann_divide_up(rows, chunk_rows);
    if (threads > chunks)
        threads = (int)chunks;
    batch_in_progress batch = {.network = network, .table = table, .x = x, .y = y, .rows = rows, .chunks = chunks,
                               .chunk_floats = 2 * chunk_rows * network->widest};
    batch.scratch = malloc((size_t)(threads * batch.chunk_floats) * sizeof(float));
    batch.faults = malloc((size_t)chunks * sizeof(fann_fault));
    int status = batch.scratch != NULL && batch.faults != NULL ? 1 : -1;
    if (status == 1) {
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            batch.faults[chunk].row = -1;
        const int entered = threads > 1 ? pool->enter(pool, threads, 1) : 0;
        if (entered > 1) {
            pool->loop(pool, chunks, forward_chunk, &batch);
        } else {
            const uint64_t environment = lattice_float_environment_default();
            for (int64_t chunk = 0; chunk < chunks; chunk++)
                forward_chunk(&batch, chunk, 0);
            lattice_float_environment_restore(environment);
        }
        if (entered > 0)
            pool->leave(pool);
        for (int64_t chunk = 0; chunk < chunks && status == 1; chunk++)
            if (batch.faults[chunk].row >= 0) {
                *fault = batch.faults[chunk];
                fault->row += rows * chunk / chunks;
                status = 0;
            }
    }
    free(batch.scratch);
    free(batch.faults);
    return status;
}

typedef struct {
    const fann_step *step;
    void (*run)(const fann_step *step, int64_t task);
} step_in_progress;

/* Steps of training flush subnormals: where a network has become sure, the probabilities of other classes, what flows back
 * from them and the squares of such gradients fall below the normal range, and every epoch would take longer than the last. */
static void run_task(void *opaque, int64_t task, int thread)
{
    const step_in_progress *current = opaque;
    (void)thread;
    const uint64_t environment = lattice_float_environment_flush();
    current->run(current->step, task);
    lattice_float_environment_restore(environment);
}

static void run_tasks(const fann_step *step, lattice_pool *pool, int threads, int64_t count,
                      void (*run)(const fann_step *step, int64_t task))
{
    step_in_progress current = {step, run};
    if (threads > 1) {
        pool->loop(pool, count, run_task, &current);
        return;
    }
    for (int64_t task = 0; task < count; task++)
        run_task(&current, task, 0);
}

/* The first value that is not finite, by layer, row and index: one answer whatever task met it. */
static void find_first_fault(const fann_step *step, fann_fault *fault)
{
    const fann_network *network = step->network;
    for (int64_t l = -1; l < network->count; l++) {
        const float *values = l < 0 ? step->x : step->states[l].outputs;
        const int64_t stride = l < 0 ? step->x_stride : step->states[l].stride;
        const int64_t n = l < 0 ? network->layers[0].inputs : network->layers[l].outputs;
        for (int64_t row = 0; row < step->rows; row++)
            for (int64_t i = 0; i < n; i++) {
                const float value = values[row * stride + i];
                if (!(value - value == 0.0f)) {
                    *fault = (fann_fault){l, row, i};
                    return;
                }
            }
    }
    *fault = (fann_fault){network->count - 1, 0, 0};
}

static int enter(lattice_pool *pool, int threads)
{
    return threads > 1 ? pool->enter(pool, threads, 1) : 0;
}

int fann_gradient(const fann_step *step, const fann_kernel_table *table, lattice_pool *pool, int threads, double *loss,
                  double *squares, fann_fault *fault)
{
    const int entered = enter(pool, threads);
    const uint64_t environment = lattice_float_environment_default();
    int status = 1;
    if (step->network->count > 1)
        run_tasks(step, pool, entered, step->block_count, table->transpose);
    run_tasks(step, pool, entered, step->row_tasks, table->rows);
    for (int64_t task = 0; task < step->row_tasks; task++)
        if (step->row_faults[task])
            status = 0;
    if (status == 0) {
        find_first_fault(step, fault);
    } else {
        *loss = 0.0;
        for (int64_t row = 0; row < step->rows; row++)
            *loss += (double)step->row_weights[row] * (double)step->row_losses[row];
        run_tasks(step, pool, entered, step->block_count, table->gradient);
        *squares = 0.0;
        for (int64_t block = 0; block < step->block_count; block++) {
            *squares += step->block_squares[block];
            if (step->block_faults[block])
                status = 2;
        }
    }
    lattice_float_environment_restore(environment);
    if (entered > 0)
        pool->leave(pool);
    return status;
}

void fann_update(const fann_step *step, const fann_kernel_table *table, lattice_pool *pool, int threads)
{
    const int entered = enter(pool, threads);
    const uint64_t environment = lattice_float_environment_default();
    run_tasks(step, pool, entered, step->block_count, table->update);
    lattice_float_environment_restore(environment);
    if (entered > 0)
        pool->leave(pool);
}

void fann_update_flat(const fann_optimizer *optimizer, const fann_kernel_table *table, float *parameters,
                      const float *gradients, float *moment1, float *moment2, int64_t count)
{
    const uint64_t environment = lattice_float_environment_default();
    table->update_flat(optimizer, parameters, gradients, moment1, moment2, count);
    lattice_float_environment_restore(environment);
}
