// One row for each sequence: MODE 0: its first, 1: its last, 2: the mean, added up in order. A thread has one column.

kernel void pool(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const uint index = group * THREADS + lane;
    const uint sequence = index / r->n;
    const uint column = index % r->n;
    if (sequence >= r->rows) {
        return;
    }
    const uint first = words[words[STEP_BOUNDS] + sequence];
    const uint end = words[words[STEP_BOUNDS] + sequence + 1u];
    device const float *x = arena + r->x + column;
    float y = 0.0f;
    if (MODE == 0u) {
        y = x[first * r->x_stride];
    } else if (MODE == 1u) {
        y = x[(end - 1u) * r->x_stride];
    } else {
        for (uint row = first; row < end; row++) {
            y += x[row * r->x_stride];
        }
        y /= float(end - first);
    }
    arena[r->y + sequence * r->y_stride + column] = y;
}
