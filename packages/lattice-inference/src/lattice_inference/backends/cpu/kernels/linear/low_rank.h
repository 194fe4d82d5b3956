/* y[n] += B (scale * (A x)), in place, for the rows of sequences that have an adapter:
 *
 *     u[j] = chain over k from 0:       fma(x[k], A[j, k], u[j])
 *     v[j] = u[j] * scale
 *     y[n] = chain over j from y[n] on: fma(v[j], B[n, j], y[n])
 *
 * Shapes and layouts: A (rank, k) and B (n, rank) lie in panels of 16 rows, [rank / 16][k][16] and [n / 16][rank][16], in
 * float32, or in 16 bits where that holds every number. The linears that read one x side by side are the parts of one op: the
 * panels of their A's follow each other, so that one pass over x gives the u of all of them.
 *
 * Rows of one adapter are multiplied together wherever they stand: the step lists them (`lattice_step_adapters`). Rows that do
 * not follow each other are copied to scratch before the first product.
 *
 * A task is a block of rows of one adapter by a share of the columns of y; shares of few rows compute the same u again, which
 * costs less than meeting in between. Neither sum is split, so no cut shows in a bit.
 *
 * Bound by memory for one row (A and B are read once a row), by multiply-adds for many.
 */
#ifndef LATTICE_LOW_RANK_H
#define LATTICE_LOW_RANK_H

#include "linear/gemm.h"

#if defined(LATTICE_ISA_AVX512)
#define LOW_RANK_TILE_ROWS 4
#define LOW_RANK_TILE_PANELS 2
#elif defined(LATTICE_ISA_BASELINE)
#define LOW_RANK_TILE_ROWS 2
#define LOW_RANK_TILE_PANELS 1
#else
#define LOW_RANK_TILE_ROWS 4
#define LOW_RANK_TILE_PANELS 1
#endif
#define LOW_RANK_WIDE_PANELS (8 / PANEL_VECTORS > 4 ? 4 : 8 / PANEL_VECTORS) /* of one row: enough chains side by side */

/* Goes on with the sums of R rows by P panels. v: of the first row; b: the first panel; y: of the first row and column. */
#define LOW_RANK_TILE(NAME, WEIGHT, LOAD, R, P)                                                                        \
    static void NAME(const float *restrict v, int64_t v_stride, int64_t rank, const WEIGHT *restrict b, float *const *y,  \
                     int64_t column)                                                                                   \
    {                                                                                                                  \
        vf sum[R][(P) * PANEL_VECTORS];                                                                                \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                sum[r][j] = vf_load(y[r] + column + j * VF_LANES);                                                     \
        for (int64_t i = 0; i < rank; i++) {                                                                           \
            vf columns[(P) * PANEL_VECTORS];                                                                           \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                columns[j] = LOAD(b + (j / PANEL_VECTORS * rank + i) * LATTICE_PANEL + j % PANEL_VECTORS * VF_LANES);  \
            LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                 \
            {                                                                                                          \
                const vf factor = vf_set1(v[r * v_stride + i]);                                                        \
                LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                           \
                    vf_accumulate(&sum[r][j], factor, columns[j]);                                                     \
            }                                                                                                          \
        }                                                                                                              \
        LATTICE_UNROLL for (int r = 0; r < R; r++)                                                                     \
            LATTICE_UNROLL for (int j = 0; j < (P) * PANEL_VECTORS; j++)                                               \
                vf_store(y[r] + column + j * VF_LANES, sum[r][j]);                                                     \
    }

