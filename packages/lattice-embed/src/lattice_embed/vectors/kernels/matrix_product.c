/* scores[i, j] = metric(a[i], b[j]) for all rows of two matrices, as a matrix product is computed.
 *
 * Rows of b are packed in panels of sixteen, [k][16], those of a are read in place (packed_tiles.h: or copied first). A tile
 * of R rows by one panel, on AVX-512 also by two, stays in registers:
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
 * Cosines are finished tile by tile, while the sums are in the first-level cache.
 *
 * Bound by the FMA units: 12 multiply-adds for 8 loads in a tile of AVX2.
 */
#include "lattice/transpose.h"
#include "row_sums.h"

#define STRETCH 256
#define VECTORS (LATTICE_PANEL / VF_LANES)

#if defined(LATTICE_ISA_AVX512)
#define TILE_ROWS 12
#include "packed_tiles.h"
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define TILE_ROWS 6
#else
#define TILE_ROWS 2
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
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < P * VECTORS; j++)                                                       \
                sum[r][j] = vf_zero();                                                                                 \
        LATTICE_UNROLL for (int r = 0; r < R; r++) /* where the sums will go: fetched while they are made */           \
            LATTICE_UNROLL for (int j = 0; j <= P; j++)                                                                \
                __builtin_prefetch((const char *)(sums + (size_t)r * stride) + 64 * j, 1);                              \
        UNROLL_FOUR for (size_t k = 0; k < steps; k++)                                                                 \
        {                                                                                                              \
            vf columns[P * VECTORS];                                                                                   \
            LATTICE_UNROLL for (int j = 0; j < P * VECTORS; j++)                                                       \
                columns[j] = vf_load(panel + (size_t)(j / VECTORS) * panel_stride + k * LATTICE_PANEL +                \
                                     (size_t)(j % VECTORS) * VF_LANES);                                                \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const vf x = vf_set1(a[(size_t)r * a_stride + k]);                                                     \
                LATTICE_UNROLL for (int j = 0; j < P * VECTORS; j++)                                                   \
                    add_native_term(METRIC, &sum[r][j], x, columns[j]);                                                \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < P * VECTORS; j++)                                                       \
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
TILE_OF(wide_products, LATTICE_DOT, TILE_ROWS, 2)
#define WIDE_PRODUCTS wide_products
#define WIDE_COLUMNS (2 * LATTICE_PANEL)
#define TABLE(F) {NULL, F##_1, F##_2, F##_3, F##_4, F##_5, F##_6, F##_7, F##_8, F##_9, F##_10, F##_11, F##_12}
#elif TILE_ROWS >= 6
#define TABLE(F) {NULL, F##_1, F##_2, F##_3, F##_4, F##_5, F##_6}
#else
#define TABLE(F) {NULL, F##_1, F##_2}
#endif

#if !defined(WIDE_PRODUCTS)
#define WIDE_PRODUCTS PRODUCTS[TILE_ROWS]
#define WIDE_COLUMNS LATTICE_PANEL
#endif

static const tile PRODUCTS[TILE_ROWS + 1] = TABLE(products);
static const tile SQUARES[TILE_ROWS + 1] = TABLE(squares);
static const tile MAGNITUDES[TILE_ROWS + 1] = TABLE(magnitudes);

static void pack_panels(const float *rows, size_t count, size_t width, float *panels)
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

/* How the rows are cut: evenly, 8 are 4 + 4 where a tile may have 6. */
typedef struct {
    size_t tiles, height, higher; /* the first `higher` tiles have a row more */
} row_cut;

LATTICE_INLINE row_cut cut_rows(size_t rows)
{
    const size_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    return (row_cut){tiles, rows / tiles, rows % tiles};
}

/* Sums become cosines. The inverses first: the same bits whichever matrix is packed. */
static void finish_cosines(const float *a_inverses, size_t rows, const float *b_inverses, size_t columns, float *scores,
                           size_t stride)
{
    const f32x16 one = f32x16_set1(1.0f), minus_one = f32x16_set1(-1.0f);
    for (size_t j = 0; j < columns; j += BLOCK) {
        const size_t here = columns - j < BLOCK ? columns - j : BLOCK;
        const f32x16 b_inverse = f32x16_load_tail(b_inverses + j, here);
        for (size_t i = 0; i < rows; i++) {
            float *row = scores + i * stride + j;
            const f32x16 product = here == BLOCK ? f32x16_load(row) : f32x16_load_tail(row, here);
            f32x16 cosines = f32x16_mul(product, f32x16_mul(f32x16_set1(a_inverses[i]), b_inverse));
            cosines = f32x16_min(one, f32x16_max(minus_one, cosines)); /* NaN stands second and passes */
            if (here == BLOCK)
                f32x16_store(row, cosines);
            else
                f32x16_store_tail(row, cosines, here);
        }
    }
}

