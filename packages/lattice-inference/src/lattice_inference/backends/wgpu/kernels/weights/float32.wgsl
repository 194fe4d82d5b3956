fn weight4(row: u32, k: u32) -> vec4<f32> {
    let at = row * r.k + k;
    var w = vec4<f32>(bitcast<f32>(weight_words[at]), 0.0, 0.0, 0.0);
    if k + 1u < r.k { w.y = bitcast<f32>(weight_words[at + 1u]); }
    if k + 2u < r.k { w.z = bitcast<f32>(weight_words[at + 2u]); }
    if k + 3u < r.k { w.w = bitcast<f32>(weight_words[at + 3u]); }
    return w;
}
