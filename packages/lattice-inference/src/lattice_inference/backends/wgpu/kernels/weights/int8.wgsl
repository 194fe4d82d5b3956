// Integers in rows, with a scale for each row; a weight that is cut into parts has all scales in each.
fn weight4(row: u32, k: u32) -> vec4<f32> {
    let w = signed4(bytes4_at(row * r.k + k)) * weight_scales[r.first + row];
    return select(vec4<f32>(0.0), w, vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(r.k));
}
