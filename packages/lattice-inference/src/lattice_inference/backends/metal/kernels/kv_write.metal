// Keys `x` and values `a` of each row go to its position of the sequence's pages, rounded to nearest even. A thread has one vector of
// one row: a head's key or its value. Where ROTATION is not 0, keys are rotated first, by the angles `b`.

inline uint half_bits(float x) {
    const uint bits = as_type<uint>(x);
    const uint sign = (bits >> 16u) & 0x8000u;
    const uint magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x477ff000u) { // 65520 and more round to infinity
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) { // subnormal: a multiple of 2^-24
        return sign | uint(rint(as_type<float>(magnitude) * 16777216.0f));
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}

inline uint bfloat16_bits(float x) {
    const uint bits = as_type<uint>(x);
    return is_nan(x) ? (bits >> 16u) | 64u : (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

kernel void kv_write(STEP_BUFFERS, PAGE_BUFFERS, THREAD) {
    constant Record *r = record;
    const Step s = {arena, words, record};
    const uint index = group * THREADS + lane;
    const bool is_value = index % 2u == 1u;
    const uint head = index / 2u % r->kv_heads;
    const uint row = index / 2u / r->kv_heads;
    if (row >= r->rows) {
        return;
    }
    const uint sequence = word_of(s, STEP_SEQUENCE_OF_ROW, row);
    const uint position = word_of(s, STEP_CONTEXT, sequence) + row - word_of(s, STEP_BOUNDS, sequence);
    const uint page = page_of(s, sequence, position);
    const uint begin = is_value ? r->a + row * r->a_stride : r->x + row * r->x_stride;
    device const float *x = arena + begin + head * r->head_dim;
    device const float *angles = arena + r->b + row * r->b_stride;
    device uint *pages = is_value ? values : keys;
    device uint *kept = pages + vector_at(s, page, head, position);
    float factor = 0.0f;
    if (KV_TYPE == 3u) {
        float most = 0.0f;
        float scale = 0.0f;
        float broken = 0.0f;
        for (uint d = 0u; d < r->head_dim; d++) {
            const float v = is_value ? x[d] : rotated(s, x + d, d, angles);
            most = max(most, fabs(v));
            if (is_nan(v)) {
                broken = v;
            }
        }
        if (most >= 1e-30f) {
            factor = 127.0f / most;
            scale = most / 127.0f;
        }
        pages[scale_word(s, page, head, position)] = as_type<uint>(is_nan(broken) ? broken : scale);
    }
    const uint share = KV_TYPE == 0u ? 1u : KV_TYPE == 3u ? 4u : 2u; // elements of a word
    for (uint word = 0u; word < vector_words(s); word++) {
        uint bits = 0u;
        for (uint i = 0u; i < share && word * share + i < r->head_dim; i++) {
            const uint d = word * share + i;
            const float v = is_value ? x[d] : rotated(s, x + d, d, angles);
            switch (KV_TYPE) {
            case 0u:
                bits = as_type<uint>(v);
                break;
            case 1u:
                bits |= half_bits(v) << (i * 16u);
                break;
            case 2u:
                bits |= bfloat16_bits(v) << (i * 16u);
                break;
            default: // a row with NaN has it in its scale
                bits |= (uint(int(rint(is_nan(v) ? 0.0f : v * factor))) & 255u) << (i * 8u);
            }
        }
        kept[word] = bits;
    }
}
