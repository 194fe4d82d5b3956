// Keys `x` and values `a` of each row go to its position of the sequence's pages, rounded to nearest even. An invocation has one
// vector of one row: a head's key or its value. Where ROTATION is not 0, keys are rotated first, by the angles `b`.

fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if magnitude >= 0x477ff000u { // 65520 and more round to infinity
        return sign | 0x7c00u;
    }
    if magnitude < 0x38800000u { // subnormal: a multiple of 2^-24
        return sign | u32(round(bitcast<f32>(magnitude) * 0x1p+24f));
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}

fn bfloat16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if is_nan(x) {
        return (bits >> 16u) | 64u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group_index(group, groups) * 64u + lane;
    let is_value = index % 2u == 1u;
    let head = index / 2u % r.kv_heads;
    let row = index / 2u / r.kv_heads;
    if row >= r.rows {
        return;
    }
    let sequence = step[step[STEP_SEQUENCE_OF_ROW] + row];
    let position = step[step[STEP_CONTEXT] + sequence] + row - step[step[STEP_BOUNDS] + sequence];
    let page = page_of(sequence, position);
    let first_word = vector_at(page, head, position);
    let x = select(r.x + row * r.x_stride, r.a + row * r.a_stride, is_value) + head * r.head_dim;
    let angles = r.b + row * r.b_stride;
    var factor = 0.0;
    if KV_TYPE == 3u {
        var most = 0.0;
        var broken = 0.0;
        for (var d = 0u; d < r.head_dim; d++) {
            let v = own(is_value, x, d, angles);
            most = max(most, abs(v));
            if is_nan(v) {
                broken = v;
            }
        }
        var scale = 0.0;
        if most >= 1e-30 {
            factor = 127.0 / most;
            scale = most / 127.0;
        }
        if is_nan(broken) {
            scale = broken;
        }
        put(is_value, scale_word(page, head, position), bitcast<u32>(scale));
    }
    for (var word = 0u; word < vector_words(); word++) {
        var bits = 0u;
        if KV_TYPE == 0u {
            bits = bitcast<u32>(own(is_value, x, word, angles));
        } else if KV_TYPE == 3u {
            for (var i = 0u; i < 4u && word * 4u + i < r.head_dim; i++) {
                bits |= (u32(i32(round(own(is_value, x, word * 4u + i, angles) * factor))) & 255u) << (i * 8u);
            }
        } else {
            for (var i = 0u; i < 2u && word * 2u + i < r.head_dim; i++) {
                let v = own(is_value, x, word * 2u + i, angles);
                if KV_TYPE == 1u {
                    bits |= half_bits(v) << (i * 16u);
                } else {
                    bits |= bfloat16_bits(v) << (i * 16u);
                }
            }
        }
        put(is_value, first_word + word, bits);
    }
}

fn own(is_value: bool, x: u32, d: u32, angles: u32) -> f32 {
    if is_value {
        return arena[x + d];
    }
    return rotated(x + d, d, angles);
}

fn put(is_value: bool, word: u32, bits: u32) {
    if is_value {
        values[word] = bits;
    } else {
        keys[word] = bits;
    }
}
