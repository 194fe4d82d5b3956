// One result a thread: KIND 0: y = x + a; 1: y = x * a; 2: y = silu(x) * a; 3: y = the activation ACTIVATION of x.

kernel void elementwise(STEP_BUFFERS, THREAD) {
    constant Record *r = record;
    const uint index = group * THREADS + lane;
    const uint row = index / r->n;
    const uint column = index % r->n;
    if (row >= r->rows) {
        return;
    }
    const float x = arena[r->x + row * r->x_stride + column];
    float y;
    if (KIND == 3u) {
        y = activated(ACTIVATION, x);
    } else {
        const float a = arena[r->a + row * r->a_stride + column];
        y = KIND == 0u ? x + a : KIND == 1u ? x * a : silu_of(x) * a;
    }
    arena[r->y + row * r->y_stride + column] = y;
}
