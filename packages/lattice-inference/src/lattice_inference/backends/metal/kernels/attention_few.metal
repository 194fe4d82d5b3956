// Attention of few rows over pages. A threadgroup has one row, one head and one segment of 512 keys, and leaves the segment's maximum,
// sum and weighted values in the scratch of the arena; attention_merge joins the segments from left to right. Where ALONE is 1 there
// is one segment, and the result is written at once.
//
// A thread takes the scores of keys lane, lane + 64, ..., then the dimensions lane, lane + 64, ... of all keys.

constant constexpr uint SEGMENT = 512u;

kernel void attention_few(STEP_BUFFERS, PAGE_BUFFERS, THREAD) {
    threadgroup float p[SEGMENT];
    threadgroup float parts[SIMDGROUPS];
    constant Record *r = record;
    const Step s = {arena, words, record};
    const KeysAndValues kept = {keys, values};
    const uint segments = words[STEP_SEGMENTS];
    const uint segment = group % segments;
    const uint head = group / segments % r->heads;
    const uint row = group / segments / r->heads;
    if (row >= r->rows) { // of the whole threadgroup
        return;
    }
    const uint kv_head = head / (r->heads / r->kv_heads);
    const uint sequence = word_of(s, STEP_SEQUENCE_OF_ROW, row);
    const uint position = word_of(s, STEP_CONTEXT, sequence) + row - word_of(s, STEP_BOUNDS, sequence);
    const uint first = segment * SEGMENT;
    const uint count = min(SEGMENT, max(position + 1u, first) - first); // keys of the segment up to the row's own
    device const float *q = arena + r->x + row * r->x_stride + head * HEAD_DIM;
    float most = LOWEST;
    for (uint j = lane; j < count; j += THREADS) {
        if (sees(s, position, first + j)) {
            const Place place = place_of(s, sequence, kv_head, first + j);
            float4 chains = float4(0.0f);
            for (uint d = 0u; d < HEAD_DIM; d += 4u) {
                chains = fma(query4(q, d), key4(s, kept, place, d), chains);
            }
            const float score = r->scale * (folded4(chains) * key_scale(kept, place));
            p[j] = score;
            most = max(most, score);
        }
    }
    most = group_max(most, parts, simd_lane, simdgroup);
    float sum = 0.0f;
    for (uint j = lane; j < count; j += THREADS) {
        const float weight = sees(s, position, first + j) ? exp_of(p[j] - most) : 0.0f;
        p[j] = weight;
        sum += weight;
    }
    sum = group_sum(sum, parts, simd_lane, simdgroup); // with barriers: all of p is there
    device float *out = arena + r->scratch + group * (HEAD_DIM + 2u);
    if (lane == 0u && ALONE == 0u) {
        out[0] = most;
        out[1] = sum;
    }
    for (uint d = lane; d < HEAD_DIM; d += THREADS) {
        float o = 0.0f;
        for (uint j = 0u; j < count; j++) {
            if (p[j] != 0.0f) {
                const Place place = place_of(s, sequence, kv_head, first + j);
                o = fma(p[j] * value_scale(kept, place), value_element(s, kept, place, d), o);
            }
        }
        if (ALONE == 1u) {
            arena[r->y + row * r->y_stride + head * HEAD_DIM + d] = o / sum;
        } else {
            out[2u + d] = o;
        }
    }
}
