// 18 bytes for 32 elements: scale (2), nibbles (16): element j and j + 16 of the block share byte j.
struct Q4_0 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 32u, 18u);
        const float scale = scale_at(block);
        uint q[8];
        nibbles8(block + 2u + k % 16u, k % 32u / 16u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = scale * (float(q[i]) - 8.0f);
        }
    }
};
