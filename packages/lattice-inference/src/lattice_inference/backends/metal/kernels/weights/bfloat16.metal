// The upper half of a float32.
struct Bfloat16 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const ushort *at = (device const ushort *)w.bytes + (ulong(row) * w.depth + k);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = k + i < w.depth ? as_type<float>(uint(at[i]) << 16u) : 0.0f;
        }
    }
};
