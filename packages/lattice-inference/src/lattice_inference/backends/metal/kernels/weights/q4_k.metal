// 144 bytes for 256 elements: scale (2), minimum (2), scales and minima of eight groups (12), nibbles (128): in each run of 32 bytes
// the low nibbles of one group and the high ones of the next.
struct Q4_K {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 256u, 144u);
        const uint g = k % 256u / 32u;
        const GroupFactors factors = group_factors(block + 4u, g, scale_at(block), scale_at(block + 2u));
        uint q[8];
        nibbles8(block + 16u + g / 2u * 32u + k % 32u, g % 2u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = fma(factors.scale, float(q[i]), -factors.minimum);
        }
    }
};
