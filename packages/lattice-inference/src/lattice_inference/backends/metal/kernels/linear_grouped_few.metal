// The product of a pair's row and its expert, few rows: a threadgroup has eight columns of one pair, as linear_few has of its rows. The
// routes `a` say which expert it is. The order of additions depends on the device only. Bound by reads of weights.

template <typename Format>
inline void linear_grouped_few(Step s, Weight w, uint group, uint simd_lane, uint simdgroup) {
    constant Record *r = s.record;
    const uint eights = (r->n + 7u) / 8u;
    const uint pair = group / eights;
    const uint first = group % eights * 8u + simdgroup * 4u;
    if (pair >= r->rows * r->each || first >= r->n) { // of the whole simdgroup
        return;
    }
    const uint expert = min(uint(s.arena[r->a + pair / r->each * r->a_stride + pair % r->each]), r->experts - 1u);
    device const float *x = input_of(s, pair);
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint k = simd_lane * 8u; k < r->k; k += SPAN_OF_EIGHTS) {
        float own[8];
        row8(x, k, r->k, own);
        for (uint i = 0u; i < 4u; i++) {
            const uint row = weight_row(r, expert, first + i);
            float v[8];
            Format::read8(w, row == ~0u ? 0u : row, k, v); // a result of row 0 instead is not put
            for (uint j = 0u; j < 8u; j++) {
                sums[i] = fma(own[j], v[j], sums[i]);
            }
        }
    }
    for (uint i = 0u; i < 4u; i++) {
        const float sum = simd_sum(sums[i]);
        if (simd_lane == i) {
            put_pair(s, pair, expert, first + i, sum);
        }
    }
}

#define LINEAR_GROUPED_FEW(NAME, FORMAT)                                            \
    kernel void NAME(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {                        \
        const Step s = {arena, words, record};                                      \
        const Weight w = {weight, scales, record->first, record->k};                \
        linear_grouped_few<FORMAT>(s, w, group, simd_lane, simdgroup);              \
    }