/* Goes on with the sums of `rows` rows (pointers y) from panel `panel` to `end` of `columns` columns. */
#define LOW_RANK_ACCUMULATE(TYPE, WEIGHT, LOAD)                                                                        \
    LOW_RANK_TILE(low_rank_tile_##TYPE, WEIGHT, LOAD, LOW_RANK_TILE_ROWS, LOW_RANK_TILE_PANELS)                         \
    LOW_RANK_TILE(low_rank_column_##TYPE, WEIGHT, LOAD, LOW_RANK_TILE_ROWS, 1)                                          \
    LOW_RANK_TILE(low_rank_row_##TYPE, WEIGHT, LOAD, 1, LOW_RANK_WIDE_PANELS)                                           \
    LOW_RANK_TILE(low_rank_panel_##TYPE, WEIGHT, LOAD, 1, 1)                                                            \
    static void low_rank_accumulate_##TYPE(const float *v, int64_t v_stride, int64_t rank, const WEIGHT *b,             \
                                           float *const *y, int64_t rows, int64_t columns, int64_t panel, int64_t end)  \
    {                                                                                                                  \
        const int64_t whole = columns / LATTICE_PANEL < end ? columns / LATTICE_PANEL : end;                           \
        const int64_t panel_elements = rank * LATTICE_PANEL, tiled = rows - rows % LOW_RANK_TILE_ROWS;                 \
        int64_t p = panel;                                                                                             \
        while (tiled > 0 && p < whole) {                                                                               \
            const int wide = p + LOW_RANK_TILE_PANELS <= whole;                                                        \
            for (int64_t row = 0; row < tiled; row += LOW_RANK_TILE_ROWS)                                              \
                (wide ? low_rank_tile_##TYPE : low_rank_column_##TYPE)(v + row * v_stride, v_stride, rank,             \
                                                                       b + p * panel_elements, y + row,                \
                                                                       p * LATTICE_PANEL);                             \
            p += wide ? LOW_RANK_TILE_PANELS : 1;                                                                      \
        }                                                                                                              \
        for (int64_t row = tiled; row < rows; row++)                                                                   \
            for (p = panel; p < whole;) {                                                                              \
                const int wide = p + LOW_RANK_WIDE_PANELS <= whole;                                                    \
                (wide ? low_rank_row_##TYPE : low_rank_panel_##TYPE)(v + row * v_stride, v_stride, rank,               \
                                                                     b + p * panel_elements, y + row,                  \
                                                                     p * LATTICE_PANEL);                               \
                p += wide ? LOW_RANK_WIDE_PANELS : 1;                                                                  \
            }                                                                                                          \
        if (whole >= end)                                                                                              \
            return;                                                                                                    \
        for (int64_t row = 0; row < rows; row++) { /* y has no room for the last panel: the same on a padded copy */   \
            float padded[LATTICE_PANEL] = {0}, *const target = padded, *const source = y[row] + whole * LATTICE_PANEL; \
            const size_t bytes = (size_t)(columns - whole * LATTICE_PANEL) * sizeof(float);                            \
            memcpy(padded, source, bytes);                                                                             \
            low_rank_panel_##TYPE(v + row * v_stride, v_stride, rank, b + whole * panel_elements, &target, 0);         \
            memcpy(source, padded, bytes);                                                                             \
        }                                                                                                              \
    }

LOW_RANK_ACCUMULATE(float32, float, vf_load)
LOW_RANK_ACCUMULATE(bfloat16, uint16_t, vf_load_bfloat16)
LOW_RANK_ACCUMULATE(float16, uint16_t, vf_load_float16)

/* Blocks of rows over all adapters, and about how many vectors of sixteen multiply-adds they come to. */
typedef struct {
    int64_t blocks, work;
} low_rank_total;

LATTICE_INLINE low_rank_total low_rank_count(const lattice_op *op, const lattice_step *step)
{
    const lattice_step_adapters *adapters = &step->adapters;
    low_rank_total total = {0, 0};
    for (int64_t i = 0; i < adapters->count; i++) {
        const lattice_low_rank_group *group = &adapters->groups[i][op->low_rank.group];
        const int64_t rows = adapters->bounds[op->rows][i + 1] - adapters->bounds[op->rows][i];
        if (group->part_count == 0)
            continue;
        total.blocks += lattice_divide_up(rows, LATTICE_BLOCK_ROWS);
        total.work += rows * group->work;
    }
    return total;
}

/* The shares of columns that each block of rows is cut into. */
LATTICE_INLINE int64_t low_rank_shares(low_rank_total total, const lattice_step *step)
{
    if (step->threads == 1 || total.blocks >= step->threads || total.work < LATTICE_LOW_RANK_ALONE)
        return 1;
    return lattice_divide_up(step->threads, total.blocks);
}

int64_t LATTICE_FN(low_rank_tasks)(const lattice_op *op, const lattice_step *step)
{
    const low_rank_total total = low_rank_count(op, step);
    return total.blocks == 0 ? 0 : total.blocks * low_rank_shares(total, step);
}

/* u of the parts [first, end) of a group, scaled, to v [rows][group->panels * 16]. */
static void low_rank_inputs(const lattice_low_rank_group *group, int32_t first, int32_t end, const float *x, int64_t x_stride,
                            int64_t rows, int64_t k, float *v)
{
    const int64_t stride = group->panels * LATTICE_PANEL, panel = group->parts[first].panel;
    const int64_t stop = end < group->part_count ? group->parts[end].panel : group->panels;
    const int64_t panel_elements = k * LATTICE_PANEL;
    const lattice_output output = {.y = v + panel * LATTICE_PANEL, .stride = stride, .columns = (stop - panel) * LATTICE_PANEL};
    switch (group->weight_type) {
    case LATTICE_WEIGHT_BFLOAT16:
        gemm_bfloat16(x, x_stride, rows, (const uint16_t *)group->a + panel * panel_elements, panel_elements, stop - panel, k,
                      &output, 1);
        break;
    case LATTICE_WEIGHT_FLOAT16:
        gemm_float16(x, x_stride, rows, (const uint16_t *)group->a + panel * panel_elements, panel_elements, stop - panel, k,
                     &output, 1);
        break;
    default:
        gemm_float32(x, x_stride, rows, (const float *)group->a + panel * panel_elements, panel_elements, stop - panel, k,
                     &output, 1);
    }
    for (int32_t i = first; i < end; i++) {
        const lattice_low_rank_part *part = &group->parts[i];
        const f32x16 scale = f32x16_set1(part->scale);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t j = 0; j < part->rank; j += LATTICE_PANEL) {
                float *values = v + row * stride + part->panel * LATTICE_PANEL + j;
                f32x16_store(values, f32x16_mul(f32x16_load(values), scale));
            }
    }
}

void LATTICE_FN(low_rank_run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks, int thread)
{
    (void)tasks;
    const lattice_step_adapters *adapters = &step->adapters;
    const int64_t shares = low_rank_shares(low_rank_count(op, step), step), share = task % shares, k = op->k;
    const int32_t *bounds = adapters->bounds[op->rows];
    int64_t block = task / shares, adapter = 0, blocks = 0;
    for (;; adapter++, block -= blocks) { /* to the adapter whose block it is */
        const int64_t rows_of_it = bounds[adapter + 1] - bounds[adapter];
        blocks = adapters->groups[adapter][op->low_rank.group].part_count == 0 ? 0
                                                                                : lattice_divide_up(rows_of_it, LATTICE_BLOCK_ROWS);
        if (block < blocks)
            break;
    }
    const lattice_low_rank_group *group = &adapters->groups[adapter][op->low_rank.group];
    int64_t first, end;
    task_rows(bounds[adapter + 1] - bounds[adapter], block, blocks, &first, &end);
    const int32_t *list = adapters->rows[op->rows] + bounds[adapter] + first;
    const int64_t rows = end - first, v_stride = group->panels * LATTICE_PANEL;
    int64_t panel, panel_end; /* of y, over all parts */
    task_rows(group->column_panels, share, shares, &panel, &panel_end);
    if (panel == panel_end)
        return;

    float *v = (float *)(step->scratch + thread * step->scratch_bytes), *copy = v + rows * v_stride;
    float *y[LATTICE_BLOCK_ROWS];
    const float *x = lattice_row(step, &op->input[0], list[0]);
    int64_t x_stride = op->input[0].stride;
    for (int64_t row = 0; row < rows; row++)
        y[row] = lattice_row(step, &op->output, list[row]);
    if (list[rows - 1] - list[0] != rows - 1) {
        for (int64_t row = 0; row < rows; row++)
            memcpy(copy + row * k, lattice_row(step, &op->input[0], list[row]), (size_t)k * sizeof(float));
        x = copy;
        x_stride = k;
    }
    int32_t part = 0;
    int64_t before = 0; /* panels of y before the part */
    while (before + lattice_divide_up(group->parts[part].columns, LATTICE_PANEL) <= panel)
        before += lattice_divide_up(group->parts[part++].columns, LATTICE_PANEL);
    int32_t part_end = part;
    for (int64_t reached = before; reached < panel_end; part_end++)
        reached += lattice_divide_up(group->parts[part_end].columns, LATTICE_PANEL);
    low_rank_inputs(group, part, part_end, x, x_stride, rows, k, v);
    for (; part < part_end; part++) {
        const lattice_low_rank_part *here = &group->parts[part];
        const int64_t panels = lattice_divide_up(here->columns, LATTICE_PANEL);
        const int64_t from = panel > before ? panel - before : 0, to = panel_end - before < panels ? panel_end - before : panels;
        const float *factors = v + here->panel * LATTICE_PANEL;
        float *target[LATTICE_BLOCK_ROWS];
        for (int64_t row = 0; row < rows; row++)
            target[row] = y[row] + here->column;
        switch (group->weight_type) {
        case LATTICE_WEIGHT_BFLOAT16:
            low_rank_accumulate_bfloat16(factors, v_stride, here->rank, here->b, target, rows, here->columns, from, to);
            break;
        case LATTICE_WEIGHT_FLOAT16:
            low_rank_accumulate_float16(factors, v_stride, here->rank, here->b, target, rows, here->columns, from, to);
            break;
        default:
            low_rank_accumulate_float32(factors, v_stride, here->rank, here->b, target, rows, here->columns, from, to);
        }
        before += panels;
    }
}

#endif
