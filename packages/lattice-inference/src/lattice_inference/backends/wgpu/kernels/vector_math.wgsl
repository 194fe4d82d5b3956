// exp, erf and tanh: the polynomials of tools/native/include/lattice/vector_math.h, an algorithm each, within 2 ulp where fma
// rounds once. The language's own functions may be wrong by many ulp. NaN in gives NaN out: min and max may drop it, so it is
// looked for by its bits.

fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32((n + 127) << 23u));
}

// exp(x) for |x| <= 87: 2^n exp(r), n = round(x / ln 2), exp(r) = 1 + (r + r^2 q(r)).
fn exp_parts(x: f32) -> vec2<f32> {
    let n = round(x * 0x1.715476p+0f);
    // compilers may make one product of the two, n * (a + b), which has lost what the second is for: r.zero hides the first
    let high = bitcast<f32>(bitcast<u32>(fma(n, -0x1.63p-1f, x)) | r.zero);
    let e = fma(n, 0x1.bd0106p-13f, high);
    var q = 0x1.687d62p-10f;
    q = fma(q, e, 0x1.1241c2p-7f);
    q = fma(q, e, 0x1.555b7cp-5f);
    q = fma(q, e, 0x1.555486p-3f);
    q = fma(q, e, 0x1.fffff8p-2f);
    return vec2<f32>(1.0 + fma(e * e, q, e), n);
}

fn exp_within_87(x: f32) -> f32 {
    let parts = exp_parts(x);
    return parts.x * power_of_two(i32(parts.y));
}

// The scale is applied in two halves, so that n = 128 overflows and n < -126 becomes a subnormal or zero.
fn exp_of(x: f32) -> f32 {
    let parts = exp_parts(min(89.0, max(-105.0, x)));
    let n = i32(parts.y);
    let half = n >> 1u;
    let y = (parts.x * power_of_two(half)) * power_of_two(n - half);
    return select(y, x, is_nan(x));
}

fn with_sign_of(magnitude: f32, x: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(magnitude) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
}

// x + x p(x^2) below 0.9375, else 1 - exp(-(t + t q(t))) with t = min(|x|, 4).
fn erf_of(x: f32) -> f32 {
    let s = x * x;
    let t = min(4.0, abs(x));
    var p = -0x1.34ec38p-11f;
    p = fma(p, s, 0x1.460390p-8f);
    p = fma(p, s, -0x1.b659a4p-6f);
    p = fma(p, s, 0x1.ce1768p-4f);
    p = fma(p, s, -0x1.8126d8p-2f);
    p = fma(p, s, 0x1.06eba6p-3f);
    var q = 0x1.7f97fep-17f;
    q = fma(q, t, -0x1.542d66p-12f);
    q = fma(q, t, 0x1.de12b6p-9f);
    q = fma(q, t, -0x1.856eecp-6f);
    q = fma(q, t, 0x1.b329f0p-4f);
    q = fma(q, t, 0x1.453284p-1f);
    q = fma(q, t, 0x1.07789cp-3f);
    let tail = 1.0 - exp_within_87(-fma(q, t, t));
    let y = with_sign_of(select(tail, fma(p, x, x), abs(x) < 0.9375), x);
    return select(y, x, is_nan(x));
}

// x + x^3 p(x^2) below 0.5625, else 1 - 2 / (exp(2 t) + 1) with t = min(|x|, 10).
fn tanh_of(x: f32) -> f32 {
    let s = x * x;
    var p = -0x1.82a7d8p-8f;
    p = fma(p, s, 0x1.54ca20p-6f);
    p = fma(p, s, -0x1.b89b86p-5f);
    p = fma(p, s, 0x1.1109c2p-3f);
    p = fma(p, s, -0x1.55553ep-2f);
    let t = min(10.0, abs(x));
    let tail = 1.0 - 2.0 / (exp_within_87(t + t) + 1.0);
    let y = with_sign_of(select(tail, fma(p * s, x, x), abs(x) < 0.5625), x);
    return select(y, x, is_nan(x));
}

fn silu_of(x: f32) -> f32 {
    return x / (1.0 + exp_of(-x));
}

// By the numbers of ACTIVATIONS in backends/gpu/lowering.py; 0 is none.
fn activated(kind: u32, x: f32) -> f32 {
    switch kind {
        case 1u: {
            let h = 0.5 * x;
            return fma(h, erf_of(x * 0.70710678), h);
        }
        case 2u: {
            let h = 0.5 * x;
            let u = x * 0.79788456;
            return fma(h, tanh_of(fma(u, (x * x) * 0.044715, u)), h);
        }
        case 3u: { return select(x, 0.0, 0.0 > x); }
        case 4u: { return silu_of(x); }
        case 5u: { return tanh_of(x); }
        case 6u: { return 1.0 / (1.0 + exp_of(-x)); }
        default: { return x; }
    }
}
