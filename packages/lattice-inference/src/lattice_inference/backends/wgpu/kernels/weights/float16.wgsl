fn weight4(row: u32, k: u32) -> vec4<f32> {
    let at = (row * r.k + k) * 2u;
    var w = vec4<f32>(half_value(half_bits_at(at)), 0.0, 0.0, 0.0);
    if k + 1u < r.k { w.y = half_value(half_bits_at(at + 2u)); }
    if k + 2u < r.k { w.z = half_value(half_bits_at(at + 4u)); }
    if k + 3u < r.k { w.w = half_value(half_bits_at(at + 6u)); }
    return w;
}
