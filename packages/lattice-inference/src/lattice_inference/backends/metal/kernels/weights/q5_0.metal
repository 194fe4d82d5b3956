// 22 bytes for 32 elements: scale (2), a fifth bit for each (4), nibbles (16).
struct Q5_0 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 32u, 22u);
        const float scale = scale_at(block);
        const uint fifth = pair_at(block + 2u + k % 32u / 16u * 2u) >> (k % 16u);
        uint q[8];
        nibbles8(block + 6u + k % 16u, k % 32u / 16u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = scale * (float(q[i] | ((fifth >> i) & 1u) << 4u) - 16.0f);
        }
    }
};
