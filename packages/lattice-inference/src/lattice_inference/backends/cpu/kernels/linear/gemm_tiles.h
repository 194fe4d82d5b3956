/* The tiles and the loops of gemm.h for one type of weights. Included once for each: WEIGHT is the type of an element as it
 * lies in memory, WEIGHT_LOAD(p) widens a vector of them, WEIGHTED(name) makes names of their own.
 */
/* a, a_stride: the first row; b: the first panel, panels `panel_stride` floats apart; output: of the tile's first sum. */
typedef void (*WEIGHTED(lattice_tile))(const float *a, int64_t a_stride, const WEIGHT *b, int64_t panel_stride, int64_t k,
                                       const lattice_output *output, const lattice_prefetch *next);

/* One step of k: the rows' elements times the panels' lines, of which a tile takes V vectors from vector FIRST on. */
#define LATTICE_TILE_STEP(R, FIRST, V, I)                                                                              \
    do {                                                                                                               \
        vf columns[V];                                                                                                 \
        LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                     \
            columns[j] = WEIGHT_LOAD(b + (FIRST + j) / PANEL_VECTORS * panel_stride + (I) * LATTICE_PANEL +                \
                                 (FIRST + j) % PANEL_VECTORS * VF_LANES);                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
        {                                                                                                              \
            const vf x = vf_set1(a[r * a_stride + (I)]);                                                               \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                vf_accumulate(&sum[r][j], x, columns[j]);                                                              \
        }                                                                                                              \
    } while (0)

/* All steps of k, four at a time, with ASKS lines asked for in each four. */
#define LATTICE_TILE_STEPS(R, FIRST, V, ASKS)                                                                          \
    for (int64_t group = 0; group < k / 4; group++) {                                                                  \
        LATTICE_UNROLL for (int part = 0; part < 4; part++)                                                            \
        {                                                                                                              \
            if (ASKS > 0 && part % (4 / (ASKS > 0 ? ASKS : 4)) == 0) {                                                 \
                const int64_t runs = 4 / (ASKS > 0 ? ASKS : 4);                                                        \
                __builtin_prefetch(next->runs[part + group % runs] + group / runs * LATTICE_LINE, 0, 3);              \
            }                                                                                                          \
            LATTICE_TILE_STEP(R, FIRST, V, 4 * group + part);                                                          \
        }                                                                                                              \
    }

#define LATTICE_TILE_OF(NAME, R, FIRST, V)                                                                             \
    static void NAME(const float *restrict a, int64_t a_stride, const WEIGHT *restrict b, int64_t panel_stride,         \
                     int64_t k, const lattice_output *restrict output, const lattice_prefetch *restrict next)          \
    {                                                                                                                  \
        vf sum[R][V];                                                                                                  \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                sum[r][j] = vf_zero();                                                                                 \
        if (next->asks == 0)                                                                                           \
            LATTICE_TILE_STEPS(R, FIRST, V, 0)                                                                         \
        else if (next->asks == 1)                                                                                      \
            LATTICE_TILE_STEPS(R, FIRST, V, 1)                                                                         \
        else if (next->asks == 2)                                                                                      \
            LATTICE_TILE_STEPS(R, FIRST, V, 2)                                                                         \
        else                                                                                                           \
            LATTICE_TILE_STEPS(R, FIRST, V, 4)                                                                         \
        for (int64_t i = k / 4 * 4; i < k; i++)                                                                        \
            LATTICE_TILE_STEP(R, FIRST, V, i);                                                                         \
        const int64_t column = FIRST * VF_LANES;                                                                       \
        if (output->bias != NULL)                                                                                      \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
            {                                                                                                          \
                const vf bias = vf_load(output->bias + column + j * VF_LANES);                                         \
                LATTICE_UNROLL for (int r = 0; r < R; r++)                                                             \
                    sum[r][j] = vf_add(sum[r][j], bias);                                                               \
            }                                                                                                          \
        if (output->residual != NULL)                                                                                  \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const float *row = output->residual + r * output->residual_stride + column;                            \
                LATTICE_UNROLL for (int j = 0; j < V; j++)                                                             \
                    sum[r][j] = vf_add(sum[r][j], vf_load(row + j * VF_LANES));                                        \
            }                                                                                                          \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < V; j++)                                                                 \
                vf_store(output->y + r * output->stride + column + j * VF_LANES, sum[r][j]);                           \
    }

#define LATTICE_TILE(R, P) LATTICE_TILE_OF(WEIGHTED(tile_##R##x##P), R, 0, (P * PANEL_VECTORS))

