// Weights as the file has them, read where they lie. Each format has a file in weights/ with one accessor, read8(w, row, k, v): the
// elements k to k + 7 of a row as floats, k a multiple of 8; elements from w.depth on are 0. A format's bytes lie one row after the
// other, and nothing is read after the last one. Blocks of 34, 18 or 210 bytes lie at even addresses, and no more is assumed.

struct Weight {
    device const uchar *bytes;
    device const float *scales; // of int8: one for each row of the whole weight
    uint first;                 // the first row of this part of it
    uint depth;
};

// Exact, subnormals included, which hardware may flush to 0.
inline float half_value(uint bits) {
    const uint sign = (bits & 0x8000u) << 16u;
    const uint exponent = (bits >> 10u) & 31u;
    const uint mantissa = bits & 1023u;
    if (exponent == 0u) {
        const float tiny = float(mantissa) * 5.96046448e-08f;
        return sign != 0u ? -tiny : tiny;
    }
    return as_type<float>(sign | ((exponent == 31u ? 255u : exponent + 112u) << 23u) | (mantissa << 13u));
}

inline uint pair_at(device const uchar *at) {
    return uint(*(device const ushort *)at);
}

inline float scale_at(device const uchar *at) {
    return half_value(pair_at(at));
}

// Block number k / elements of a row, of so many bytes.
inline device const uchar *block_at(Weight w, uint row, uint k, uint elements, uint nbytes) {
    return w.bytes + (ulong(row) * (w.depth / elements) + k / elements) * nbytes;
}

// The low or high nibbles (shift 0 or 4) of eight bytes.
inline void nibbles8(device const uchar *at, uint shift, thread uint *q) {
    for (uint i = 0u; i < 4u; i++) {
        const uint pair = pair_at(at + 2u * i) >> shift;
        q[2u * i] = pair & 15u;
        q[2u * i + 1u] = (pair >> 8u) & 15u;
    }
}
