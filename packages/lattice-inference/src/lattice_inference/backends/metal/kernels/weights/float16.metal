struct Float16 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const ushort *at = (device const ushort *)w.bytes + (ulong(row) * w.depth + k);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = k + i < w.depth ? half_value(at[i]) : 0.0f;
        }
    }
};
