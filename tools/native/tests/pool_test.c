/* Tests of lattice/pool.h by itself: `pool_test ROUNDS` runs all of it, the larger ROUNDS the longer. Made to be run under
 * ThreadSanitizer as well: a task writes plain (not atomic) memory of its own and of its thread, so that two threads under
 * one number, or a task run twice, are races it can see. */
#include "lattice/pool.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLERS 4
#define MOST_THREADS 6

static lattice_pool *pool;

#define CHECK(condition, ...)                                                                                                  \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                    \
            fprintf(stderr, __VA_ARGS__);                                                                                      \
            fputc('\n', stderr);                                                                                               \
            _exit(1);                                                                                                          \
        }                                                                                                                      \
    } while (0)

typedef struct {
    int64_t count;
    int threads;                    /* no thread of this number or above may take part */
    unsigned char *runs;            /* [count]: how often each task ran */
    int64_t of_thread[LATTICE_MAX_THREADS]; /* sum of the tasks' numbers, by thread */
} checked_loop;

static void run_checked(void *context, int64_t task, int thread)
{
    checked_loop *loop = context;
    CHECK(task >= 0 && task < loop->count, "task %lld of %lld", (long long)task, (long long)loop->count);
    CHECK(thread >= 0 && thread < loop->threads, "thread %d of %d", thread, loop->threads);
    loop->runs[task]++;
    loop->of_thread[thread] += task;
    if (task % 64 == 0)
        CHECK(pool->enter(pool, 4, 0) == 0, "somebody entered a pool that is taken");
}

/* One loop of `count` tasks in a region of `threads`: every task runs once, on a thread that may take part. */
static void check_loop(int64_t count, int threads)
{
    checked_loop loop = {.count = count, .threads = threads, .runs = calloc((size_t)count + 1, 1)};
    CHECK(loop.runs != NULL, "memory");
    pool->loop(pool, count, run_checked, &loop);
    int64_t sum = 0;
    for (int i = 0; i < LATTICE_MAX_THREADS; i++)
        sum += loop.of_thread[i];
    CHECK(sum == count * (count - 1) / 2, "sum %lld of %lld tasks", (long long)sum, (long long)count);
    for (int64_t i = 0; i < count; i++)
        CHECK(loop.runs[i] == 1, "task %lld ran %d times", (long long)i, loop.runs[i]);
    free(loop.runs);
}

static unsigned next_random(unsigned *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

static void test_counts_of_all_sizes(void)
{
    static const int64_t counts[] = {0, 1, 2, 3, 63, 1000, LATTICE_MAX_TASKS, LATTICE_MAX_TASKS + 1, (1 << 20) + 1,
                                     2 * (int64_t)LATTICE_MAX_TASKS + 7};
    const int threads = pool->enter(pool, 4, 1);
    CHECK(threads == 4, "%d threads", threads);
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check_loop(counts[i], threads);
    pool->leave(pool);
}

/* A region may have fewer threads than the one before it, and a worker may still be awake from that one. */
static void *call_often(void *rounds)
{
    unsigned state = (unsigned)(uintptr_t)&rounds;
    for (int64_t i = 0; i < *(int64_t *)rounds; i++) {
        const int limit = 1 + (int)(next_random(&state) % MOST_THREADS), wait = next_random(&state) % 4 != 0;
        const int threads = pool->enter(pool, limit, wait);
        CHECK(threads <= limit && (threads > 0 || !wait), "%d threads for a limit of %d", threads, limit);
        if (threads == 0)
            continue;
        for (unsigned loops = next_random(&state) % 8; loops > 0; loops--)
            check_loop(next_random(&state) % 200, threads);
        pool->leave(pool);
    }
    return NULL;
}

static _Atomic int finished;

static void *change_thread_count(void *unused)
{
    unsigned state = 7;
    while (!atomic_load(&finished)) {
        pool->set_threads(pool, 1 + (int)(next_random(&state) % MOST_THREADS));
        usleep(50);
    }
    return unused;
}

static void fork_and_compute(void)
{
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        alarm(60);
        pool->set_threads(pool, 4);
        int64_t rounds = 20;
        call_often(&rounds);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with status %x", status);
}

static void test_many_callers(int64_t rounds, int forks)
{
    pthread_t callers[CALLERS], changer;
    atomic_store(&finished, 0);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&callers[i], NULL, call_often, &rounds) == 0, "pthread_create");
    CHECK(pthread_create(&changer, NULL, change_thread_count, NULL) == 0, "pthread_create");
    for (int i = 0; i < forks; i++)
        fork_and_compute();
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    atomic_store(&finished, 1);
    pthread_join(changer, NULL);
}

static void test_thread_counts_out_of_range_are_cut(void)
{
    pool->set_threads(pool, -3);
    CHECK(pool->get_threads(pool) == 1, "%d threads", pool->get_threads(pool));
    pool->set_threads(pool, 100000);
    CHECK(pool->get_threads(pool) == LATTICE_MAX_THREADS, "%d threads", pool->get_threads(pool));
    pool->set_threads(pool, 4);
    CHECK(pool->enter(pool, -1, 1) == 1, "a limit below one leaves the caller");
    check_loop(100, 1);
    pool->leave(pool);
}

#if defined(__x86_64__)
static void check_environment(void *context, int64_t task, int thread)
{
    (void)context, (void)task, (void)thread;
    CHECK((_mm_getcsr() & ~0x3fu) == 0x1f80, "MXCSR %x in a task", _mm_getcsr());
}

static void test_float_environment_is_the_default_and_put_back(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
    pool->enter(pool, 4, 1);
    pool->loop(pool, 1000, check_environment, NULL);
    pool->leave(pool);
    CHECK((_mm_getcsr() & 0x8040) == 0x8040, "MXCSR %x after the region", _mm_getcsr());
    _mm_setcsr(before);
}
#endif

#if defined(__linux__)
/* After a region every worker goes to sleep: the kernel's word for each thread but this one becomes S. */
static void test_idle_threads_sleep(void)
{
    for (int attempt = 0;; attempt++) {
        int awake = 0;
        DIR *tasks = opendir("/proc/self/task");
        CHECK(tasks != NULL, "/proc/self/task");
        for (struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
            char path[300], state = 'S';
            snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
            FILE *file = atol(entry->d_name) > 0 && atol(entry->d_name) != (long)getpid() ? fopen(path, "r") : NULL;
            if (file == NULL)
                continue;
            if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
                state = 'S';
            awake += state != 'S';
            fclose(file);
        }
        closedir(tasks);
        if (awake == 0)
            return;
        CHECK(attempt < 1000, "%d idle threads are awake", awake);
        usleep(10000);
    }
}
#endif

int main(int count, char **arguments)
{
    const int64_t rounds = count > 1 ? atoll(arguments[1]) : 1000;
    const int forks = count > 2 ? atoi(arguments[2]) : 10;
    pool = lattice_pool_create(4);
    CHECK(pool != NULL, "memory");
    test_counts_of_all_sizes();
#if defined(__linux__)
    test_idle_threads_sleep();
#endif
    test_many_callers(rounds, forks);
    test_thread_counts_out_of_range_are_cut();
#if defined(__x86_64__)
    test_float_environment_is_the_default_and_put_back();
#endif
    printf("pool: ok\n");
    return 0;
}
