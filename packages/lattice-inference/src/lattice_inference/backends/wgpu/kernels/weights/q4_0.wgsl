// 18 bytes for 32 elements: scale (2), nibbles (16): element j and j + 16 of the block share byte j.
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 32u) + k / 32u) * 18u;
    let nibbles = (bytes4_at(block + 2u + k % 16u) >> ((k % 32u) / 16u * 4u)) & 0x0f0f0f0fu;
    return scale_at(block) * (unsigned4(nibbles) - 8.0);
}
