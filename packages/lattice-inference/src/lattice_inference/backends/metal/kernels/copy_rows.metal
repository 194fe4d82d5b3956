// Rows that the batch names: where FROM_STEP is 0, y[i] = x[ids[i]]; else y[i] is row i of a table that the host has put into the
// step's inputs (rope_angles, which needs float64).

kernel void copy_rows(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const uint index = group * THREADS + lane;
    const uint row = index / r->n;
    const uint column = index % r->n;
    if (row >= r->rows) {
        return;
    }
    const uint begin = words[r->section];
    device float *y = arena + r->y + row * r->y_stride + column;
    if (FROM_STEP == 1u) {
        *y = as_type<float>(words[begin + index]);
    } else {
        *y = arena[r->x + words[begin + row] * r->x_stride + column];
    }
}
