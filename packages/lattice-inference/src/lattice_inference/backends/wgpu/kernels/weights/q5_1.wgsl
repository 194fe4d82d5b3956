// 24 bytes for 32 elements: scale (2), offset (2), a fifth bit for each (4), nibbles (16).
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 32u) + k / 32u) * 24u;
    let nibbles = (bytes4_at(block + 8u + k % 16u) >> ((k % 32u) / 16u * 4u)) & 0x0f0f0f0fu;
    let fifth = (vec4<u32>(bytes4_at(block + 4u) >> (k % 32u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    return scale_at(block) * (unsigned4(nibbles) + vec4<f32>(fifth * 16u)) + scale_at(block + 2u);
}
