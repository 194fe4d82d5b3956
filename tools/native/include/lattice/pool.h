/* A small pool of threads for one process: parallel loops inside a region, idle threads asleep, safe across fork().
 *
 * A *region* is a stretch of work that owns the workers; inside it the owner starts any number of *loops* one after the
 * other. A loop is `count` tasks; owner and workers claim tasks one at a time through one 64-bit word
 *
 *     epoch:24 | count:20 | next:20
 *
 * by compare-and-swap, and the owner returns when all tasks are done. A worker that wakes late, or is descheduled between
 * two tasks, holds up nobody: the others take its share. Within a region workers spin between loops (about 0.2 us from
 * publishing to the first claim); after it they spin briefly and sleep on a condition variable.
 *
 * Who gets which task never changes a result: a task writes only its own outputs.
 *
 * - One caller owns the workers at a time. `enter(pool, limit, wait)` queues for them or, with wait = 0, reports that they
 *   are taken; the caller then runs its tasks alone. At most `limit` threads take part, the owner included, and the number
 *   that a task is given is below it: a region of few threads keeps out the workers that are still awake from one of many.
 * - A task never enters with wait = 1: it would wait for the region that waits for it.
 * - After fork() the child starts with no workers and creates its own at the first region.
 * - Threads never outlive their use: none is created before the first region that can use one.
 * - Each thread computes under the default floating-point environment (round to nearest, subnormals kept), whatever the
 *   caller or another library has set; the caller's environment is restored when the region ends.
 */
#ifndef LATTICE_POOL_H
#define LATTICE_POOL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define LATTICE_POOL_ABI 1
#define LATTICE_MAX_THREADS 256
#define LATTICE_MAX_TASKS ((1 << 20) - 1)

typedef void (*lattice_task)(void *context, int64_t task, int thread);

typedef struct lattice_pool {
    int abi; /* LATTICE_POOL_ABI of the code that made this pool */
    int size;
    /* The three doors that every package uses, so that a pool made by one can serve another. */
    int (*enter)(struct lattice_pool *pool, int limit, int wait);
    void (*loop)(struct lattice_pool *pool, int64_t count, lattice_task task, void *context);
    void (*leave)(struct lattice_pool *pool);
    int (*get_threads)(struct lattice_pool *pool);
    void (*set_threads)(struct lattice_pool *pool, int threads);

    _Atomic int threads;          /* how many threads a region may use, the owner included */
    pthread_mutex_t owner;        /* held from enter to leave */
    pthread_mutex_t sleep;        /* guards `started` and the condition variable */
    pthread_cond_t wake;
    int started;                  /* workers that exist in this process */
    _Atomic int region;           /* odd while a region is open: workers stay awake */
    _Atomic int allowed;          /* workers with an index below this one may take part in the open region */
    _Atomic uint64_t word;        /* epoch | count | next */
    _Atomic int64_t base;         /* number of the loop's first task: longer loops run in several epochs */
    _Atomic int64_t done;
    _Atomic(lattice_task) task;
    _Atomic(void *) context;
    uint64_t saved_environment;   /* floating-point control of the owner */
} lattice_pool;

static inline void lattice_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sets the default floating-point environment and returns the previous control word. */
static inline uint64_t lattice_float_environment_default(void)
{
#if defined(__x86_64__)
    const uint64_t before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* all exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero */
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
#else
    return 0;
#endif
}

/* The same with subnormal numbers taken for zero, read or written: an operation on one can take a hundred times as long. */
static inline uint64_t lattice_float_environment_flush(void)
{
    const uint64_t before = lattice_float_environment_default();
#if defined(__x86_64__)
    _mm_setcsr(0x9fc0); /* flush-to-zero and denormals-are-zero as well */
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(1) << 24));
#endif
    return before;
}

static inline void lattice_float_environment_restore(uint64_t saved)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(saved));
#else
    (void)saved;
#endif
}

#define LATTICE_POOL_FIELD 20
#define LATTICE_POOL_MASK ((UINT64_C(1) << LATTICE_POOL_FIELD) - 1)

/* Claims and runs tasks of the current loop until none is left, or until a region begins that has no place for `thread`. */
static void lattice_pool_drain(lattice_pool *pool, int thread)
{
    for (;;) {
        uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
        const int64_t count = (int64_t)((word >> LATTICE_POOL_FIELD) & LATTICE_POOL_MASK);
        const int64_t next = (int64_t)(word & LATTICE_POOL_MASK);
        if (next >= count)
            return;
        /* Read between the word and the claim, like `allowed`: an owner replaces them only after every task of this epoch is
         * done, and the claim below fails if the epoch has moved on. So a claim that succeeds had the values of its epoch. */
        if (thread >= atomic_load_explicit(&pool->allowed, memory_order_relaxed))
            return;
        lattice_task task = atomic_load_explicit(&pool->task, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        const int64_t base = atomic_load_explicit(&pool->base, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_relaxed))
            continue;
        task(context, base + next, thread);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    }
}

typedef struct {
    lattice_pool *pool;
    int thread;
} lattice_worker_argument;

static void *lattice_pool_worker(void *opaque)
{
    lattice_worker_argument argument = *(lattice_worker_argument *)opaque;
    free(opaque);
    lattice_pool *pool = argument.pool;
    lattice_float_environment_default();
    unsigned idle = 0;
    int last_region = -1;
    for (;;) {
        const int region = atomic_load_explicit(&pool->region, memory_order_acquire);
        if (region != last_region) {
            last_region = region;
            idle = 0;
        }
        if ((region & 1) && argument.thread < atomic_load_explicit(&pool->allowed, memory_order_relaxed)) {
            lattice_pool_drain(pool, argument.thread);
            if (++idle % 2048 == 0)
                sched_yield(); /* the owner may be waiting for this very processor */
            lattice_pause();
            continue;
        }
        if (++idle < 65536) {
            lattice_pause();
            continue;
        }
        pthread_mutex_lock(&pool->sleep);
        while (atomic_load_explicit(&pool->region, memory_order_acquire) == region)
            pthread_cond_wait(&pool->wake, &pool->sleep);
        pthread_mutex_unlock(&pool->sleep);
    }
    return NULL;
}

