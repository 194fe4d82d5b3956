/* c[r][j] += sum over i of a[r][i] b[i][j], each a chain of fused multiply-adds in ascending i, with b in the type that keys and
 * values are kept in; and the same elements widened. Included once for each type: KV is an element, KV_LOAD(p) widens a vector
 * of them, KV_NAME(name) makes names of their own. `next` is where the rows lie that are wanted after these: each step asks
 * memory for one of them.
 */
#define PAGED_TILE(R, V)                                                                                               \
    static void KV_NAME(paged_##R##x##V)(const float *restrict a, int64_t a_stride, const KV *restrict b, int64_t b_stride, \
                                         int64_t k, float *restrict c, int64_t c_stride, int fresh, const KV *next)    \
    {                                                                                                                  \
        vf sum[R][V];                                                                                                  \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                sum[r][j] = fresh ? vf_zero() : vf_load(c + r * c_stride + j * VF_LANES);                              \
        for (int64_t i = 0; i < k; i++) {                                                                              \
            vf x[R];                                                                                                   \
            __builtin_prefetch(next + i * b_stride, 0, 3);                                                             \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
                x[r] = vf_set1(a[r * a_stride + i]);                                                                   \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
            {                                                                                                          \
                const vf column = KV_LOAD(b + i * b_stride + j * VF_LANES);                                            \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                    vf_accumulate(&sum[r][j], x[r], column);                                                           \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                vf_store(c + r * c_stride + j * VF_LANES, sum[r][j]);                                                  \
    }

PAGED_TILE(1, 1) PAGED_TILE(2, 1) PAGED_TILE(3, 1)
PAGED_TILE(1, 2) PAGED_TILE(2, 2) PAGED_TILE(3, 2)
PAGED_TILE(1, 4) PAGED_TILE(2, 4) PAGED_TILE(3, 4)
#if PAGED_TILE_ROWS == 6
PAGED_TILE(4, 1) PAGED_TILE(5, 1) PAGED_TILE(6, 1)
PAGED_TILE(4, 2) PAGED_TILE(5, 2) PAGED_TILE(6, 2)
PAGED_TILE(4, 4) PAGED_TILE(5, 4) PAGED_TILE(6, 4)
#endif
#undef PAGED_TILE

/* `rows` rows, from 1 to PAGED_TILE_ROWS, by `columns` columns, a multiple of 16. */
LATTICE_INLINE void KV_NAME(paged_product)(int64_t rows, const float *a, int64_t a_stride, const char *b, int64_t b_stride,
                                           int64_t k, float *c, int64_t c_stride, int64_t columns, int fresh,
                                           const char *next)
{
    static void (*const tiles[PAGED_TILE_ROWS][3])(const float *, int64_t, const KV *, int64_t, int64_t, float *, int64_t,
                                                   int, const KV *) = {
        {KV_NAME(paged_1x1), KV_NAME(paged_1x2), KV_NAME(paged_1x4)},
        {KV_NAME(paged_2x1), KV_NAME(paged_2x2), KV_NAME(paged_2x4)},
        {KV_NAME(paged_3x1), KV_NAME(paged_3x2), KV_NAME(paged_3x4)},
#if PAGED_TILE_ROWS == 6
        {KV_NAME(paged_4x1), KV_NAME(paged_4x2), KV_NAME(paged_4x4)},
        {KV_NAME(paged_5x1), KV_NAME(paged_5x2), KV_NAME(paged_5x4)},
        {KV_NAME(paged_6x1), KV_NAME(paged_6x2), KV_NAME(paged_6x4)},
#endif
    };
    for (int64_t j = 0; j < columns;) {
        const int64_t left = (columns - j) / VF_LANES;
        const int wide = left >= 4 ? 2 : left >= 2 ? 1 : 0;
        tiles[rows - 1][wide](a, a_stride, (const KV *)b + j, b_stride, k, c + j, c_stride, fresh, (const KV *)next + j);
        j += VF_LANES << wide;
    }
}

/* y[rows][y_stride] = x[rows][columns] as floats. */
static void KV_NAME(widen)(const char *x, int64_t rows, int64_t columns, float *restrict y, int64_t y_stride)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j += VF_LANES)
            vf_store(y + r * y_stride + j, KV_LOAD((const KV *)x + r * columns + j));
}

#undef KV
#undef KV_LOAD
#undef KV_NAME
