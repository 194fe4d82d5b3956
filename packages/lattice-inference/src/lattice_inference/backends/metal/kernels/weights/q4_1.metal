// 20 bytes for 32 elements: scale (2), offset (2), nibbles (16).
struct Q4_1 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 32u, 20u);
        const float scale = scale_at(block);
        const float offset = scale_at(block + 2u);
        uint q[8];
        nibbles8(block + 4u + k % 16u, k % 32u / 16u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = fma(scale, float(q[i]), offset);
        }
    }
};
