/* What this machine can do: fused multiply-adds a second and bytes read from memory a second, by a number of threads.
 *
 * A server for peak.py and forward.py. Reads lines "fma THREADS SECONDS", with other words for "fma", and answers each with
 * a rate, or with 0 where the compiler was not told of the instruction:
 *   fma   CHAINS independent chains of vector multiply-adds that stay in registers; operations a second, an FMA being two.
 *         CHAINS covers latency times throughput (4 cycles x 2 units today) and leaves registers for the two operands.
 *   bfloat16-dot    the same of AVX512-BF16's products of pairs
 *   bfloat16-tiles  products of AMX tiles, four chains
 *   read  each thread sums a stretch of memory of its own that no cache holds; bytes a second.
 *   read@BYTES  the same over BYTES in all, again and again: what the cache or memory that holds so much gives.
 * All threads start together; the clock stops when the last one ends.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clock.h"
#include "four_streams.h"
#include "lattice/simd.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define CHAINS 12
#define MAX_THREADS 256
#define READ_BYTES ((size_t)256 << 20) /* of each thread: several times any cache, so each pass reads memory */

typedef struct {
    int index;
    int64_t passes;
    float result;
} job;

static size_t read_bytes = READ_BYTES;
static atomic_int arrived, started;
static float *stretches[MAX_THREADS];
static volatile float sink;

/* Where the threads wait for each other (macOS has no pthread_barrier_t). */
static void start_together(void)
{
    atomic_fetch_add(&arrived, 1);
    while (!atomic_load(&started))
        sched_yield();
}

static void *multiply_add(void *opaque)
{
    job *work = opaque;
    const vf factor = vf_set1(0.999f), term = vf_set1(0.001f);
    vf sums[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sums[i] = vf_set1((float)i);
    start_together();
    for (int64_t pass = 0; pass < work->passes; pass++) {
        LATTICE_UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = vf_fma(sums[i], factor, term);
    }
    float lanes[VF_LANES];
    for (int i = 0; i < CHAINS; i++) {
        vf_store(lanes, sums[i]);
        work->result += lanes[0];
    }
    return NULL;
}

static void *multiply_pairs(void *opaque)
{
    job *work = opaque;
    start_together();
#if defined(__AVX512BF16__)
    const __m512bh factor = (__m512bh)_mm512_set1_epi32(0x3f803f80), term = (__m512bh)_mm512_set1_epi32(0x3a833a83);
    __m512 sums[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (int64_t pass = 0; pass < work->passes; pass++) {
        LATTICE_UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], factor, term);
    }
    for (int i = 0; i < CHAINS; i++)
        work->result += _mm512_reduce_add_ps(sums[i]);
#endif
    return NULL;
}

static void *multiply_tiles(void *opaque)
{
    job *work = opaque;
#if defined(__AMX_BF16__) && defined(__linux__)
    syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the tiles' data */);
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } shape = {.palette = 1, .columns = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    start_together();
    for (int64_t pass = 0; pass < work->passes; pass++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
#else
    start_together();
#endif
    work->result += 1;
    return NULL;
}

static void *read_memory(void *opaque)
{
    job *work = opaque;
    const size_t count = read_bytes / sizeof(float);
    if (stretches[work->index] == NULL) {
        stretches[work->index] = aligned_alloc((size_t)2 << 20, READ_BYTES);
        if (stretches[work->index] == NULL) {
            fputs("out of memory\n", stderr);
            exit(1);
        }
#ifdef MADV_HUGEPAGE
        madvise(stretches[work->index], READ_BYTES, MADV_HUGEPAGE); /* the library's weights lie in huge pages too */
#endif
        /* written by the thread that reads it, so that pages are placed near it; not zero, or no page need be there */
        memset(stretches[work->index], 1, READ_BYTES);
    }
    const float *x = stretches[work->index];
    start_together();
    work->result = read_four_streams(x, count, work->passes);
    return NULL;
}

/* Seconds that `threads` threads take for `passes` passes each. */
static double run(void *(*body)(void *), int threads, int64_t passes)
{
    pthread_t handles[MAX_THREADS];
    job jobs[MAX_THREADS];
    atomic_store(&arrived, 0);
    atomic_store(&started, 0);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (job){i, passes, 0.0f};
        if (pthread_create(&handles[i], NULL, body, &jobs[i]) != 0) {
            fputs("cannot start a thread\n", stderr);
            exit(1);
        }
    }
    while (atomic_load(&arrived) < threads)
        sched_yield();
    const double start = now();
    atomic_store(&started, 1);
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        sink = jobs[i].result;
    }
    return now() - start;
}

#if defined(__AVX512BF16__)
#define PAIRS_OPERATIONS (2.0 * CHAINS * 32)
#else
#define PAIRS_OPERATIONS 0.0
#endif
#if defined(__AMX_BF16__) && defined(__linux__)
#define TILES_OPERATIONS (2.0 * 4 * 16 * 16 * 32)
#else
#define TILES_OPERATIONS 0.0
#endif

typedef struct {
    const char *name;
    void *(*body)(void *);
    double operations; /* of a pass */
} measured;

static const measured kinds[] = {
    {"fma", multiply_add, 2.0 * CHAINS * VF_LANES},
    {"bfloat16-dot", multiply_pairs, PAIRS_OPERATIONS},
    {"bfloat16-tiles", multiply_tiles, TILES_OPERATIONS},
};

int main(void)
{
    char what[32];
    int threads;
    double seconds;
    while (scanf("%31s %d %lf", what, &threads, &seconds) == 3) {
        const measured *arithmetic = NULL;
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
            if (strcmp(what, kinds[i].name) == 0)
                arithmetic = &kinds[i];
        if (threads < 1 || threads > MAX_THREADS)
            return 2;
        read_bytes = READ_BYTES;
        if (strncmp(what, "read@", 5) == 0) {
            read_bytes = strtoull(what + 5, NULL, 10) / (size_t)threads / 256 * 256; /* whole blocks of four streams */
            if (read_bytes == 0 || read_bytes > READ_BYTES)
                return 2;
        } else if (arithmetic == NULL && strcmp(what, "read") != 0) {
            return 2;
        }
        if (arithmetic != NULL && arithmetic->operations == 0) {
            puts("0");
            fflush(stdout);
            continue;
        }
        void *(*body)(void *) = arithmetic != NULL ? arithmetic->body : read_memory;
        const double work = arithmetic != NULL ? arithmetic->operations : (double)read_bytes;
        int64_t passes = arithmetic != NULL ? 1 << 18 : 1;
        double taken = run(body, threads, passes);
        while (taken < seconds) { /* lengthen until the run is as long as was asked for */
            const double more = taken > 0 ? 1.1 * seconds / taken : 2.0;
            passes = (int64_t)((double)passes * (more < 2.0 ? 2.0 : more > 64.0 ? 64.0 : more));
            taken = run(body, threads, passes);
        }
        printf("%.6e\n", work * (double)passes * threads / taken);
        fflush(stdout);
    }
    return 0;
}
