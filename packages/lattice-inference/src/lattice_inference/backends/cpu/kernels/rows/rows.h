/* The rows of a task, and the vectors of a row that need not end with one. */
#ifndef LATTICE_ROWS_H
#define LATTICE_ROWS_H

#include "kernel_functions.h"

/* The rows [first, end) of a task when `total` rows are spread over `tasks`. */
LATTICE_INLINE void task_rows(int64_t total, int64_t task, int64_t tasks, int64_t *first, int64_t *end)
{
    *first = total * task / tasks;
    *end = total * (task + 1) / tasks;
}

LATTICE_INLINE f32x16 load_part(const float *x, int64_t i, int64_t n)
{
    return i + 16 <= n ? f32x16_load(x + i) : f32x16_load_tail(x + i, n - i);
}

LATTICE_INLINE void store_part(float *y, int64_t i, int64_t n, f32x16 value)
{
    if (i + 16 <= n)
        f32x16_store(y + i, value);
    else
        f32x16_store_tail(y + i, value, n - i);
}

#endif
