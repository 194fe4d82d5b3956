/* The attention of attention.h for AVX-512, with sixteen queries in the lanes of a vector: the same bits, turned around.
 *
 *     K packed for tiles of keys, [tile][dim][R]      S^T panels [queries/16][keys][16] = K Q^T
 *     Q^T panels [queries/16][dim][16]                p = exp(scale s - max): every step of it is one vector's, no lane asks
 *     V rows [keys][dim], one behind the other        O^T panels [queries/16][dim][16] = V^T p
 *
 * Both products read one element of the left matrix for all lanes and a vector of the right one; neither the scores nor the
 * values need to be turned, and a query needs no fold over its lanes. Keys need not fill vectors: a text of ten tokens
 * multiplies ten keys.
 *
 * Numeric design: each score is the chain over the dimensions, each output the chain over the keys. Sums of p go by the
 * number of the key through sixteen vectors, the lanes of the definition, and its fold over them. So each lane does to its
 * query what attention.h does.
 */
#ifndef LATTICE_ATTENTION_COLUMNS_H
#define LATTICE_ATTENTION_COLUMNS_H

#include "linear/gemm_packed.h"
#include "lattice/transpose.h"
#include "lattice/vector_math.h"

#define COLUMN_PANELS 2 /* panels of queries that a pass takes: LATTICE_QUERY_COLUMNS in lanes */

/* y[r][lane] = sum over i of a[i][r] b[i][lane], for rows of a `a_step` floats apart and panels of b and y. */
typedef void (*column_tile)(const float *a, int64_t a_step, const float *b, int64_t b_panel, int64_t k, float *y,
                            int64_t y_panel);

