// What the experts of a row give, one result a thread. SHARED 0: y is one chain over the row's experts, y = fma(share, x, y) from 0; `x`
// has n columns an expert, `a` the routes. SHARED 1: y = fma(1 / (1 + exp(-a)), x, b), with one `a` a row.

kernel void moe_add(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const uint index = group * THREADS + lane;
    const uint row = index / r->n;
    const uint column = index % r->n;
    if (row >= r->rows) {
        return;
    }
    device const float *x = arena + r->x + row * r->x_stride + column;
    device const float *a = arena + r->a + row * r->a_stride;
    float y = 0.0f;
    if (SHARED == 1u) {
        y = fma(sigmoid_of(a[0]), x[0], arena[r->b + row * r->b_stride + column]);
    } else {
        for (uint i = 0u; i < r->each; i++) {
            y = fma(a[r->each + i], x[i * r->n], y);
        }
    }
    arena[r->y + row * r->y_stride + column] = y;
}