/* For each number of rows: a tile of one panel, and the wide tile that is used while enough panels are left. */
typedef struct {
    WEIGHTED(lattice_tile) narrow, wide;
    int wide_panels;
} WEIGHTED(tile_choice);

#if defined(LATTICE_ISA_AVX512)
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1) LATTICE_TILE(4, 1) LATTICE_TILE(5, 1) LATTICE_TILE(6, 1)
LATTICE_TILE(7, 1) LATTICE_TILE(8, 1) LATTICE_TILE(9, 1) LATTICE_TILE(10, 1) LATTICE_TILE(11, 1) LATTICE_TILE(12, 1)
LATTICE_TILE(13, 1) LATTICE_TILE(14, 1)
LATTICE_TILE(1, 8) LATTICE_TILE(2, 4) LATTICE_TILE(3, 4) LATTICE_TILE(4, 4) LATTICE_TILE(5, 4) LATTICE_TILE(6, 4)
LATTICE_TILE(7, 2) LATTICE_TILE(8, 2) LATTICE_TILE(9, 2) LATTICE_TILE(10, 2) LATTICE_TILE(11, 2) LATTICE_TILE(12, 2)
LATTICE_TILE(13, 2) LATTICE_TILE(14, 2)
static const WEIGHTED(tile_choice) WEIGHTED(tiles)[TILE_ROWS + 1] = {
    {0},
    {WEIGHTED(tile_1x1), WEIGHTED(tile_1x8), 8},
    {WEIGHTED(tile_2x1), WEIGHTED(tile_2x4), 4},
    {WEIGHTED(tile_3x1), WEIGHTED(tile_3x4), 4},
    {WEIGHTED(tile_4x1), WEIGHTED(tile_4x4), 4},
    {WEIGHTED(tile_5x1), WEIGHTED(tile_5x4), 4},
    {WEIGHTED(tile_6x1), WEIGHTED(tile_6x4), 4},
    {WEIGHTED(tile_7x1), WEIGHTED(tile_7x2), 2},
    {WEIGHTED(tile_8x1), WEIGHTED(tile_8x2), 2},
    {WEIGHTED(tile_9x1), WEIGHTED(tile_9x2), 2},
    {WEIGHTED(tile_10x1), WEIGHTED(tile_10x2), 2},
    {WEIGHTED(tile_11x1), WEIGHTED(tile_11x2), 2},
    {WEIGHTED(tile_12x1), WEIGHTED(tile_12x2), 2},
    {WEIGHTED(tile_13x1), WEIGHTED(tile_13x2), 2},
    {WEIGHTED(tile_14x1), WEIGHTED(tile_14x2), 2},
};
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1) LATTICE_TILE(4, 1) LATTICE_TILE(5, 1) LATTICE_TILE(6, 1)
LATTICE_TILE(1, 4) LATTICE_TILE(2, 2) LATTICE_TILE(3, 2)
/* Four rows of a panel are eight sums on AVX2, just what the latency of a multiply-add asks for; three panels in two halves of
 * three vectors are twelve at a time. */
LATTICE_TILE_OF(WEIGHTED(first_half_4x3), 4, 0, (3 * PANEL_VECTORS / 2))
LATTICE_TILE_OF(WEIGHTED(second_half_4x3), 4, (3 * PANEL_VECTORS / 2), (3 * PANEL_VECTORS / 2))
static void WEIGHTED(tile_4x3)(const float *a, int64_t a_stride, const WEIGHT *b, int64_t panel_stride, int64_t k,
                               const lattice_output *output, const lattice_prefetch *next)
{
    const lattice_prefetch nothing = {.asks = 0};
    WEIGHTED(first_half_4x3)(a, a_stride, b, panel_stride, k, output, next);
    WEIGHTED(second_half_4x3)(a, a_stride, b, panel_stride, k, output, &nothing);
}
static const WEIGHTED(tile_choice) WEIGHTED(tiles)[TILE_ROWS + 1] = {
    {0},
    {WEIGHTED(tile_1x1), WEIGHTED(tile_1x4), 4},
    {WEIGHTED(tile_2x1), WEIGHTED(tile_2x2), 2},
    {WEIGHTED(tile_3x1), WEIGHTED(tile_3x2), 2},
    {WEIGHTED(tile_4x1), WEIGHTED(tile_4x3), 3},
    {WEIGHTED(tile_5x1), WEIGHTED(tile_5x1), 1},
    {WEIGHTED(tile_6x1), WEIGHTED(tile_6x1), 1},
};
#else
LATTICE_TILE(1, 1) LATTICE_TILE(2, 1) LATTICE_TILE(3, 1)
LATTICE_TILE(1, 2)
static const WEIGHTED(tile_choice) WEIGHTED(tiles)[TILE_ROWS + 1] = {
    {0},
    {WEIGHTED(tile_1x1), WEIGHTED(tile_1x2), 2},
    {WEIGHTED(tile_2x1), WEIGHTED(tile_2x1), 1},
    {WEIGHTED(tile_3x1), WEIGHTED(tile_3x1), 1},
};
#endif