#define COLUMN_TILE(R, P)                                                                                              \
    static void column_##R##x##P(const float *restrict a, int64_t a_step, const float *restrict b, int64_t b_panel,     \
                                 int64_t k, float *restrict y, int64_t y_panel)                                        \
    {                                                                                                                  \
        f32x16 sum[R][P];                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                sum[r][p] = f32x16_zero();                                                                             \
        for (int64_t i = 0; i < k; i++, a += a_step, b += LATTICE_PANEL) {                                             \
            f32x16 columns[P];                                                                                         \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                columns[p] = f32x16_load(b + p * b_panel);                                                             \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                if (P > 1 && r % 2 == 0) {                                                                             \
                    const f32x16 x = f32x16_set1(a[r]);                                                                \
                    LATTICE_UNROLL for (int p = 0; p < P; p++)                                                         \
                        vf_accumulate(&sum[r][p], x, columns[p]);                                                      \
                } else {                                                                                               \
                    LATTICE_UNROLL for (int p = 0; p < P; p++)                                                         \
                        vf_accumulate_element(&sum[r][p], a + r, columns[p]);                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int p = 0; p < P; p++)                                                                 \
                f32x16_store(y + p * y_panel + r * LATTICE_PANEL, sum[r][p]);                                          \
    }

#define COLUMN_TILES(R) COLUMN_TILE(R, 1) COLUMN_TILE(R, 2)
COLUMN_TILES(1) COLUMN_TILES(2) COLUMN_TILES(3) COLUMN_TILES(4) COLUMN_TILES(5) COLUMN_TILES(6) COLUMN_TILES(7)
COLUMN_TILES(8) COLUMN_TILES(9) COLUMN_TILES(10) COLUMN_TILES(11) COLUMN_TILES(12) COLUMN_TILES(13) COLUMN_TILES(14)
#undef COLUMN_TILES
#undef COLUMN_TILE

static const column_tile column_tiles[TILE_ROWS + 1][COLUMN_PANELS] = {
    {0},
    {column_1x1, column_1x2},   {column_2x1, column_2x2},   {column_3x1, column_3x2},   {column_4x1, column_4x2},
    {column_5x1, column_5x2},   {column_6x1, column_6x2},   {column_7x1, column_7x2},   {column_8x1, column_8x2},
    {column_9x1, column_9x2},   {column_10x1, column_10x2}, {column_11x1, column_11x2}, {column_12x1, column_12x2},
    {column_13x1, column_13x2}, {column_14x1, column_14x2}};

/* Where tile `t` begins when `count` rows of a product are spread evenly over `tiles`. */
LATTICE_INLINE int64_t column_tile_begin(int64_t count, int64_t tiles, int64_t t)
{
    return count * t / tiles;
}

/* x[row][dim] -> panels [row / 16][dim][16]; columns of rows that do not exist are zeros. */
LATTICE_INLINE void turn_rows(const float *x, int64_t stride, int64_t rows, int64_t head_dim, float *panels)
{
    const int64_t blocks = head_dim / 8 * 8;
    for (int64_t row = 0; row < lattice_round_up(rows, LATTICE_PANEL); row += 8) {
        const int64_t here = rows - row < 8 ? rows - row : 8; /* none or less for the second half of a panel */
        float *panel = panels + row / LATTICE_PANEL * LATTICE_PANEL * head_dim + row % LATTICE_PANEL;
        if (here == 8) {
            for (int64_t d = 0; d < blocks; d += 8)
                transpose_8x8(x + row * stride + d, stride, panel + d * LATTICE_PANEL, LATTICE_PANEL);
            for (int64_t d = blocks; d < head_dim; d++)
                for (int64_t j = 0; j < 8; j++)
                    panel[d * LATTICE_PANEL + j] = x[(row + j) * stride + d];
            continue;
        }
        float last[8 * 8] = {0};
        for (int64_t d = 0; d < head_dim; d += 8) {
            const int64_t columns = head_dim - d < 8 ? head_dim - d : 8;
            for (int64_t j = 0; j < here; j++)
                memcpy(last + j * 8, x + (row + j) * stride + d, (size_t)columns * sizeof(float));
            if (columns == 8)
                transpose_8x8(last, 8, panel + d * LATTICE_PANEL, LATTICE_PANEL);
            else
                for (int64_t i = 0; i < columns; i++)
                    for (int64_t j = 0; j < 8; j++)
                        panel[(d + i) * LATTICE_PANEL + j] = last[j * 8 + i];
        }
    }
}

/* s -> exp(scale s - shift) of `count` keys from `key` on, added to the lanes of their numbers. */
LATTICE_INLINE void column_exponentials(int count, int within_87, float *s, int64_t key, f32x16 scale, f32x16 shift,
                                        float *lanes)
{
    f32x16 p[LATTICE_SIDE_BY_SIDE];
    for (int j = 0; j < count; j++)
        p[j] = f32x16_sub(f32x16_mul(f32x16_load(s + (key + j) * 16), scale), shift);
    if (within_87)
        lattice_exp_within_87_each(count, p, p);
    else
        lattice_exp_each(count, p, p);
    for (int j = 0; j < count; j++) {
        float *lane = lanes + (key + j) % 16 * 16;
        f32x16_store(s + (key + j) * 16, p[j]);
        f32x16_store(lane, f32x16_add(f32x16_load(lane), p[j]));
    }
}

LATTICE_INLINE void column_exponentials_of(int within_87, float *s, int64_t keys, f32x16 scale, f32x16 shift, float *lanes)
{
    int64_t key = 0;
    for (; key + LATTICE_SIDE_BY_SIDE <= keys; key += LATTICE_SIDE_BY_SIDE)
        column_exponentials(LATTICE_SIDE_BY_SIDE, within_87, s, key, scale, shift, lanes);
    for (; key < keys; key++)
        column_exponentials(1, within_87, s, key, scale, shift, lanes);
}

/* s [keys][16] -> exp(x - max(x)) for x = scale s, in place; the maximum and the sum of each lane. */
static void column_softmax(float *s, int64_t keys, f32x16 scale, float *maximum, float *sum)
{
    f32x16 most[4], least[4];
    for (int j = 0; j < 4; j++)
        most[j] = least[j] = f32x16_mul(f32x16_load(s), scale);
    int64_t key = 0;
    for (; key + 4 <= keys; key += 4)
        for (int j = 0; j < 4; j++) {
            const f32x16 x = f32x16_mul(f32x16_load(s + (key + j) * 16), scale);
            most[j] = f32x16_max(most[j], x);
            least[j] = f32x16_min(least[j], x);
        }
    for (; key < keys; key++) {
        const f32x16 x = f32x16_mul(f32x16_load(s + key * 16), scale);
        most[0] = f32x16_max(most[0], x);
        least[0] = f32x16_min(least[0], x);
    }
    const f32x16 shift = f32x16_max(f32x16_max(most[0], most[1]), f32x16_max(most[2], most[3]));
    const f32x16 lowest = f32x16_min(f32x16_min(least[0], least[1]), f32x16_min(least[2], least[3]));
    float lanes[16 * 16] __attribute__((aligned(64))) = {0};
    if (f32x16_less(f32x16_sub(lowest, shift), f32x16_set1(-87.0f)))
        column_exponentials_of(0, s, keys, scale, shift, lanes);
    else
        column_exponentials_of(1, s, keys, scale, shift, lanes);
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            f32x16_store(lanes + j * 16, f32x16_add(f32x16_load(lanes + j * 16), f32x16_load(lanes + (j + half) * 16)));
    f32x16_store(maximum, shift);
    f32x16_store(sum, f32x16_load(lanes));
}

/* Folds a later segment's (output, maximum, sum) of sixteen queries into those of the segments before it. */
static void merge_columns(float *output, float *maximum, float *sum, const float *output2, const float *maximum2,
                          const float *sum2, int64_t head_dim)
{
    const f32x16 first = f32x16_load(maximum), second = f32x16_load(maximum2), most = f32x16_max(first, second);
    const f32x16 f1 = f32x16_exp(f32x16_sub(first, most)), f2 = f32x16_exp(f32x16_sub(second, most));
    for (int64_t d = 0; d < head_dim; d++) {
        float *y = output + d * 16;
        f32x16_store(y, f32x16_fma(f32x16_load(output2 + d * 16), f2, f32x16_mul(f32x16_load(y), f1)));
    }
    f32x16_store(sum, f32x16_fma(f32x16_load(sum2), f2, f32x16_mul(f32x16_load(sum), f1)));
    f32x16_store(maximum, most);
}

/* Rows of one head's queries, keys and values, and scratch of lattice_scratch_bytes. */
typedef struct {
    const float *queries, *keys, *values;
    int64_t query_stride, key_stride, value_stride;
    int64_t query_count, key_count, head_dim;
    int64_t query_rows; /* rows of scratch for outputs: whole vectors of queries */
    float scale;
} column_attention;

/* Attends to all keys. Leaves o in panels [query / 16][dim][16] at `scratch`, and the sums l of its queries behind
 * `query_rows` rows of it: the output is o / l. */
static void attend_by_columns(const column_attention *of, float *scratch)
{
    const int64_t head_dim = of->head_dim, width = lattice_round_up(head_dim, LATTICE_PANEL), panel = head_dim * 16;
    const int64_t most_keys = of->key_count < LATTICE_KEY_SEGMENT ? of->key_count : LATTICE_KEY_SEGMENT;
    const int64_t dim_tiles = lattice_divide_up(head_dim, TILE_ROWS);
    float *output = scratch;
    float *sum = output + of->query_rows * width, *maximum = sum + of->query_rows;
    float *queries = maximum + of->query_rows + LATTICE_PANEL * width, *output2 = queries + COLUMN_PANELS * panel;
    float *scores = output2 + COLUMN_PANELS * panel, *keys = scores + COLUMN_PANELS * 16 * most_keys;
    float *values = keys + most_keys * head_dim;
    const f32x16 scale = f32x16_set1(of->scale);

    for (int64_t key = 0; key < of->key_count; key += LATTICE_KEY_SEGMENT) {
        const int64_t count = of->key_count - key < LATTICE_KEY_SEGMENT ? of->key_count - key : LATTICE_KEY_SEGMENT;
        const int64_t key_tiles = lattice_divide_up(count, TILE_ROWS);
        for (int64_t t = 0; t < key_tiles; t++) {
            const int64_t first = column_tile_begin(count, key_tiles, t);
            pack_rows(of->keys + (key + first) * of->key_stride, of->key_stride,
                      column_tile_begin(count, key_tiles, t + 1) - first, head_dim, keys + first * head_dim);
        }
        for (int64_t j = 0; j < count; j++)
            memcpy(values + j * head_dim, of->values + (key + j) * of->value_stride, (size_t)head_dim * sizeof(float));
        for (int64_t query = 0; query < of->query_count; query += COLUMN_PANELS * 16) {
            const int64_t left = of->query_count - query, here = left < COLUMN_PANELS * 16 ? left : COLUMN_PANELS * 16;
            const int64_t panels = lattice_divide_up(here, 16);
            float maximum2[COLUMN_PANELS * 16], sum2[COLUMN_PANELS * 16];
            turn_rows(of->queries + query * of->query_stride, of->query_stride, here, head_dim, queries);
            for (int64_t t = 0; t < key_tiles; t++) {
                const int64_t first = column_tile_begin(count, key_tiles, t);
                const int64_t height = column_tile_begin(count, key_tiles, t + 1) - first;
                column_tiles[height][panels - 1](keys + first * head_dim, height, queries, panel, head_dim,
                                                 scores + first * 16, count * 16);
            }
            float *o = key == 0 ? output + query * head_dim : output2;
            for (int64_t p = 0; p < panels; p++)
                column_softmax(scores + p * count * 16, count, scale, (key == 0 ? maximum + query : maximum2) + p * 16,
                               (key == 0 ? sum + query : sum2) + p * 16);
            for (int64_t t = 0; t < dim_tiles; t++) {
                const int64_t first = column_tile_begin(head_dim, dim_tiles, t);
                column_tiles[column_tile_begin(head_dim, dim_tiles, t + 1) - first][panels - 1](
                    values + first, head_dim, scores, count * 16, count, o + first * 16, panel);
            }
            for (int64_t p = 0; key > 0 && p < panels; p++)
                merge_columns(output + query * head_dim + p * panel, maximum + query + p * 16, sum + query + p * 16,
                              output2 + p * panel, maximum2 + p * 16, sum2 + p * 16, head_dim);
        }
    }
}

/* The `rows` queries of a panel [dim][16] as rows of `width` floats. */
static void turn_back(const float *panel, int64_t rows, int64_t head_dim, int64_t width, float *y)
{
    int64_t d = 0;
    for (; d + 8 <= head_dim; d += 8)
        for (int64_t row = 0; row < rows; row += 8)
            transpose_8x8(panel + d * 16 + row, 16, y + row * width + d, width);
    for (; d < head_dim; d++)
        for (int64_t row = 0; row < rows; row++)
            y[row * width + d] = panel[d * 16 + row];
}

#endif
