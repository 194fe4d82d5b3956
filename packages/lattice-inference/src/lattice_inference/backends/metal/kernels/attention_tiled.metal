// Attention of many rows. A threadgroup has one head and a tile of QUERIES rows of one sequence, and goes over the keys 16 at a time:
//
//   scores[row][key] = scale * (q . k)      a thread has one key and QUERIES / 4 rows
//   m, factor        the running maximum of a row, and what earlier sums shrink by
//   p[row][key]      exp(score - m); 0 for a key that the row does not see
//   o[row][d]        a thread has the dimensions lane, lane + 64, ... of all rows
//
// Keys that a row does not see change nothing of it, so its bits depend on its own keys only. Bound by reads of keys and values.
// Heads have at most 128 dimensions where QUERIES is 16, and 256 where it is 8: SLOTS is how many of them a thread has.

constant constexpr uint KEYS = 16u;
constant constexpr uint MOST_QUERIES = 16u;
constant constexpr uint MOST_SUMS = 32u;        // QUERIES * SLOTS
constant constexpr uint MOST_QUERY_FOURS = 512u; // QUERIES * HEAD_DIM / 4

kernel void attention_tiled(STEP_BUFFERS, PAGE_BUFFERS, THREAD) {
    threadgroup float4 q_tile[MOST_QUERY_FOURS];
    threadgroup float p_tile[MOST_QUERIES * KEYS];
    threadgroup float maxima[MOST_QUERIES];
    threadgroup float factors[MOST_QUERIES];
    threadgroup float sums[MOST_QUERIES];
    constant Record *r = record;
    const Step s = {arena, words, record};
    const KeysAndValues kept = {keys, values};
    const uint tile = group / r->heads;
    const uint head = group % r->heads;
    if (tile >= words[STEP_TILE_COUNT]) { // of the whole threadgroup
        return;
    }
    const uint fours = (HEAD_DIM + 3u) / 4u;
    const uint kv_head = head / (r->heads / r->kv_heads);
    const uint sequence = word_of(s, STEP_TILES, 2u * tile);
    const uint first = word_of(s, STEP_TILES, 2u * tile + 1u);
    const uint begin_row = word_of(s, STEP_BOUNDS, sequence);
    const uint length = word_of(s, STEP_BOUNDS, sequence + 1u) - begin_row;
    const uint context = PAGED == 1u ? word_of(s, STEP_CONTEXT, sequence) : 0u;
    for (uint i = lane; i < QUERIES * fours; i += THREADS) {
        const uint row = min(first + i / fours, length - 1u);
        q_tile[i] = query4(arena + r->x + (begin_row + row) * r->x_stride + head * HEAD_DIM, i % fours * 4u);
    }
    if (lane < QUERIES) {
        maxima[lane] = LOWEST;
        sums[lane] = 0.0f;
    }
    uint end = length;
    uint key = 0u;
    if (CAUSAL == 1u) {
        end = context + min(first + QUERIES, length);
        if (r->window != 0u && context + first + 1u > r->window) {
            key = (context + first + 1u - r->window) / KEYS * KEYS;
        }
    }
    float o[MOST_SUMS];
    for (uint i = 0u; i < QUERIES * SLOTS; i++) {
        o[i] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint rows_each = QUERIES / 4u;
    const uint own_rows = lane / KEYS * rows_each;
    for (; key < end; key += KEYS) {
        const uint own_key = key + lane % KEYS;
        float scores[MOST_QUERIES / 4u] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (own_key < end) {
            const Place place = place_of(s, sequence, kv_head, own_key);
            float4 chains[MOST_QUERIES / 4u];
            for (uint i = 0u; i < rows_each; i++) {
                chains[i] = float4(0.0f);
            }
            for (uint four = 0u; four < fours; four++) {
                const float4 k = key4(s, kept, place, four * 4u);
                for (uint i = 0u; i < rows_each; i++) {
                    chains[i] = fma(q_tile[(own_rows + i) * fours + four], k, chains[i]);
                }
            }
            const float scale = key_scale(kept, place);
            for (uint i = 0u; i < rows_each; i++) {
                scores[i] = r->scale * (folded4(chains[i]) * scale);
            }
        }
        for (uint i = 0u; i < rows_each; i++) {
            p_tile[(own_rows + i) * KEYS + lane % KEYS] = scores[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (lane < QUERIES) {
            float most = maxima[lane];
            for (uint j = 0u; j < KEYS && key + j < end; j++) {
                if (sees(s, context + first + lane, key + j)) {
                    most = max(most, p_tile[lane * KEYS + j]);
                }
            }
            factors[lane] = exp_of(maxima[lane] - most);
            maxima[lane] = most;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0u; i < rows_each; i++) {
            const uint row = own_rows + i;
            const bool is_seen = own_key < end && sees(s, context + first + row, own_key);
            p_tile[row * KEYS + lane % KEYS] = is_seen ? exp_of(scores[i] - maxima[row]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (lane < QUERIES) {
            float sum = 0.0f;
            for (uint j = 0u; j < KEYS; j++) {
                sum += p_tile[lane * KEYS + j];
            }
            sums[lane] = fma(sums[lane], factors[lane], sum);
        }
        for (uint slot = 0u; slot < SLOTS; slot++) {
            const uint d = slot * THREADS + lane;
            if (d < HEAD_DIM) {
                // the sums of 16 keys first: one by one, many small ones would be lost beside what is there already
                float added[MOST_QUERIES];
                for (uint row = 0u; row < QUERIES; row++) {
                    added[row] = 0.0f;
                }
                for (uint j = 0u; j < KEYS && key + j < end; j++) {
                    const Place place = place_of(s, sequence, kv_head, key + j);
                    const float v = value_element(s, kept, place, d);
                    const float scale = value_scale(kept, place);
                    for (uint row = 0u; row < QUERIES; row++) {
                        const float p = p_tile[row * KEYS + j];
                        if (p != 0.0f) {
                            added[row] = fma(p * scale, v, added[row]);
                        }
                    }
                }
                for (uint row = 0u; row < QUERIES; row++) {
                    o[slot * QUERIES + row] = fma(o[slot * QUERIES + row], factors[row], added[row]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint slot = 0u; slot < SLOTS; slot++) {
        const uint d = slot * THREADS + lane;
        for (uint row = 0u; row < QUERIES; row++) {
            if (d < HEAD_DIM && first + row < length) {
                const uint y = r->y + (begin_row + first + row) * r->y_stride + head * HEAD_DIM + d;
                arena[y] = o[slot * QUERIES + row] / sums[row];
            }
        }
    }
}
