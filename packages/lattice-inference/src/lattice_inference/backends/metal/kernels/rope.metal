// Rotates pairs of each head's dimensions; see the op in graph/ops.py. A thread has one result, so y must not be x. `a` holds the angles.

kernel void rope(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint width = r->heads * r->head_dim;
    const uint index = group * THREADS + lane;
    const uint row = index / width;
    const uint column = index % width;
    if (row >= r->rows) {
        return;
    }
    device const float *x = arena + r->x + row * r->x_stride + column;
    const float y = rotated(s, x, column % r->head_dim, arena + r->a + row * r->a_stride);
    arena[r->y + row * r->y_stride + column] = y;
}
