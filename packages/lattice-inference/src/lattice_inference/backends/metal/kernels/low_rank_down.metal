// scratch[t, j] = scale * sum over k of A[j, k] x[t, k], for the rows that have this adapter. A threadgroup has one j of one row; the
// order of additions depends on the device only, so a row has the same bits in any company.

kernel void low_rank_down(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {
    threadgroup float parts[SIMDGROUPS];
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint rank = uint(scales[1]);
    const uint row = group / rank;
    if (row >= r->rows || !has_adapter(s, scales, row)) { // of the whole threadgroup
        return;
    }
    device const float *x = arena + r->x + row * r->x_stride;
    const uint a = group % rank * r->k;
    float sum = 0.0f;
    for (uint k = lane; k < r->k; k += THREADS) {
        sum = fma(x[k], factor_element(weight, a + k), sum);
    }
    sum = group_sum(sum, parts, simd_lane, simdgroup);
    if (lane == 0u) {
        arena[r->scratch + group] = scales[2] * sum;
    }
}