/* A stretch of k: where it begins, and what is done besides adding the products. */
typedef struct {
    size_t start, steps;
    int adding;    /* sums of stretches before it lie there */
    int finishing; /* it is the last one, and the sums become cosines */
} stretch;

#if defined(LATTICE_ISA_AVX512)
/* Whether the rows split into tiles that exist packed. */
static int has_packed_tiles(size_t rows) { return cut_rows(rows).height >= PACKED_LEAST_ROWS; }

static void pack_tiles(const float *rows, size_t count, size_t width, float *packed)
{
    if (!has_packed_tiles(count))
        return;
    const row_cut cut = cut_rows(count);
    for (size_t t = 0; t < cut.tiles; t++) {
        const size_t height = cut.height + (t < cut.higher);
        pack_rows(rows, (int64_t)width, (int64_t)height, (int64_t)width, packed);
        rows += height * width;
        packed += height * width;
    }
}

/* `wide` whole panels from `column` on times all rows of a, over one stretch of k. */
static void score_packed_panels(const lattice_product *product, size_t column, size_t wide, stretch part)
{
    const row_cut cut = cut_rows(product->a_count);
    const size_t panel_stride = product->width * LATTICE_PANEL;
    const float *panel = product->panels + column * product->width + part.start * LATTICE_PANEL;
    const float *following = column + 2 * wide * LATTICE_PANEL <= product->b_count ? panel + wide * panel_stride : NULL;
    const size_t lines = cut.tiles >= 4 ? 1 : cut.tiles >= 2 ? 2 : 4; /* so that the tiles ask for all of them */
    const size_t asked = lines * (part.steps / 4) * LATTICE_PANEL;
    for (size_t t = 0, row = 0; t < cut.tiles; t++) {
        const size_t height = cut.height + (t < cut.higher);
        float *scores = product->scores + row * product->stride + column;
        next_panels next = {NULL, 0};
        if (following != NULL && t * lines < 4)
            next = (next_panels){following + t * asked, (int)lines};
        packed_tiles[wide - 1][height - PACKED_LEAST_ROWS](product->tiles + row * product->width + part.start * height,
                                                           panel, panel_stride, part.steps, part.adding, scores,
                                                           product->stride, next);
        if (part.finishing)
            finish_cosines(product->a_inverses + row, height, product->b_inverses + column, wide * LATTICE_PANEL, scores,
                           product->stride);
        row += height;
    }
}

/* Scores what panels are whole, where the rows of a are packed. Returns how many columns that were. */
static size_t score_packed(const lattice_product *product, stretch part)
{
    if (product->tiles == NULL || !has_packed_tiles(product->a_count))
        return 0;
    const size_t columns = product->b_count / LATTICE_PANEL * LATTICE_PANEL;
    for (size_t column = 0, wide; column < columns; column += wide * LATTICE_PANEL) {
        wide = columns - column >= PACKED_PANELS * LATTICE_PANEL ? PACKED_PANELS : 1;
        score_packed_panels(product, column, wide, part);
    }
    return columns;
}
#else
static size_t score_packed(const lattice_product *product, stretch part)
{
    (void)product;
    (void)part;
    return 0;
}
#endif

/* Sums of a tile and one panel, whose last columns the scores may have no room for. */
static void add_panel(tile add, const float *a, size_t height, size_t width, const float *panel, size_t columns,
                      stretch part, float *scores, size_t stride)
{
    if (columns >= LATTICE_PANEL) {
        add(a, width, panel, 0, part.steps, part.adding, scores, stride);
        return;
    }
    float sums[TILE_ROWS * LATTICE_PANEL];
    add(a, width, panel, 0, part.steps, 0, sums, LATTICE_PANEL);
    for (size_t r = 0; r < height; r++)
        for (size_t j = 0; j < columns; j++) {
            float *score = scores + r * stride + j;
            *score = part.adding ? *score + sums[r * LATTICE_PANEL + j] : sums[r * LATTICE_PANEL + j];
        }
}

