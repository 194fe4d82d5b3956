// 210 bytes for 256 elements: low nibbles (128), in runs of 64 bytes as Q4_K in runs of 32; two high bits (64), in runs of 32 bytes,
// four elements a byte; a signed scale for each 16 elements (16); scale (2).
struct Q6_K {
    static void read8(Weight w, uint row, uint k, thread float *v) {
        device const uchar *block = block_at(w, row, k, 256u, 210u);
        const uint e = k % 256u;
        device const uchar *high = block + 128u + e / 128u * 32u + e % 32u;
        const uint shift = e % 128u / 32u * 2u;
        const float scale = scale_at(block + 208u) * float(*(device const char *)(block + 192u + e / 16u));
        uint q[8];
        nibbles8(block + e / 128u * 64u + e % 64u, e % 128u / 64u * 4u, q);
        for (uint i = 0u; i < 8u; i++) {
            v[i] = scale * (float(q[i] | ((uint(high[i]) >> shift) & 3u) << 4u) - 32.0f);
        }
    }
};
