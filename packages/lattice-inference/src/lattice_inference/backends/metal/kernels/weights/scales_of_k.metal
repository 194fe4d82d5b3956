// Scale and minimum of a group (32 elements) of Q4_K and Q5_K: six bits each, in the twelve bytes from `packed` on.
struct GroupFactors {
    float scale;
    float minimum;
};

inline GroupFactors group_factors(device const uchar *packed, uint g, float scale, float minimum) {
    uint of_scale = packed[g] & 63u;
    uint of_minimum = packed[4u + g] & 63u;
    if (g >= 4u) {
        const uint low = packed[4u + g];
        of_scale = (low & 15u) | (uint(packed[g - 4u]) >> 6u) << 4u;
        of_minimum = (low >> 4u) | (uint(packed[g]) >> 6u) << 4u;
    }
    const GroupFactors factors = {float(of_scale) * scale, float(of_minimum) * minimum};
    return factors;
}
