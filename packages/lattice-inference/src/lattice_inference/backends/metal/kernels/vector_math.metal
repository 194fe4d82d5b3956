// exp, erf and tanh: the polynomials of tools/native/include/lattice/vector_math.h, an algorithm each, within 2 ulp. The language's
// own functions may be wrong by more. NaN in gives NaN out: min and max may drop it, so it is looked for by its bits.

inline float power_of_two(int n) {
    return as_type<float>(uint(n + 127) << 23u);
}

struct ExpParts {
    float fraction;
    int exponent;
};

// exp(x) for |x| <= 105: 2^n exp(r), n = round(x / ln 2), exp(r) = 1 + (r + r^2 q(r)).
inline ExpParts exp_parts(float x) {
    const float n = rint(x * 1.44269502f);
    const float e = fma(n, 0.000212194442f, fma(n, -0.693359375f, x));
    float q = 0.00137515937f;
    q = fma(q, e, 0.00836965535f);
    q = fma(q, e, 0.0416695997f);
    q = fma(q, e, 0.166665122f);
    q = fma(q, e, 0.499999881f);
    const ExpParts parts = {1.0f + fma(e * e, q, e), int(n)};
    return parts;
}

inline float exp_within_87(float x) {
    const ExpParts parts = exp_parts(x);
    return parts.fraction * power_of_two(parts.exponent);
}

// The scale is applied in two halves, so that n = 128 overflows and n < -126 becomes a subnormal or zero.
inline float exp_of(float x) {
    if (is_nan(x)) {
        return x;
    }
    const ExpParts parts = exp_parts(min(89.0f, max(-105.0f, x)));
    const int half_exponent = parts.exponent >> 1;
    return (parts.fraction * power_of_two(half_exponent)) * power_of_two(parts.exponent - half_exponent);
}

inline float with_sign_of(float magnitude, float x) {
    return as_type<float>((as_type<uint>(magnitude) & 0x7fffffffu) | (as_type<uint>(x) & 0x80000000u));
}

// x + x p(x^2) below 0.9375, else 1 - exp(-(t + t q(t))) with t = min(|x|, 4).
inline float erf_of(float x) {
    if (is_nan(x)) {
        return x;
    }
    const float s = x * x;
    const float magnitude = fabs(x);
    if (magnitude < 0.9375f) {
        float p = -0.000589223346f;
        p = fma(p, s, 0.00497457758f);
        p = fma(p, s, -0.0267547704f);
        p = fma(p, s, 0.112815291f);
        p = fma(p, s, -0.37612474f);
        p = fma(p, s, 0.128379151f);
        return with_sign_of(fma(p, x, x), x);
    }
    const float t = min(4.0f, magnitude);
    float q = 1.14319837e-05f;
    q = fma(q, t, -0.00032441839f);
    q = fma(q, t, 0.00364740822f);
    q = fma(q, t, -0.0237691216f);
    q = fma(q, t, 0.106241167f);
    q = fma(q, t, 0.635151029f);
    q = fma(q, t, 0.128648013f);
    return with_sign_of(1.0f - exp_within_87(-fma(q, t, t)), x);
}

// x + x^3 p(x^2) below 0.5625, else 1 - 2 / (exp(2 t) + 1) with t = min(|x|, 10).
inline float tanh_of(float x) {
    if (is_nan(x)) {
        return x;
    }
    const float s = x * x;
    const float magnitude = fabs(x);
    if (magnitude < 0.5625f) {
        float p = -0.00589989685f;
        p = fma(p, s, 0.0208001435f);
        p = fma(p, s, -0.0537850969f);
        p = fma(p, s, 0.133319393f);
        p = fma(p, s, -0.333332986f);
        return with_sign_of(fma(p * s, x, x), x);
    }
    const float t = min(10.0f, magnitude);
    return with_sign_of(1.0f - 2.0f / (exp_within_87(t + t) + 1.0f), x);
}

inline float sigmoid_of(float x) {
    return 1.0f / (1.0f + exp_of(-x));
}

inline float silu_of(float x) {
    return x / (1.0f + exp_of(-x));
}

// By the numbers of ACTIVATIONS in backends/gpu/lowering.py; 0 is none.
inline float activated(uint kind, float x) {
    const float h = 0.5f * x;
    switch (kind) {
    case 1u:
        return fma(h, erf_of(x * 0.70710678f), h);
    case 2u: {
        const float u = x * 0.79788456f;
        return fma(h, tanh_of(fma(u, (x * x) * 0.044715f, u)), h);
    }
    case 3u:
        return 0.0f > x ? 0.0f : x;
    case 4u:
        return silu_of(x);
    case 5u:
        return tanh_of(x);
    case 6u:
        return sigmoid_of(x);
    default:
        return x;
    }
}
