// 176 bytes for 256 elements: scale (2), minimum (2), scales and minima of eight groups (12), fifth bits (32): bit g of byte j is that
// of element j of group g, nibbles (128).
struct Q5_K {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 256u, 176u);
        const uint g = k % 256u / 32u;
        const GroupFactors factors = group_factors(block + 4u, g, scale_at(block), scale_at(block + 2u));
        device const uchar *fifth = block + 16u + k % 32u;
        uint q[8];
        nibbles8(block + 48u + g / 2u * 32u + k % 32u, g % 2u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = fma(factors.scale, float(q[i] | ((uint(fifth[i]) >> g) & 1u) << 4u), -factors.minimum);
        }
    }
};
