// Which EACH experts a row goes through. x: `experts` logits a row, whose place gets the probabilities. y: EACH numbers of experts in
// ascending order, as floats, then their shares. A threadgroup has a row, a thread the experts i, i + 64, ...
//
// An expert is chosen if fewer than EACH have a larger probability, or an equal one and a lower number. Where all are NaN the numbers
// are some that exist, and the shares are NaN.

constant constexpr uint MOST_CHOSEN = 512u;

kernel void moe_route(STEP_BUFFERS, THREAD) {
    threadgroup float parts[SIMDGROUPS];
    threadgroup uint chosen[MOST_CHOSEN];
    constant Record *r = record;
    if (group >= r->rows) { // of the whole threadgroup
        return;
    }
    device float *x = arena + r->x + group * r->x_stride;
    float most = -3.4e38f;
    for (uint e = lane; e < r->experts; e += THREADS) {
        most = max(most, x[e]);
    }
    most = group_max(most, parts, simd_lane, simdgroup);
    float sum = 0.0f;
    for (uint e = lane; e < r->experts; e += THREADS) {
        sum += exp_of(x[e] - most);
    }
    sum = group_sum(sum, parts, simd_lane, simdgroup);
    for (uint e = lane; e < r->experts; e += THREADS) {
        x[e] = exp_of(x[e] - most) / sum;
    }
    for (uint i = lane; i < EACH; i += THREADS) {
        chosen[i] = i; // where NaN leaves places without an expert
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    for (uint e = lane; e < r->experts; e += THREADS) {
        const float own = x[e];
        uint before = 0u;
        for (uint other = 0u; other < r->experts; other++) {
            before += x[other] > own || (x[other] == own && other < e) ? 1u : 0u;
        }
        if (before < EACH && !is_nan(own)) {
            chosen[before] = e;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float share = 1.0f;
    if (NORMALIZED == 1u) {
        share = 0.0f;
        for (uint e = 0u; e < r->experts; e++) { // in ascending order of their numbers
            for (uint i = 0u; i < EACH; i++) {
                share += chosen[i] == e ? x[e] : 0.0f;
            }
        }
    }
    for (uint i = lane; i < EACH; i += THREADS) {
        uint place = 0u;
        for (uint other = 0u; other < EACH; other++) {
            place += chosen[other] < chosen[i] || (chosen[other] == chosen[i] && other < i) ? 1u : 0u;
        }
        device float *y = arena + r->y + group * r->y_stride + place;
        y[0] = float(chosen[i]);
        y[EACH] = x[chosen[i]] / share;
    }
}
