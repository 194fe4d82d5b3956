// KIND 0: layer_norm, 1: rms_norm (heads parts a row, each for itself), 2: l2_normalize. A threadgroup has one part of n columns.
//
// Thread i adds up the columns i, i + 64, ...; simdgroups add up their threads. The order depends on the device only, so a row has the
// same bits in any company. A thread reads a column before it writes it, so y may be x.

kernel void norm(STEP_BUFFERS, WEIGHT_BUFFERS, THREAD) {
    threadgroup float parts[SIMDGROUPS];
    constant Record *r = record;
    if (group >= r->rows * r->heads) { // of the whole threadgroup
        return;
    }
    device const float *gains = (device const float *)weight;
    device const float *x = arena + r->x + group / r->heads * r->x_stride + group % r->heads * r->n;
    device float *y = arena + r->y + group / r->heads * r->y_stride + group % r->heads * r->n;
    float mean = 0.0f;
    if (KIND == 0u) {
        float sum = 0.0f;
        for (uint i = lane; i < r->n; i += THREADS) {
            sum += x[i];
        }
        mean = group_sum(sum, parts, simd_lane, simdgroup) / float(r->n);
    }
    float square = 0.0f;
    for (uint i = lane; i < r->n; i += THREADS) {
        const float d = x[i] - mean;
        square = fma(d, d, square);
    }
    square = group_sum(square, parts, simd_lane, simdgroup);
    float factor;
    if (KIND == 2u) {
        factor = is_nan(square) ? square : max(sqrt(square), 1e-12f);
    } else {
        factor = 1.0f / sqrt(square / float(r->n) + r->epsilon);
    }
    for (uint i = lane; i < r->n; i += THREADS) {
        const float v = x[i];
        if (KIND == 0u) {
            y[i] = fma((v - mean) * factor, gains[i], bias[i]);
        } else if (KIND == 1u) {
            y[i] = (v * factor) * (gains[i] + r->offset);
        } else {
            y[i] = v / factor;
        }
    }
}
