// y[t, n] += sum over j of B[n, j] scratch[t, j], for the rows that have this adapter: one chain over j that goes on from y, one result
// a thread.

kernel void low_rank_up(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint rank = uint(scales[1]);
    const uint index = group * THREADS + lane;
    const uint row = index / r->n;
    const uint column = index % r->n;
    if (row >= r->rows || !has_adapter(s, scales, row)) {
        return;
    }
    device float *y = arena + r->y + row * r->y_stride + column;
    float sum = *y;
    for (uint j = 0u; j < rank; j++) {
        sum = fma(factor_element(weight, column * rank + j), arena[r->scratch + row * rank + j], sum);
    }
    *y = sum;
}
