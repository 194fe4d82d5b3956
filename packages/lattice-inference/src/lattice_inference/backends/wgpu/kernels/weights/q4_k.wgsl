// 144 bytes for 256 elements: scale (2), minimum (2), scales and minima of eight groups (12), nibbles (128): in each run of 32 bytes
// the low nibbles of one group and the high ones of the next.
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 256u) + k / 256u) * 144u;
    let g = (k % 256u) / 32u;
    let factors = scale_and_minimum(block + 4u, g) * vec2<f32>(scale_at(block), scale_at(block + 2u));
    let nibbles = (bytes4_at(block + 16u + g / 2u * 32u + k % 32u) >> (g % 2u * 4u)) & 0x0f0f0f0fu;
    return factors.x * unsigned4(nibbles) - factors.y;
}
