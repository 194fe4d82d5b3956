// y[t, n] = sum over k of x[t, k] weight[n, k]: up to ROWS rows. A threadgroup has eight columns n, each of its two simdgroups four, and
// reads their weights once for all rows.
//
//   thread i of a simdgroup:  k = 8 i, ... 8 i + 7, then 256 further on, ...   ->  ROWS x 4 sums, in registers as x is
//   then the simdgroup adds up its threads' sums, and thread 4 t + n has the result of row t and column n
//
// Where GATED is 1 the four are two columns of gates and the same two of the other half.
//
// The order of additions depends on the device only. Bound by reads of weights.

template <typename Format, uint ROWS>
inline void linear_few(Step s, Weight w, device const float *bias, uint group, uint simd_lane, uint simdgroup) {
    constant Record *r = s.record;
    const uint width = GATED == 1u ? 2u : 4u;
    const uint first = (group * SIMDGROUPS + simdgroup) * width;
    if (first >= r->n) { // of the whole simdgroup
        return;
    }
    uint n[4];
    for (uint i = 0u; i < 4u; i++) {
        n[i] = min(first + i % width, r->n - 1u) + (i < width ? 0u : r->n);
    }
    float sums[ROWS][4];
    for (uint t = 0u; t < ROWS; t++) {
        for (uint i = 0u; i < 4u; i++) {
            sums[t][i] = 0.0f;
        }
    }
    for (uint k = simd_lane * 8u; k < r->k; k += SPAN_OF_EIGHTS) {
        float x[ROWS][8];
        for (uint t = 0u; t < ROWS; t++) {
            row8(s.arena + r->x + min(t, r->rows - 1u) * r->x_stride, k, r->k, x[t]);
        }
        for (uint i = 0u; i < 4u; i++) {
            float v[8];
            Format::read8(w, n[i], k, v);
            for (uint t = 0u; t < ROWS; t++) {
                for (uint j = 0u; j < 8u; j++) {
                    sums[t][i] = fma(x[t][j], v[j], sums[t][i]);
                }
            }
        }
    }
    float own[2] = {0.0f, 0.0f};
    for (uint t = 0u; t < ROWS; t++) {
        for (uint i = 0u; i < 4u; i++) {
            const float sum = simd_sum(sums[t][i]);
            if (simd_lane == t * width + i % width) {
                own[i / width] = sum;
            }
        }
    }
    const uint row = simd_lane / width;
    const uint column = first + simd_lane % width;
    if (row < ROWS && row < r->rows && column < r->n) {
        if (GATED == 1u) {
            finish_gated(s, bias, row, column, own[0], own[1]);
        } else {
            finish(s, bias, row, column, own[0]);
        }
    }
}

#define LINEAR_FEW(NAME, FORMAT, ROWS)                                              \
    kernel void NAME(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {                        \
        const Step s = {arena, words, record};                                      \
        const Weight w = {weight, scales, record->first, record->k};                \
        linear_few<FORMAT, ROWS>(s, w, bias, group, simd_lane, simdgroup);          \
    }
