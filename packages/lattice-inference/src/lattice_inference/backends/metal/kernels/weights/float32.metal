struct Float32 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const float *at = (device const float *)w.bytes + (ulong(row) * w.depth + k);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = k + i < w.depth ? at[i] : 0.0f;
        }
    }
};
