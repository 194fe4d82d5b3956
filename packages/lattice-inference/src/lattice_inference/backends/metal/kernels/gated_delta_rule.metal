// The gated delta rule in blocks of BLOCK tokens, as graph/recurrent_ops.py defines it. A threadgroup has a value head of a sequence
// and goes through its tokens; a thread has the columns i, i + 64, ... of values.
//
//   a head of a slot: state [key][value] at the block's beginning | keys of the block's rows | rows r | factors alpha
//
// Thread j keeps d[t][j], and so does j + 32: the first simdgroup multiplies keys by the token's key, the second by its query. The block
// in which a step begins is in the slot to read, and stays whole there; later blocks are in the slot to write, each over the one before.

constant constexpr uint MOST_KEY_DIM = 256u;

// Numbers too small for a normal float32 are 0, as on the CPU.
inline float flushed(float x) {
    return x < 1.17549435e-38f ? 0.0f : x;
}

inline float softplus(float x) {
    const float e = exp_of(-fabs(x));
    const float t = e / (2.0f + e);
    const float square = t * t;
    float p = 1.0f / 15.0f;
    for (float odd = 13.0f; odd > 2.0f; odd -= 2.0f) {
        p = fma(p, square, 1.0f / odd);
    }
    return max(0.0f, x) + fma((t + t) * square, p, t + t);
}

kernel void gated_delta_rule(STEP_BUFFERS, SLOT_BUFFERS, THREAD) {
    threadgroup float key[MOST_KEY_DIM];
    threadgroup float query[MOST_KEY_DIM];
    threadgroup float parts[SIMDGROUPS];
    threadgroup float factors[THREADS];
    threadgroup float products[THREADS];
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint sequences = word_of(s, STEP_SEQUENCE_OF_ROW, r->rows - 1u) + 1u;
    if (group >= sequences * r->heads) { // of the whole threadgroup
        return;
    }
    const uint sequence = group / r->heads;
    const uint head = group % r->heads;
    const uint first = word_of(s, STEP_BOUNDS, sequence);
    const uint last = word_of(s, STEP_BOUNDS, sequence + 1u);
    const uint context = word_of(s, STEP_CONTEXT, sequence);
    const uint key_head = GROUPING == 0u ? head / (r->heads / r->kv_heads) : head % r->kv_heads;
    const uint width = r->head_dim;
    const uint head_size = width * r->n + BLOCK * (width + r->n + 1u);
    device float *state = slots + (read_slot(s, sequence) * r->heads + head) * head_size;
    device float *block_keys = state + width * r->n;
    device float *rows = block_keys + BLOCK * width;
    device float *alphas = rows + BLOCK * r->n;
    if (context == 0u) {
        for (uint v = lane; v < r->n; v += THREADS) {
            for (uint i = 0u; i < width; i++) {
                state[i * r->n + v] = 0.0f;
            }
        }
    }
    const uint j = lane % 32u;
    float whole = 1.0f; // D
    float d = 0.0f;
    for (uint row = 0u; row < context % BLOCK; row++) {
        const float alpha = alphas[row];
        whole = flushed(whole * alpha);
        d = j == row ? 1.0f : j < row ? flushed(d * alpha) : 0.0f;
    }
    for (uint token = first; token < last; token++) {
        const uint row = (context + token - first) % BLOCK;
        device const float *x = arena + r->x + token * r->x_stride;
        device const float *q = x + key_head * width;
        device const float *k = q + r->kv_heads * width;
        float of_q = 0.0f;
        float of_k = 0.0f;
        for (uint i = lane; i < width; i += THREADS) {
            of_q = fma(q[i], q[i], of_q);
            of_k = fma(k[i], k[i], of_k);
        }
        of_q = group_sum(of_q, parts, simd_lane, simdgroup); // with barriers: what the token before left is read
        of_k = group_sum(of_k, parts, simd_lane, simdgroup);
        const float q_scale = 1.0f / sqrt(of_q + 1e-6f);
        const float k_scale = 1.0f / sqrt(of_k + 1e-6f);
        const float of_width = 1.0f / sqrt(float(width));
        for (uint i = lane; i < width; i += THREADS) {
            query[i] = (q[i] * q_scale) * of_width;
            key[i] = k[i] * k_scale;
        }
        const float gate = arena[r->a + token * r->a_stride + head] + taps[head];
        const float alpha = flushed(exp_of(decay[head] * softplus(gate)));
        const float beta = sigmoid_of(arena[r->b + token * r->b_stride + head]);
        whole = flushed(whole * alpha);
        d = j == row ? 1.0f : j < row ? flushed(d * alpha) : 0.0f;
        for (uint i = lane; i < width; i += THREADS) {
            block_keys[row * width + i] = key[i]; // the thread's own
        }
        if (lane == 0u) {
            alphas[row] = alpha;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        float product = 0.0f;
        if (j <= row) {
            threadgroup const float *other = lane < 32u ? key : query;
            for (uint i = 0u; i < width; i++) {
                product = fma(block_keys[j * width + i], other[i], product);
            }
        }
        factors[lane] = d;
        products[lane] = d * product;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint v = lane; v < r->n; v += THREADS) {
            float u = 0.0f;
            float y = 0.0f;
            for (uint i = 0u; i < width; i++) {
                const float held = state[i * r->n + v];
                u = fma(key[i], held, u);
                y = fma(query[i], held, y);
            }
            u *= whole;
            y *= whole;
            for (uint i = 0u; i < row; i++) {
                const float held = rows[i * r->n + v];
                u = fma(products[i], held, u);
                y = fma(products[32u + i], held, y);
            }
            const float value = x[2u * r->kv_heads * width + head * r->n + v];
            const float own = beta * (value - u);
            rows[row * r->n + v] = own;
            arena[r->y + token * r->y_stride + head * r->n + v] = fma(products[32u + row], own, y);
        }
        if (row == BLOCK - 1u) {
            device float *next = slots + (write_slot(s, sequence) * r->heads + head) * head_size;
            for (uint v = lane; v < r->n; v += THREADS) {
                for (uint i = 0u; i < width; i++) {
                    float sum = whole * state[i * r->n + v];
                    for (uint t = 0u; t < BLOCK; t++) {
                        sum = fma(factors[t] * block_keys[t * width + i], rows[t * r->n + v], sum);
                    }
                    next[i * r->n + v] = sum;
                }
            }
            // the next block's keys lie where this one's were
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            state = next;
            block_keys = state + width * r->n;
            rows = block_keys + BLOCK * width;
            alphas = rows + BLOCK * r->n;
            whole = 1.0f;
            d = 0.0f;
        }
    }
}
