// Pages of keys and values, in a layout of the GPU backends: page, head, token, then the head's vector in whole words. Vectors in int8
// have scales, which follow a page's vectors: head, token. A page's size depends on the layer's heads, so it is worked out here.
// KV_TYPE: 0 float32, 1 float16, 2 bfloat16, 3 int8.

@group(1) @binding(0) var<storage, read_write> keys: array<u32>;
@group(1) @binding(1) var<storage, read_write> values: array<u32>;

fn vector_words() -> u32 {
    if KV_TYPE == 0u { return r.head_dim; }
    if KV_TYPE == 3u { return (r.head_dim + 3u) / 4u; }
    return (r.head_dim + 1u) / 2u;
}

fn page_words() -> u32 {
    let vectors = r.kv_heads * step[STEP_PAGE_TOKENS];
    return vectors * (vector_words() + select(0u, 1u, KV_TYPE == 3u));
}

// Where a position of a sequence lies: the number of its vector of head 0 within all words of the page's, and the page's first word.
fn page_of(sequence: u32, position: u32) -> u32 {
    let first = step[step[STEP_PAGE_BOUNDS] + sequence];
    return step[step[STEP_PAGES] + first + position / step[STEP_PAGE_TOKENS]] * page_words();
}

fn vector_at(page: u32, head: u32, position: u32) -> u32 {
    let tokens = step[STEP_PAGE_TOKENS];
    return page + (head * tokens + position % tokens) * vector_words();
}

fn scale_word(page: u32, head: u32, position: u32) -> u32 {
    let tokens = step[STEP_PAGE_TOKENS];
    return page + r.kv_heads * tokens * vector_words() + head * tokens + position % tokens;
}

fn stored_half(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let normal = bitcast<f32>(sign | (select(exponent + 112u, 255u, exponent == 31u) << 23u) | (mantissa << 13u));
    let tiny = f32(mantissa) * 0x1p-24f;
    return select(normal, select(tiny, -tiny, sign != 0u), exponent == 0u);
}

// Element d of a vector whose words begin with `word`, the d / (elements of a word)-th of them.
fn element(word: u32, d: u32) -> f32 {
    if KV_TYPE == 0u { return bitcast<f32>(word); }
    if KV_TYPE == 1u { return stored_half((word >> (d % 2u * 16u)) & 0xffffu); }
    if KV_TYPE == 2u { return bitcast<f32>((word >> (d % 2u * 16u)) << 16u); }
    return f32(i32(word << (24u - d % 4u * 8u)) >> 24u);
}

fn word_of(d: u32) -> u32 {
    if KV_TYPE == 0u { return d; }
    if KV_TYPE == 3u { return d / 4u; }
    return d / 2u;
}
