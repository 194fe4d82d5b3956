/* A plain read of memory that somebody else has filled: what the machine gives for just these bytes, in just this place.
 *
 * A library for vector_worker.py. Each thread adds up a share of its own, the same in every pass.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "clock.h"
#include "four_streams.h"

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
    work->sum = read_four_streams(work->start, work->count, work->passes);
}

static void *wait_and_read(void *work)
{
    atomic_fetch_add(&arrived, 1);
    while (!atomic_load(&started))
        sched_yield();
    read_share(work);
    return NULL;
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
