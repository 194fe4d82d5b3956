/* A plain read of memory that somebody else has filled: what the machine gives for just these bytes, in just this place.
 *
 * A library for vector_worker.py. Each thread adds up a share of its own, the same in every pass, in four streams, for which
 * prefetchers keep more lines on their way than for one. Nothing less can be done to every byte.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "lattice/simd.h"

#define MAX_THREADS 256
#define UNIT 64 /* floats: four streams of whole vectors */

typedef struct {
    const float *start;
    size_t count;
    int passes;
    float sum;
} share;

static atomic_int arrived, started;
static volatile float sink;

static void read_share(share *work)
{
    const size_t stream = work->count / 4;
    f32x16 sums[4] = {f32x16_zero(), f32x16_zero(), f32x16_zero(), f32x16_zero()};
    for (int pass = 0; pass < work->passes; pass++)
        for (size_t at = 0; at < stream; at += 16)
            for (size_t i = 0; i < 4; i++)
                sums[i] = f32x16_add(sums[i], f32x16_load(work->start + i * stream + at));
    float lanes[16];
    f32x16_store(lanes, f32x16_add(f32x16_add(sums[0], sums[1]), f32x16_add(sums[2], sums[3])));
    for (int i = 0; i < 16; i++) /* every lane counts, or the compiler leaves out its loads */
        work->sum += lanes[i];
}

static void *wait_and_read(void *work)
{
    atomic_fetch_add(&arrived, 1);
    while (!atomic_load(&started))
        sched_yield();
    read_share(work);
    return NULL;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Bytes a second, or 0 where the threads cannot be started. */
double read_rows(const void *rows, size_t bytes, int threads, int passes)
{
    pthread_t handles[MAX_THREADS];
    share shares[MAX_THREADS];
    const size_t units = bytes / sizeof(float) / UNIT;
    int others = 0;
    if (threads < 1 || threads > MAX_THREADS)
        return 0;
    atomic_store(&arrived, 0);
    atomic_store(&started, 0);
    for (int i = 0; i < threads; i++) {
        const size_t first = units * (size_t)i / (size_t)threads, end = units * ((size_t)i + 1) / (size_t)threads;
        shares[i] = (share){(const float *)rows + first * UNIT, (end - first) * UNIT, passes, 0.0f};
    }
    while (others < threads - 1 && pthread_create(&handles[others], NULL, wait_and_read, &shares[others + 1]) == 0)
        others++;
    while (atomic_load(&arrived) < others)
        sched_yield();
    const double start = now();
    atomic_store(&started, 1);
    read_share(&shares[0]);
    for (int i = 0; i < others; i++)
        pthread_join(handles[i], NULL);
    const double taken = now() - start;
    for (int i = 0; i < threads; i++)
        sink = shares[i].sum;
    return others < threads - 1 ? 0 : (double)(units * UNIT * sizeof(float)) * passes / taken;
}
