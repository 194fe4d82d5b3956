/* A Sinkhorn problem as the kernels see it, and the table of kernels that every instruction set fills.
 *
 * Potentials are base-2 logarithms: the plan is  P[i, j] = 2^(u[i] + v[j] - C[i, j] * scale)  with scale = log2(e) / epsilon.
 * `real` below is float or double, as `precision` says. Columns are padded to a multiple of LATTICE_COLUMN_STEP.
 */
#ifndef LATTICE_SINKHORN_H
#define LATTICE_SINKHORN_H

#include <stdint.h>


#define LATTICE_COLUMN_STEP 16 /* columns of a panel in float32; two panels in float64 */
#define LATTICE_DENSE_ROWS 8   /* rows of a tile whose costs lie in memory */
#define LATTICE_CLOUD_ROWS 48  /* rows of a tile whose costs are computed: the panels are streamed once a tile */
#define LATTICE_CHUNK 512      /* columns that are summed in `real` before the sum goes on in double */

typedef enum { LATTICE_SQUARED_EUCLIDEAN = 0, LATTICE_EUCLIDEAN = 1, LATTICE_COSINE = 2 } lattice_metric;
typedef enum { LATTICE_FLOAT32 = 0, LATTICE_FLOAT64 = 1, LATTICE_PRECISION_COUNT = 2 } lattice_precision;

typedef struct {
    int64_t rows, columns, padded;
    int precision;
    double scale;

    const void *matrix; /* real [rows][columns]; NULL: the costs are computed from points */
    int metric;
    int64_t dimension;
    const void *x;      /* real [rows][dimension] */
    const void *panels; /* real [padded / lanes][dimension][lanes] */
    const double *x_squared, *y_squared; /* squared lengths; y's has `padded` entries */

    const double *a, *b;                 /* weights */
    const double *log_a, *log_b;         /* their base-2 logarithms; divided by the damping if `product` */
    double row_damping, column_damping;  /* tau / (tau + epsilon); 1 holds the marginal exactly */
    double relaxation;                   /* 1: plain Sinkhorn; above 1: over-relaxed */
    double row_tau, column_tau;          /* in units of epsilon; infinity holds the marginal */
    int product;                         /* entropy is relative to the product of the weights, not plain */
    int symmetric;                       /* u = v, C symmetric: averaged steps over rows only */

    double *u, *v;           /* [rows], [padded] */
    double *v_next;          /* [padded]: v after the column step, taken over unless the iteration stops */
    double *row_sums;        /* [rows]: of the plan of (u, v) */
    double *column_sums;     /* [padded] */
    double *block_floors;    /* [blocks]: what clamped exponentials may have added to a column */
    void *v_real;            /* real [padded] */
    void *partial;           /* real [blocks][padded] */
    char *tiles;             /* [threads][tile_bytes] */
    int64_t tile_bytes, blocks;
} lattice_problem;

typedef struct {
    const char *name;
    /* A block of rows: new u, row sums, and the block's part of the column sums. */
    void (*row_block[LATTICE_PRECISION_COUNT])(const lattice_problem *p, int64_t block, int thread);
    /* A group of columns: column sums and v_next. */
    void (*column_group[LATTICE_PRECISION_COUNT])(const lattice_problem *p, int64_t group, int thread);
    /* plan[rows][columns] of the rows from `row`, in real. */
    void (*plan_rows[LATTICE_PRECISION_COUNT])(const lattice_problem *p, int64_t row, int64_t rows, void *plan, int thread);
    /* cost[i] = sum over j of P[i, j] C[i, j] for the rows of a block. */
    void (*row_costs[LATTICE_PRECISION_COUNT])(const lattice_problem *p, int64_t block, double *cost, int thread);
    /* costs[rows][columns] of the rows from `row`, computed from points. */
    void (*cost_rows[LATTICE_PRECISION_COUNT])(const lattice_problem *p, int64_t row, int64_t rows, void *costs, int thread);
    /* Extremes of `count` numbers, and the position of the first that is not finite (-1: none). */
    int64_t (*extremes[LATTICE_PRECISION_COUNT])(const void *values, int64_t count, double *least, double *most);
    /* y[i] = f(x[i]): for tests. function: 0 exp, 1 log, 2 exp2. */
    void (*elementwise[LATTICE_PRECISION_COUNT])(int function, const void *x, void *y, int64_t count);
} lattice_sinkhorn_kernels;

static inline int64_t lattice_blocks(int64_t rows)
{
    const int64_t blocks = rows / 32;
    return blocks < 1 ? 1 : blocks > 64 ? 64 : blocks;
}

/* Block `index` of `blocks` is the rows [first, last): a split that depends on the problem only. */
static inline void lattice_block_rows(int64_t rows, int64_t blocks, int64_t index, int64_t *first, int64_t *last)
{
    *first = rows * index / blocks;
    *last = rows * (index + 1) / blocks;
}

#define LATTICE_COLUMN_GROUP 64

#endif
