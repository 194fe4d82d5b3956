// 210 bytes for 256 elements: low nibbles (128), in runs of 64 bytes as Q4_K in runs of 32; two high bits (64), in runs of 32 bytes,
// four elements a byte; a signed scale for each 16 elements (16); scale (2).
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 256u) + k / 256u) * 210u;
    let e = k % 256u;
    let nibbles = (bytes4_at(block + e / 128u * 64u + e % 64u) >> (e % 128u / 64u * 4u)) & 0x0f0f0f0fu;
    let high = (bytes4_at(block + 128u + e / 128u * 32u + e % 32u) >> (e % 128u / 32u * 2u)) & 0x03030303u;
    let group = byte_at(block + 192u + e / 16u);
    let scale = scale_at(block + 208u) * f32(i32(group << 24u) >> 24u);
    return scale * (unsigned4(nibbles | (high << 4u)) - 32.0);
}
