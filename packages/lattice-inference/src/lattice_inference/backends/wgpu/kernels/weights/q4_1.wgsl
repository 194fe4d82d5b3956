// 20 bytes for 32 elements: scale (2), offset (2), nibbles (16).
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 32u) + k / 32u) * 20u;
    let nibbles = (bytes4_at(block + 4u + k % 16u) >> ((k % 32u) / 16u * 4u)) & 0x0f0f0f0fu;
    return scale_at(block) * unsigned4(nibbles) + scale_at(block + 2u);
}
