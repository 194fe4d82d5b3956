/* Which rows a task has, and the sixteen columns of a row from `i` on: a row's tail is a copy padded with zeros. */
#ifndef LATTICE_ROW_PARTS_H
#define LATTICE_ROW_PARTS_H

#include "lattice/simd.h"

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