/* The share of row tile `t` of `row_tiles` in asking for a panel of `k` rows of sixteen. */
LATTICE_INLINE void WEIGHTED(share_prefetch)(lattice_prefetch *next, const WEIGHT *panel, int64_t k, int64_t t,
                                             int64_t row_tiles)
{
    const int lines = LATTICE_PANEL * sizeof(WEIGHT) * 4 / LATTICE_LINE; /* in four steps of k */
    const int asks = row_tiles >= lines ? 1 : row_tiles >= 2 ? lines / 2 : lines;
    next->asks = t * asks < lines ? asks : 0;
    if (next->asks == 0)
        return;
    const int64_t run_lines = k / 4 * lines / 4;
    for (int run = 0; run < 4; run++)
        next->runs[run] = (const char *)panel + (run * run_lines + run_lines * t * asks / lines) * LATTICE_LINE;
}

/* Multiplies `rows` rows of A by `panels` panels. `streamed`: B comes from memory, and is asked for ahead. */
static void WEIGHTED(gemm)(const float *a, int64_t a_stride, int64_t rows, const WEIGHT *b, int64_t panel_stride,
                           int64_t panels, int64_t k, const lattice_output *output, int streamed)
{
    float sums[TILE_ROWS * TILE_PANELS * LATTICE_PANEL] __attribute__((aligned(64)));
    const int64_t row_tiles = lattice_divide_up(rows, TILE_ROWS);
    const int64_t short_tile = rows / row_tiles, longer_tiles = rows % row_tiles;
    const int64_t wide = max_of(WEIGHTED(tiles)[short_tile].wide_panels,
                                longer_tiles > 0 ? WEIGHTED(tiles)[short_tile + 1].wide_panels : 0);
    const int64_t whole_panels = output->columns / LATTICE_PANEL; /* that y has room for */
    for (int64_t panel = 0; panel < panels;) {
        const int64_t width = panel + wide <= whole_panels && panel + wide <= panels ? wide : 1;
        const int asking = streamed && panel + width < panels;
        const int buffered = panel >= whole_panels || output->activation != LATTICE_ACTIVATION_NONE;
        lattice_prefetch next = {.asks = 0};
        lattice_output part = *output; /* from the tile's first row and column on */
        const float *x = a;
        int64_t row = 0;
        for (int64_t t = 0; t < row_tiles; t++) {
            const int64_t height = short_tile + (t < longer_tiles);
            const WEIGHTED(tile_choice) *choice = &WEIGHTED(tiles)[height];
            if (asking)
                WEIGHTED(share_prefetch)(&next, b + (panel + width) * panel_stride, k, t, row_tiles);
            for (int64_t p = panel; p < panel + width;) {
                const int64_t here = choice->wide_panels <= panel + width - p ? choice->wide_panels : 1;
                const int64_t column = p * LATTICE_PANEL;
                const WEIGHTED(lattice_tile) tile = here == 1 ? choice->narrow : choice->wide;
                part.y = output->y + row * output->stride + column;
                if (output->bias != NULL)
                    part.bias = output->bias + column;
                if (output->residual != NULL)
                    part.residual = output->residual + row * output->residual_stride + column;
                if (streamed)
                    prefetch_output(&part, height, here);
                if (!buffered) {
                    tile(x, a_stride, b + p * panel_stride, panel_stride, k, &part, &next);
                } else {
                    const int whole = panel < whole_panels;
                    const lattice_output buffer = {.y = sums, .stride = here * LATTICE_PANEL, .bias = whole ? part.bias : NULL};
                    tile(x, a_stride, b + p * panel_stride, panel_stride, k, &buffer, &next);
                    finish_buffered(sums, height, whole ? buffer.stride : output->columns - column, &part);
                }
                p += here;
            }
            row += height;
            x += height * a_stride;
        }
        panel += width;
    }
}

#undef LATTICE_TILE
#undef LATTICE_TILE_OF
#undef LATTICE_TILE_STEPS
#undef LATTICE_TILE_STEP
#undef WEIGHTED
#undef WEIGHT_LOAD
#undef WEIGHT
