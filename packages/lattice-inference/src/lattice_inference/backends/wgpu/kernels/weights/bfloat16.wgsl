fn weight4(row: u32, k: u32) -> vec4<f32> {
    let at = (row * r.k + k) * 2u;
    var bits = vec4<u32>(half_bits_at(at), 0u, 0u, 0u);
    if k + 1u < r.k { bits.y = half_bits_at(at + 2u); }
    if k + 2u < r.k { bits.z = half_bits_at(at + 4u); }
    if k + 3u < r.k { bits.w = half_bits_at(at + 6u); }
    return bitcast<vec4<f32>>(bits << vec4<u32>(16u));
}
