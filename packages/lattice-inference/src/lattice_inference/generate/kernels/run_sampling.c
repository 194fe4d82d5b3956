/* See sampling.h. Compiled once, for the baseline. */
#include "lattice/pool.h" /* first: it says which of the system's functions there are */

#include "lattice/cpu.h"
#include "sampling.h"
#include "scratch.h"

#if defined(__x86_64__)
extern const lattice_sampling_kernels lattice_sampling_kernels_baseline, lattice_sampling_kernels_avx2,
    lattice_sampling_kernels_avx512;
static const lattice_sampling_kernels *const tables[LATTICE_ISA_COUNT] = {
    &lattice_sampling_kernels_baseline, &lattice_sampling_kernels_avx2, &lattice_sampling_kernels_avx512, NULL};
#elif defined(__aarch64__)
extern const lattice_sampling_kernels lattice_sampling_kernels_baseline, lattice_sampling_kernels_neon;
static const lattice_sampling_kernels *const tables[LATTICE_ISA_COUNT] = {&lattice_sampling_kernels_baseline, NULL, NULL,
                                                                          &lattice_sampling_kernels_neon};
#else
extern const lattice_sampling_kernels lattice_sampling_kernels_baseline;
static const lattice_sampling_kernels *const tables[LATTICE_ISA_COUNT] = {&lattice_sampling_kernels_baseline, NULL, NULL,
                                                                          NULL};
#endif

const lattice_sampling_kernels *lattice_sampling_table(int isa)
{
    return isa >= 0 && isa < LATTICE_ISA_COUNT ? tables[isa] : NULL;
}

int64_t lattice_sampling_bytes(int64_t vocabulary)
{
    lattice_scratch ignored;
    return lattice_lay_out(NULL, vocabulary, &ignored);
}

typedef struct {
    lattice_row *rows;
    const lattice_sampling_kernels *kernels;
    char *scratch;
    int64_t bytes;
} sampling_in_progress;

static void sample_one(void *opaque, int64_t task, int thread)
{
    const sampling_in_progress *work = opaque;
    work->kernels->sample(&work->rows[task], work->scratch + thread * work->bytes);
}

void lattice_sample_rows(lattice_row *rows, int64_t count, const lattice_sampling_kernels *kernels,
                         struct lattice_pool *pool, int threads, char *scratch, int64_t bytes)
{
    sampling_in_progress work = {rows, kernels, scratch, bytes};
    /* one row wakes no threads, and rows do not queue behind another caller's step */
    const int entered = count > 1 && threads > 1 ? pool->enter(pool, threads, 0) : 0;
    const uint64_t environment = lattice_float_environment_default();
    if (entered > 1)
        pool->loop(pool, count, sample_one, &work);
    else
        for (int64_t i = 0; i < count; i++)
            sample_one(&work, i, 0);
    lattice_float_environment_restore(environment);
    if (entered > 0)
        pool->leave(pool);
}
