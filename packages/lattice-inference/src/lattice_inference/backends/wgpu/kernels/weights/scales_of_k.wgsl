// Scale and minimum of group g (32 elements) of Q4_K and Q5_K: six bits each, in the twelve bytes from `packed` on.
fn scale_and_minimum(packed: u32, g: u32) -> vec2<f32> {
    if g < 4u {
        return vec2<f32>(f32(byte_at(packed + g) & 63u), f32(byte_at(packed + 4u + g) & 63u));
    }
    let low = byte_at(packed + 4u + g);
    let scale = (low & 15u) | ((byte_at(packed + g - 4u) >> 6u) << 4u);
    let minimum = (low >> 4u) | ((byte_at(packed + g) >> 6u) << 4u);
    return vec2<f32>(f32(scale), f32(minimum));
}
