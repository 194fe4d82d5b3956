/* scores[i, j] = metric(a[i], b[j]) for all rows of two matrices, as a matrix product is computed.
 *
 * Rows of b are packed in panels of sixteen, [k][16], those of a are read in place. A tile of R rows by one panel (two on
 * AVX-512) stays in registers:
 *
 *                 panel of b
 *     a row 0   [ c c c c ... ]      for each k:  load the panel's sixteen values,
 *     a row 1   [ c c c c ... ]                   broadcast a[r][k] for each row,
 *       ...                                       c[r] += term(a, b)
 *     a row R-1 [ c c c c ... ]
 *
 * Numeric design: each sum is a chain of its own, so a score depends on nothing but its two rows: not on tile, block, thread
 * or what else is scored. k runs in stretches of STRETCH: a chain starts from zero at each, and the stretches' sums are added
 * in order. That shortens the chains (error about (STRETCH + width / STRETCH) 2^-24 of sum |a_k b_k|) and keeps a panel in the
 * first-level cache. Distances take sum (a_k - b_k)^2 term by term, not |a|^2 + |b|^2 - 2ab, which loses close vectors.
 *
 * Bound by the FMA units: 12 multiply-adds for 8 loads in a tile of AVX2.
 */
#include "lattice/transpose.h"
#include "row_sums.h"

#define STRETCH 256
#define VECTORS (LATTICE_PANEL / VF_LANES)

#if defined(LATTICE_ISA_AVX512)
#define TILE_ROWS 12
#define TILE_PANELS 2
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
#define TILE_PANELS 1
#else
#define TILE_ROWS 2
#define TILE_PANELS 1
#endif

typedef void (*tile)(const float *a, size_t a_stride, const float *panel, size_t panel_stride, size_t steps, int adding,
                     float *sums, size_t stride);

/* The term is known at compile time. Four rows of Manhattan and Euclidean terms need a register more each than products. */
LATTICE_INLINE void add_native_term(int metric, vf *sum, vf a, vf b)
{
    if (metric == LATTICE_DOT) {
        vf_accumulate(sum, a, b);
        return;
    }
    const vf difference = vf_sub(a, b);
    if (metric == LATTICE_MANHATTAN)
        *sum = vf_add(*sum, vf_abs(difference));
    else
        vf_accumulate(sum, difference, difference);
}

