// 176 bytes for 256 elements: scale (2), minimum (2), scales and minima of eight groups (12), fifth bits (32): bit g of byte j is that
// of element j of group g, nibbles (128).
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 256u) + k / 256u) * 176u;
    let g = (k % 256u) / 32u;
    let factors = scale_and_minimum(block + 4u, g) * vec2<f32>(scale_at(block), scale_at(block + 2u));
    let nibbles = (bytes4_at(block + 48u + g / 2u * 32u + k % 32u) >> (g % 2u * 4u)) & 0x0f0f0f0fu;
    let fifth = (bytes4_at(block + 16u + k % 32u) >> g) & 0x01010101u;
    return factors.x * unsigned4(nibbles | (fifth << 4u)) - factors.y;
}
