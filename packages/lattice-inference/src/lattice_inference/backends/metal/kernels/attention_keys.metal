// Where attention finds keys and values: in pages (kv.metal) where PAGED is 1, else in rows of the batch, `a` and `b`.

constant constexpr float LOWEST = -3.4028234e38f;

struct KeysAndValues {
    device const uint *keys;
    device const uint *values;
};

struct Place {
    uint page; // or the row of the batch
    uint word; // or where its vector begins in the row
    uint scale;
};

inline Place place_of(Step s, uint sequence, uint head, uint position) {
    if (PAGED == 1u) {
        const uint page = page_of(s, sequence, position);
        const Place place = {page, vector_at(s, page, head, position), scale_word(s, page, head, position)};
        return place;
    }
    const Place place = {word_of(s, STEP_BOUNDS, sequence) + position, head * s.record->head_dim, 0u};
    return place;
}

inline float key_element(Step s, KeysAndValues kept, Place place, uint d) {
    if (PAGED == 1u) {
        return kept_element(kept.keys[place.word + kept_word(d)], d);
    }
    return s.arena[s.record->a + place.page * s.record->a_stride + place.word + d];
}

inline float value_element(Step s, KeysAndValues kept, Place place, uint d) {
    if (PAGED == 1u) {
        return kept_element(kept.values[place.word + kept_word(d)], d);
    }
    return s.arena[s.record->b + place.page * s.record->b_stride + place.word + d];
}

// Elements d to d + 3 of a key, d a multiple of 4; those from HEAD_DIM on are 0.
inline float4 key4(Step s, KeysAndValues kept, Place place, uint d) {
    if (HEAD_DIM % 4u != 0u && d + 4u > HEAD_DIM) {
        return float4(
            key_element(s, kept, place, d), d + 1u < HEAD_DIM ? key_element(s, kept, place, d + 1u) : 0.0f,
            d + 2u < HEAD_DIM ? key_element(s, kept, place, d + 2u) : 0.0f, 0.0f);
    }
    return float4(
        key_element(s, kept, place, d), key_element(s, kept, place, d + 1u), key_element(s, kept, place, d + 2u),
        key_element(s, kept, place, d + 3u));
}

inline float4 query4(device const float *q, uint d) {
    return float4(
        q[d], d + 1u < HEAD_DIM ? q[d + 1u] : 0.0f, d + 2u < HEAD_DIM ? q[d + 2u] : 0.0f,
        d + 3u < HEAD_DIM ? q[d + 3u] : 0.0f);
}

// The sum of four chains, each over every fourth dimension.
inline float folded4(float4 chains) {
    return (chains.x + chains.y) + (chains.z + chains.w);
}

inline float key_scale(KeysAndValues kept, Place place) {
    return PAGED == 1u && KV_TYPE == 3u ? as_type<float>(kept.keys[place.scale]) : 1.0f;
}

inline float value_scale(KeysAndValues kept, Place place) {
    return PAGED == 1u && KV_TYPE == 3u ? as_type<float>(kept.values[place.scale]) : 1.0f;
}

// Whether the row at `position` sees a key.
inline bool sees(Step s, uint position, uint key) {
    const uint window = s.record->window;
    return CAUSAL == 0u || (key <= position && (window == 0u || key + window > position));
}
