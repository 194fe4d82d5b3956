// Weights as the file has them. Each format has a file in weights/ with one accessor, weight4(row, k): the elements k to k + 3 of a
// row as floats, k a multiple of 4; elements from r.k on are 0. A format's bytes lie one row after the other.

@group(1) @binding(0) var<storage, read> weight_words: array<u32>;
@group(1) @binding(1) var<storage, read> weight_scales: array<f32>;
@group(1) @binding(2) var<storage, read> bias: array<f32>;

fn byte_at(offset: u32) -> u32 {
    return (weight_words[offset >> 2u] >> ((offset & 3u) * 8u)) & 255u;
}

// Four bytes from any offset on, the first in the lowest bits. Buffers end in a word more than their bytes need.
fn bytes4_at(offset: u32) -> u32 {
    let shift = (offset & 3u) * 8u;
    let low = weight_words[offset >> 2u];
    if shift == 0u {
        return low;
    }
    return (low >> shift) | (weight_words[(offset >> 2u) + 1u] << (32u - shift));
}

fn half_bits_at(offset: u32) -> u32 {
    return (weight_words[offset >> 2u] >> ((offset & 2u) * 8u)) & 0xffffu;
}

// Exact, subnormals included: unpack2x16float may flush those to 0.
fn half_value(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let normal = bitcast<f32>(sign | (select(exponent + 112u, 255u, exponent == 31u) << 23u) | (mantissa << 13u));
    let tiny = f32(mantissa) * 0x1p-24f;
    return select(normal, select(tiny, -tiny, sign != 0u), exponent == 0u);
}

fn scale_at(offset: u32) -> f32 {
    return half_value(half_bits_at(offset));
}

fn unsigned4(bytes: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(bytes, bytes >> 8u, bytes >> 16u, bytes >> 24u) & vec4<u32>(255u));
}

fn signed4(bytes: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(vec4<u32>(bytes << 24u, bytes << 16u, bytes << 8u, bytes))) >> vec4<u32>(24u));
}
