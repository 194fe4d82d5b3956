// Pages of keys and values, in the layout of the GPU backends: page, head, token, then the head's vector in whole words. Vectors in
// int8 have scales, which follow a page's vectors: head, token. A page's size depends on the layer's heads, so it is worked out here.
// KV_TYPE: 0 float32, 1 float16, 2 bfloat16, 3 int8.

inline uint vector_words(Step s) {
    const uint width = s.record->head_dim;
    return KV_TYPE == 0u ? width : KV_TYPE == 3u ? (width + 3u) / 4u : (width + 1u) / 2u;
}

// The first word of the page that holds a position of a sequence.
inline uint page_of(Step s, uint sequence, uint position) {
    const uint tokens = s.words[STEP_PAGE_TOKENS];
    const uint page_words = s.record->kv_heads * tokens * (vector_words(s) + (KV_TYPE == 3u ? 1u : 0u));
    const uint first = word_of(s, STEP_PAGE_BOUNDS, sequence);
    return word_of(s, STEP_PAGES, first + position / tokens) * page_words;
}

inline uint vector_at(Step s, uint page, uint head, uint position) {
    const uint tokens = s.words[STEP_PAGE_TOKENS];
    return page + (head * tokens + position % tokens) * vector_words(s);
}

inline uint scale_word(Step s, uint page, uint head, uint position) {
    const uint tokens = s.words[STEP_PAGE_TOKENS];
    return page + s.record->kv_heads * tokens * vector_words(s) + head * tokens + position % tokens;
}

// Element d of a vector, in the word of it that kept_word says.
inline float kept_element(uint word, uint d) {
    switch (KV_TYPE) {
    case 0u:
        return as_type<float>(word);
    case 1u:
        return half_value((word >> (d % 2u * 16u)) & 0xffffu);
    case 2u:
        return as_type<float>((word >> (d % 2u * 16u)) << 16u);
    default:
        return float(int(word << (24u - d % 4u * 8u)) >> 24);
    }
}

inline uint kept_word(uint d) {
    return KV_TYPE == 0u ? d : KV_TYPE == 3u ? d / 4u : d / 2u;
}