#define TILE_OF(NAME, METRIC, R, P)                                                                                    \
    static void NAME(const float *restrict a, size_t a_stride, const float *restrict panel, size_t panel_stride,       \
                     size_t steps, int adding, float *restrict sums, size_t stride)                                    \
    {                                                                                                                  \
        vf sum[R][P * VECTORS];                                                                                        \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
            UNROLL for (int j = 0; j < P * VECTORS; j++)                                                               \
                sum[r][j] = vf_zero();                                                                                 \
        UNROLL for (int r = 0; r < R; r++) /* where the sums will go: fetched while they are made */                   \
            UNROLL for (int j = 0; j <= P; j++)                                                                        \
                __builtin_prefetch((const char *)(sums + (size_t)r * stride) + 64 * j, 1);                              \
        UNROLL_FOUR for (size_t k = 0; k < steps; k++)                                                                 \
        {                                                                                                              \
            vf columns[P * VECTORS];                                                                                   \
            UNROLL for (int j = 0; j < P * VECTORS; j++)                                                               \
                columns[j] = vf_load(panel + (size_t)(j / VECTORS) * panel_stride + k * LATTICE_PANEL +                \
                                     (size_t)(j % VECTORS) * VF_LANES);                                                \
            UNROLL for (int r = 0; r < R; r++)                                                                         \
            {                                                                                                          \
                const vf x = vf_set1(a[(size_t)r * a_stride + k]);                                                     \
                UNROLL for (int j = 0; j < P * VECTORS; j++)                                                           \
                    add_native_term(METRIC, &sum[r][j], x, columns[j]);                                                \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int r = 0; r < R; r++)                                                                             \
            UNROLL for (int j = 0; j < P * VECTORS; j++)                                                               \
            {                                                                                                          \
                float *target = sums + (size_t)r * stride + (size_t)j * VF_LANES;                                      \
                vf_store(target, adding ? vf_add(vf_load(target), sum[r][j]) : sum[r][j]);                             \
            }                                                                                                          \
    }

#define TILES_OF(R)                                                                                                    \
    TILE_OF(products_##R, LATTICE_DOT, R, 1)                                                                           \
    TILE_OF(squares_##R, LATTICE_SQUARED_EUCLIDEAN, R, 1)                                                              \
    TILE_OF(magnitudes_##R, LATTICE_MANHATTAN, R, 1)

TILES_OF(1)
TILES_OF(2)
#if TILE_ROWS >= 6
TILES_OF(3)
TILES_OF(4)
TILES_OF(5)
TILES_OF(6)
#endif
#if TILE_ROWS >= 12
TILES_OF(7)
TILES_OF(8)
TILES_OF(9)
TILES_OF(10)
TILES_OF(11)
TILES_OF(12)
TILE_OF(wide_products_12, LATTICE_DOT, 12, 2)
#define TABLE(F) {NULL, F##_1, F##_2, F##_3, F##_4, F##_5, F##_6, F##_7, F##_8, F##_9, F##_10, F##_11, F##_12}
#elif TILE_ROWS >= 6
#define TABLE(F) {NULL, F##_1, F##_2, F##_3, F##_4, F##_5, F##_6}
#else
#define TABLE(F) {NULL, F##_1, F##_2}
#endif

static const tile PRODUCTS[TILE_ROWS + 1] = TABLE(products);
static const tile SQUARES[TILE_ROWS + 1] = TABLE(squares);
static const tile MAGNITUDES[TILE_ROWS + 1] = TABLE(magnitudes);

static void pack(const float *rows, size_t count, size_t width, float *panels)
{
    const int64_t stride = (int64_t)width;
    for (size_t first = 0; first < count; first += LATTICE_PANEL, panels += LATTICE_PANEL * width) {
        const float *source = rows + first * width;
        const size_t here = count - first < LATTICE_PANEL ? count - first : LATTICE_PANEL;
        size_t k = 0;
        if (here == LATTICE_PANEL)
            for (; k + 8 <= width; k += 8)
                for (size_t half = 0; half < LATTICE_PANEL; half += 8)
                    transpose_8x8(source + half * width + k, stride, panels + k * LATTICE_PANEL + half, LATTICE_PANEL);
        for (; k < width; k++)
            for (size_t j = 0; j < LATTICE_PANEL; j++)
                panels[k * LATTICE_PANEL + j] = j < here ? source[j * width + k] : 0.0f;
    }
}

/* One panel (or two, where `wide`) times all rows of a, over one stretch of k. */
LATTICE_INLINE void multiply_panel(const tile *tiles, tile wide, const float *a, size_t a_count, size_t width,
                                   const float *panel, size_t columns, size_t start, size_t steps, float *scores,
                                   size_t stride)
{
    const size_t room = (wide ? 2 : 1) * LATTICE_PANEL, row_tiles = (a_count + TILE_ROWS - 1) / TILE_ROWS;
    size_t row = 0;
    for (size_t t = 0; t < row_tiles; t++) {
        const size_t height = a_count / row_tiles + (t < a_count % row_tiles); /* split evenly: 8 rows are 4 + 4 */
        const float *x = a + row * width + start, *line = panel + start * LATTICE_PANEL;
        float *target = scores + row * stride;
        if (wide && height == TILE_ROWS) {
            wide(x, width, line, width * LATTICE_PANEL, steps, start > 0, target, stride);
        } else {
            for (size_t done = 0; done < room && done < columns; done += LATTICE_PANEL, line += width * LATTICE_PANEL) {
                if (columns - done >= LATTICE_PANEL) {
                    tiles[height](x, width, line, 0, steps, start > 0, target + done, stride);
                    continue;
                }
                float sums[TILE_ROWS * LATTICE_PANEL]; /* the target has no room for a whole panel */
                tiles[height](x, width, line, 0, steps, 0, sums, LATTICE_PANEL);
                for (size_t r = 0; r < height; r++)
                    for (size_t j = 0; j < columns - done; j++) {
                        float *score = target + r * stride + done + j;
                        *score = start > 0 ? *score + sums[r * LATTICE_PANEL + j] : sums[r * LATTICE_PANEL + j];
                    }
            }
        }
        row += height;
    }
}

static void multiply(int metric, const float *a, size_t a_count, const float *panels, size_t b_count, size_t width,
                     float *scores, size_t stride)
{
    const tile *tiles = metric == LATTICE_DOT || metric == LATTICE_COSINE ? PRODUCTS
                        : metric == LATTICE_MANHATTAN                     ? MAGNITUDES
                                                                          : SQUARES;
    if (a_count == 0)
        return;
    if (width == 0) {
        for (size_t i = 0; i < a_count; i++)
            memset(scores + i * stride, 0, b_count * sizeof(float));
        return;
    }
    for (size_t start = 0; start < width; start += STRETCH) {
        const size_t steps = width - start < STRETCH ? width - start : STRETCH;
        size_t column = 0;
#if TILE_PANELS == 2
        if (tiles == PRODUCTS)
            for (; column + 2 * LATTICE_PANEL <= b_count; column += 2 * LATTICE_PANEL)
                multiply_panel(tiles, wide_products_12, a, a_count, width, panels + column * width, 2 * LATTICE_PANEL,
                               start, steps, scores + column, stride);
#endif
        for (; column < b_count; column += LATTICE_PANEL)
            multiply_panel(tiles, NULL, a, a_count, width, panels + column * width, b_count - column, start, steps,
                           scores + column, stride);
    }
}

/* Sixteen cosines at a time from products; those that need double are done again one by one. */
static void finish_cosines(const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                           const double *a_norms, const double *b_norms, float *scores, size_t stride)
{
    const f32x16 one = f32x16_set1(1.0f), minus_one = f32x16_set1(-1.0f);
    for (size_t j = 0; j < b_count; j += BLOCK) {
        const size_t here = b_count - j < BLOCK ? b_count - j : BLOCK;
        float inverse[BLOCK] = {0};
        int b_odd = 0;
        for (size_t i = 0; i < here; i++) {
            inverse[i] = b_norms[j + i] > 0 ? (float)(1.0 / b_norms[j + i]) : 0.0f;
            b_odd |= !(b_norms[j + i] > 0);
        }
        const f32x16 b_inverse = f32x16_load(inverse);
        for (size_t i = 0; i < a_count; i++) {
            float *row = scores + i * stride + j;
            const int a_odd = !(a_norms[i] > 0);
            const f32x16 a_inverse = f32x16_set1(a_odd ? 0.0f : (float)(1.0 / a_norms[i]));
            const f32x16 product = here == BLOCK ? f32x16_load(row) : f32x16_load_tail(row, here);
            /* the inverses first: the same bits whichever matrix is packed */
            f32x16 cosines = f32x16_mul(product, f32x16_mul(a_inverse, b_inverse));
            cosines = f32x16_min(one, f32x16_max(minus_one, cosines)); /* NaN stands second and passes */
            if (here == BLOCK)
                f32x16_store(row, cosines);
            else
                f32x16_store_tail(row, cosines, here);
            if (a_odd || b_odd)
                for (size_t c = 0; c < here; c++)
                    if (a_odd || !(b_norms[j + c] > 0))
                        row[c] = clamped(cosine_in_double(LATTICE_FLOAT32, a + i * width, b + (j + c) * width, width));
        }
    }
}

static void finish(int metric, const float *a, size_t a_count, const float *b, size_t b_count, size_t width,
                   const double *a_norms, const double *b_norms, float *scores, size_t stride)
{
    if (metric == LATTICE_COSINE)
        finish_cosines(a, a_count, b, b_count, width, a_norms, b_norms, scores, stride);
    if (metric != LATTICE_EUCLIDEAN)
        return;
    for (size_t i = 0; i < a_count; i++)
        for (size_t j = 0; j < b_count; j++) {
            float *score = scores + i * stride + j;
            *score = finish_euclidean(LATTICE_FLOAT32, *score, a + i * width, b + j * width, width);
        }
}

const lattice_product_kernels LATTICE_FN(lattice_product_kernels) = {
    .pack = pack,
    .multiply = multiply,
    .finish = finish,
};