static void lattice_pool_start_workers(lattice_pool *pool, int wanted)
{
    /* Signals belong to the program's own threads, but for those that a thread raises by a fault of its own: blocked, they
     * would end the process without the program's handler (faulthandler, a sanitizer) having a word. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_mutex_lock(&pool->sleep);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    while (pool->started < wanted) {
        lattice_worker_argument *argument = malloc(sizeof *argument);
        if (argument == NULL)
            break;
        *argument = (lattice_worker_argument){pool, pool->started + 1};
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        const int failed = pthread_create(&thread, &attributes, lattice_pool_worker, argument);
        pthread_attr_destroy(&attributes);
        if (failed) { /* the loops are right with any number of workers */
            free(argument);
            break;
        }
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&pool->sleep);
}

/* Opens a region for at most `limit` threads. Returns how many may take part (at least 1: the caller owns the workers), or
 * 0 when `wait` is 0 and somebody else owns them. */
static int lattice_pool_enter(lattice_pool *pool, int limit, int wait)
{
    if (pthread_mutex_trylock(&pool->owner) != 0) {
        if (!wait)
            return 0;
        pthread_mutex_lock(&pool->owner);
    }
    pool->saved_environment = lattice_float_environment_default();
    int threads = atomic_load_explicit(&pool->threads, memory_order_relaxed);
    if (threads > limit)
        threads = limit > 0 ? limit : 1;
    if (threads > 1) {
        if (pool->started < threads - 1)
            lattice_pool_start_workers(pool, threads - 1);
        atomic_store_explicit(&pool->allowed, threads, memory_order_relaxed);
        pthread_mutex_lock(&pool->sleep);
        atomic_fetch_add_explicit(&pool->region, 1, memory_order_release);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->sleep);
    }
    return threads;
}

/* Runs task(context, 0 .. count-1, thread) on the owner (thread 0) and the workers; returns when all are done. */
static void lattice_pool_loop(lattice_pool *pool, int64_t count, lattice_task task, void *context)
{
    if (count <= 1 || !(atomic_load_explicit(&pool->region, memory_order_relaxed) & 1)) {
        for (int64_t i = 0; i < count; i++)
            task(context, i, 0);
        return;
    }
    for (int64_t base = 0; base < count; base += LATTICE_MAX_TASKS) {
        const int64_t batch = count - base < LATTICE_MAX_TASKS ? count - base : LATTICE_MAX_TASKS;
        atomic_store_explicit(&pool->task, task, memory_order_relaxed);
        atomic_store_explicit(&pool->context, context, memory_order_relaxed);
        atomic_store_explicit(&pool->base, base, memory_order_relaxed);
        atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
        const uint64_t epoch = (atomic_load_explicit(&pool->word, memory_order_relaxed) >> 40) + 1;
        atomic_store_explicit(&pool->word, (epoch << 40) | ((uint64_t)batch << LATTICE_POOL_FIELD), memory_order_release);
        lattice_pool_drain(pool, 0);
        for (int spin = 1; atomic_load_explicit(&pool->done, memory_order_acquire) < batch; spin++) {
            if (spin % 2048 == 0)
                sched_yield();
            lattice_pause();
        }
    }
}

static void lattice_pool_leave(lattice_pool *pool)
{
    if (atomic_load_explicit(&pool->region, memory_order_relaxed) & 1)
        atomic_fetch_add_explicit(&pool->region, 1, memory_order_release);
    lattice_float_environment_restore(pool->saved_environment);
    pthread_mutex_unlock(&pool->owner);
}

static int lattice_pool_get_threads(lattice_pool *pool)
{
    return atomic_load_explicit(&pool->threads, memory_order_relaxed);
}

/* Counts for regions that begin later; an open one keeps its threads. */
static void lattice_pool_set_threads(lattice_pool *pool, int threads)
{
    const int usable = threads < 1 ? 1 : threads > LATTICE_MAX_THREADS ? LATTICE_MAX_THREADS : threads;
    atomic_store_explicit(&pool->threads, usable, memory_order_relaxed);
}

static lattice_pool *lattice_pool_of_process; /* what the fork handler resets; set only in the module that made the pool */

static void lattice_pool_reset(lattice_pool *pool)
{
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->sleep, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->started = 0;
    atomic_store(&pool->region, 0);
    atomic_store(&pool->allowed, 0);
    atomic_store(&pool->word, 0);
    atomic_store(&pool->done, 0);
}

static void lattice_pool_after_fork(void)
{
    lattice_pool_reset(lattice_pool_of_process);
}

/* Makes the pool of this process with room for `threads` threads. Returns NULL when memory is short. */
static inline lattice_pool *lattice_pool_create(int threads)
{
    lattice_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->abi = LATTICE_POOL_ABI;
    pool->size = (int)sizeof *pool;
    pool->enter = lattice_pool_enter;
    pool->loop = lattice_pool_loop;
    pool->leave = lattice_pool_leave;
    pool->get_threads = lattice_pool_get_threads;
    pool->set_threads = lattice_pool_set_threads;
    lattice_pool_set_threads(pool, threads);
    lattice_pool_reset(pool);
    lattice_pool_of_process = pool;
    if (pthread_atfork(NULL, NULL, lattice_pool_after_fork) != 0) {
        free(pool);
        return NULL;
    }
    return pool;
}

#endif
