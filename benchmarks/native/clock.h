/* Seconds on a clock that only goes forward. */
#ifndef BENCHMARKS_CLOCK_H
#define BENCHMARKS_CLOCK_H

#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#endif