/* Columns of one panel or two times all rows of a, read in place, over one stretch of k. */
static void score_in_place(const lattice_product *product, const tile *tiles, size_t column, size_t columns, stretch part)
{
    const row_cut cut = cut_rows(product->a_count);
    const size_t width = product->width, stride = product->stride, panel_stride = width * LATTICE_PANEL;
    const float *panel = product->panels + column * width + part.start * LATTICE_PANEL;
    for (size_t t = 0, row = 0; t < cut.tiles; t++) {
        const size_t height = cut.height + (t < cut.higher);
        const float *a = product->a + row * width + part.start;
        float *scores = product->scores + row * stride + column;
        if (columns == WIDE_COLUMNS && height == TILE_ROWS && tiles == PRODUCTS) {
            WIDE_PRODUCTS(a, width, panel, panel_stride, part.steps, part.adding, scores, stride);
        } else {
            add_panel(tiles[height], a, height, width, panel, columns, part, scores, stride);
            if (columns > LATTICE_PANEL)
                add_panel(tiles[height], a, height, width, panel + panel_stride, columns - LATTICE_PANEL, part,
                          scores + LATTICE_PANEL, stride);
        }
        if (part.finishing)
            finish_cosines(product->a_inverses + row, height, product->b_inverses + column, columns, scores, stride);
        row += height;
    }
}

static void add_terms(const lattice_product *product)
{
    const int is_product = product->metric == LATTICE_DOT || product->metric == LATTICE_COSINE;
    const tile *tiles = is_product ? PRODUCTS : product->metric == LATTICE_MANHATTAN ? MAGNITUDES : SQUARES;
    const size_t width = product->width;
    for (size_t start = 0; start < width; start += STRETCH) {
        const size_t steps = width - start < STRETCH ? width - start : STRETCH;
        const stretch part = {start, steps, start > 0, product->metric == LATTICE_COSINE && start + steps == width};
        size_t column = is_product ? score_packed(product, part) : 0;
        for (size_t columns; column < product->b_count; column += columns) {
            columns = product->b_count - column < WIDE_COLUMNS ? product->b_count - column : WIDE_COLUMNS;
            score_in_place(product, tiles, column, columns, part);
        }
    }
}

static void score_again(const lattice_product *product, size_t i, size_t j)
{
    const float *a = product->a + i * product->width, *b = product->b + j * product->width;
    product->scores[i * product->stride + j] = clamped(cosine_in_double(LATTICE_FLOAT32, a, b, product->width));
}

/* Cosines with rows that have no inverse length. */
static void finish_odd_cosines(const lattice_product *product)
{
    for (size_t i = 0; i < product->a_count; i++)
        if (product->a_inverses[i] == 0)
            for (size_t j = 0; j < product->b_count; j++)
                score_again(product, i, j);
    for (size_t j = 0; j < product->b_count; j++)
        if (product->b_inverses[j] == 0)
            for (size_t i = 0; i < product->a_count; i++)
                score_again(product, i, j);
}

static void finish_distances(const lattice_product *product)
{
    const size_t width = product->width;
    for (size_t i = 0; i < product->a_count; i++)
        for (size_t j = 0; j < product->b_count; j++) {
            float *score = product->scores + i * product->stride + j;
            *score = finish_euclidean(LATTICE_FLOAT32, *score, product->a + i * width, product->b + j * width, width);
        }
}

static void score(const lattice_product *product)
{
    if (product->a_count == 0)
        return;
    if (product->width == 0)
        for (size_t i = 0; i < product->a_count; i++)
            memset(product->scores + i * product->stride, 0, product->b_count * sizeof(float));
    add_terms(product);
    if (product->metric == LATTICE_COSINE)
        finish_odd_cosines(product);
    if (product->metric == LATTICE_EUCLIDEAN)
        finish_distances(product);
}

const lattice_product_kernels LATTICE_FN(lattice_product_kernels) = {
    .pack_panels = pack_panels,
#if defined(LATTICE_ISA_AVX512)
    .pack_tiles = pack_tiles,
#endif
    .score = score,
};
