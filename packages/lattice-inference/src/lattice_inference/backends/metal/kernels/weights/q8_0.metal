// 34 bytes for 32 elements: scale (2), integers (32).
struct Q8_0 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 32u, 34u);
        device const char *at = (device const char *)(block + 2u + k % 32u);
        const float scale = scale_at(block);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = scale * float(at[i]);
        }
    }
};
