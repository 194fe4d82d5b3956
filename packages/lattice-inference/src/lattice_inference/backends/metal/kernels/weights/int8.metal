// Integers in rows, with a scale for each row; a weight that is cut into parts has all scales in each.
struct Int8 {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const char *at = (device const char *)w.bytes + (ulong(row) * w.depth + k);
        const float scale = w.scales[w.first + row];
        for (uint i = 0u; i < 8u; i++) {
            v[i] = k + i < w.depth ? float(at[i]) * scale : 0.0f;
        }
    }
};
