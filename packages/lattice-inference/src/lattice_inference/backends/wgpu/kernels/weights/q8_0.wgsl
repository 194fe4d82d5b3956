// 34 bytes for 32 elements: scale (2), integers (32).
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let block = (row * (r.k / 32u) + k / 32u) * 34u;
    return scale_at(block) * signed4(bytes4_at(block + 2u + k % 32u));
}
