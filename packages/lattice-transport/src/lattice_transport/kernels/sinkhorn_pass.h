/* The passes of Sinkhorn's algorithm in the log domain. Included once for float32 and once for float64 by kernels.c.
 *
 * One iteration computes each exponential once. For a tile of rows (all columns of it stay in cache):
 *
 *     e[i, j] = 2^(v[j] - C[i, j] scale + shift[i])        shift[i] = u[i] of the last iteration
 *     s[i]    = sum over j of e[i, j]
 *     u[i]    = damping (log a[i] - log s[i] + shift[i])   (relaxed: a step of another length in that direction)
 *     P[i, j] = e[i, j] 2^(u[i] - shift[i])
 *     column sums += P[i, :]
 *
 * and the column step needs no exponential at all: v[j] += log b[j] - log(column sum of j).
 *
 * Range: e is clamped to [2^LEAST, 2^MOST]. A row whose sum leaves the middle of that range is done again from its maximum; a
 * column whose sum is not far above what clamped terms can have contributed is summed again from its own maximum. Hence no
 * epsilon underflows, and the usual iteration pays for neither.
 *
 * Numeric design: sums over columns run in `REAL` for LATTICE_CHUNK columns and in double beyond; column sums in REAL within
 * a block of rows and in double over blocks. Blocks depend on the shape only, so results do not depend on threads. v is kept
 * representable in REAL, u in double.
 *
 * Bound by the arithmetic of exp2: about 16 vector instructions an entry vector.
 */
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define V(op) CAT(VECTOR, CAT(_, op))
#define LEVEL(name) LATTICE_FN(name) /* its argument is expanded first */
#define NAME(name) LEVEL(CAT(CAT(name, _), VECTOR))

/* Widens the lanes of `v` and adds them to `sum`. */
LATTICE_INLINE f64x8 NAME(accumulate)(f64x8 sum, VECTOR v)
{
#if LANES == 16
    return f64x8_add(sum, f64x8_add(f64x8_from_low(v), f64x8_from_high(v)));
#else
    return f64x8_add(sum, v);
#endif
}

LATTICE_INLINE VECTOR NAME(keep)(VECTOR v, int64_t count)
{
    REAL lanes[LANES] = {0};
    V(store_tail)(lanes, v, (size_t)count);
    return V(load)(lanes);
}

/* The sixteen or eight products of `R` rows of x with the rows of a panel: sum over k of x[r][k] panel[k][lane]. */
#if defined(LATTICE_ISA_AVX512)
#define PRODUCT_ROWS 12
#elif defined(LATTICE_ISA_AVX2) || defined(LATTICE_ISA_NEON)
#define PRODUCT_ROWS 6
#else
#define PRODUCT_ROWS 2
#endif

LATTICE_INLINE void NAME(products)(const REAL *x, int64_t rows, int64_t dimension, const REAL *panel, VECTOR *sums)
{
    if (rows == PRODUCT_ROWS) {
        VECTOR sum[PRODUCT_ROWS];
        LATTICE_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++)
            sum[r] = V(zero)();
        for (int64_t k = 0; k < dimension; k++) {
            const VECTOR column = V(load)(panel + k * LANES);
            LATTICE_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++)
                sum[r] = V(fma)(V(set1)(x[r * dimension + k]), column, sum[r]);
        }
        LATTICE_UNROLL for (int r = 0; r < PRODUCT_ROWS; r++)
            sums[r] = sum[r];
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        VECTOR sum = V(zero)();
        for (int64_t k = 0; k < dimension; k++)
            sum = V(fma)(V(set1)(x[r * dimension + k]), V(load)(panel + k * LANES), sum);
        sums[r] = sum;
    }
}

LATTICE_INLINE VECTOR NAME(cost_of_product)(int metric, VECTOR product, VECTOR x_squared, VECTOR y_squared)
{
    if (metric == LATTICE_COSINE)
        return V(min)(V(set1)(2), V(max)(V(zero)(), V(sub)(V(set1)(1), product)));
    const VECTOR squared =
        V(max)(V(zero)(), V(fma)(V(set1)(-2), product, V(add)(x_squared, y_squared)));
    return metric == LATTICE_EUCLIDEAN ? V(sqrt)(squared) : squared;
}

/* Costs of the rows [row, row + rows) and the panels [panel, panel_end), `stride` apart in `costs`. */
static void NAME(cost_tile)(const lattice_problem *p, int64_t row, int64_t rows, int64_t panel, int64_t panel_end,
                            REAL *costs, int64_t stride)
{
    const REAL *x = (const REAL *)p->x, *panels = (const REAL *)p->panels;
    for (int64_t q = panel; q < panel_end; q++) {
        REAL y_lanes[LANES];
        for (int lane = 0; lane < LANES; lane++)
            y_lanes[lane] = (REAL)p->y_squared[q * LANES + lane];
        const VECTOR y_squared = V(load)(y_lanes);
        for (int64_t r = 0; r < rows; r += PRODUCT_ROWS) {
            const int64_t here = rows - r < PRODUCT_ROWS ? rows - r : PRODUCT_ROWS;
            VECTOR sums[PRODUCT_ROWS];
            NAME(products)(x + (row + r) * p->dimension, here, p->dimension, panels + q * p->dimension * LANES, sums);
            for (int64_t i = 0; i < here; i++)
                V(store)(costs + (r + i) * stride + (q - panel) * LANES,
                         NAME(cost_of_product)(p->metric, sums[i], V(set1)((REAL)p->x_squared[row + r + i]), y_squared));
        }
    }
}

LATTICE_INLINE VECTOR NAME(load_costs)(const REAL *costs, int64_t count)
{
    return count >= LANES ? V(load)(costs) : V(load_tail)(costs, (size_t)count);
}

/* e[j] = 2^(v[j] - costs[j] scale + shift) and their sum. `costs` may be `e`. */
LATTICE_INLINE double NAME(exponentials)(const REAL *costs, const REAL *v, int64_t columns, REAL scale, REAL shift, REAL *e)
{
    const VECTOR minus_scale = V(set1)(-scale), shifts = V(set1)(shift), most = V(set1)(MOST);
    f64x8 total = f64x8_zero();
    for (int64_t chunk = 0; chunk < columns; chunk += LATTICE_CHUNK) {
        const int64_t end = columns - chunk < LATTICE_CHUNK ? columns : chunk + LATTICE_CHUNK;
        VECTOR sum = V(zero)();
        int64_t j = chunk;
        for (; j + LANES <= end; j += LANES) {
            const VECTOR t = V(add)(V(fma)(V(load)(costs + j), minus_scale, V(load)(v + j)), shifts);
            const VECTOR value = V(exp2_bounded)(V(min)(most, t));
            V(store)(e + j, value);
            sum = V(add)(sum, value);
        }
        if (j < end) {
            const VECTOR t = V(add)(V(fma)(NAME(load_costs)(costs + j, end - j), minus_scale, V(load)(v + j)), shifts);
            const VECTOR value = NAME(keep)(V(exp2_bounded)(V(min)(most, t)), end - j);
            V(store)(e + j, value);
            sum = V(add)(sum, value);
        }
        total = NAME(accumulate)(total, sum);
    }
    return f64x8_fold_add(total);
}

/* The largest of v[j] - costs[j] scale. */
LATTICE_INLINE REAL NAME(largest)(const REAL *costs, const REAL *v, int64_t columns, REAL scale)
{
    const VECTOR minus_scale = V(set1)(-scale);
    VECTOR most = V(set1)(-(REAL)INFINITY);
    int64_t j = 0;
    for (; j + LANES <= columns; j += LANES)
        most = V(max)(V(fma)(V(load)(costs + j), minus_scale, V(load)(v + j)), most);
    REAL result = V(fold_max)(most);
    for (; j < columns; j++) {
        const REAL t = v[j] - costs[j] * scale;
        result = t > result ? t : result;
    }
    return result;
}

/* target[j] (+)= sum over r of e[r][j] weight[r]. */
LATTICE_INLINE void NAME(add_rows)(const REAL *e, int64_t stride, int64_t rows, const REAL *weights, REAL *target,
                                   int64_t padded)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const REAL *row = e + r * stride;
        const VECTOR w0 = V(set1)(weights[r]), w1 = V(set1)(weights[r + 1]), w2 = V(set1)(weights[r + 2]),
                     w3 = V(set1)(weights[r + 3]);
        for (int64_t j = 0; j < padded; j += LANES) {
            VECTOR sum = V(load)(target + j);
            sum = V(fma)(V(load)(row + j), w0, sum);
            sum = V(fma)(V(load)(row + stride + j), w1, sum);
            sum = V(fma)(V(load)(row + 2 * stride + j), w2, sum);
            V(store)(target + j, V(fma)(V(load)(row + 3 * stride + j), w3, sum));
        }
    }
    for (; r < rows; r++) {
        const VECTOR w = V(set1)(weights[r]);
        for (int64_t j = 0; j < padded; j += LANES)
            V(store)(target + j, V(fma)(V(load)(e + r * stride + j), w, V(load)(target + j)));
    }
}

/* Rows [row, row + rows) of one tile. */
static void NAME(row_tile)(const lattice_problem *p, int64_t row, int64_t rows, REAL *e, REAL *partial, double *floor)
{
    const int64_t columns = p->columns, padded = p->padded;
    const REAL *v = (const REAL *)p->v_real;
    const REAL scale = (REAL)p->scale;
    const REAL *costs = e;
    int64_t stride = padded;
    if (p->matrix != NULL) {
        costs = (const REAL *)p->matrix + row * columns;
        stride = columns;
    } else {
        NAME(cost_tile)(p, row, rows, 0, padded / LANES, e, padded);
    }
    double sums[LATTICE_CLOUD_ROWS], shifts[LATTICE_CLOUD_ROWS];
    REAL weights[LATTICE_CLOUD_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        REAL shift = (REAL)p->u[row + r];
        sums[r] = NAME(exponentials)(costs + r * stride, v, columns, scale, shift, e + r * padded);
        if (!(sums[r] > MIDDLE_LEAST && sums[r] < MIDDLE_MOST)) {
            if (p->matrix == NULL) /* the exponentials stand where the costs were */
                NAME(cost_tile)(p, row + r, 1, 0, padded / LANES, e + r * padded, padded);
            shift = -NAME(largest)(costs + r * stride, v, columns, scale);
            sums[r] = NAME(exponentials)(costs + r * stride, v, columns, scale, shift, e + r * padded);
        }
        shifts[r] = (double)shift;
    }
    for (int64_t first = 0; first < rows; first += 8) {
        const int64_t here = rows - first < 8 ? rows - first : 8;
        double ones[8], shift_lanes[8], old_lanes[8], log_a[8];
        for (int64_t i = 0; i < 8; i++) {
            const int64_t r = first + (i < here ? i : 0);
            ones[i] = sums[r];
            shift_lanes[i] = shifts[r];
            old_lanes[i] = p->u[row + r];
            log_a[i] = p->log_a[row + r];
        }
        const f64x8 sum = f64x8_load(ones), shift = f64x8_load(shift_lanes), old = f64x8_load(old_lanes);
        const f64x8 log_sum = f64x8_sub(f64x8_mul(f64x8_log(sum), f64x8_set1(LOG2_E)), shift);
        const f64x8 wanted = f64x8_mul(f64x8_set1(p->row_damping), f64x8_sub(f64x8_load(log_a), log_sum));
        const f64x8 fresh = f64x8_fma(f64x8_set1(p->relaxation), f64x8_sub(wanted, old), old);
        /* the sums of a symmetric problem belong to the potentials that were read, those of others to the new ones */
        const f64x8 belongs = p->symmetric ? old : fresh;
        const f64x8 row_scale = f64x8_exp(f64x8_mul(f64x8_sub(belongs, shift), f64x8_set1(LN_2)));
        double fresh_lanes[8], scale_lanes[8], sum_lanes[8];
        f64x8_store(fresh_lanes, fresh);
        f64x8_store(scale_lanes, row_scale);
        f64x8_store(sum_lanes, f64x8_mul(sum, row_scale));
        for (int64_t i = 0; i < here; i++) {
            const int64_t r = first + i;
            p->row_sums[row + r] = sum_lanes[i];
            if (p->symmetric) {
                p->v_next[row + r] = (double)(REAL)fresh_lanes[i];
                continue;
            }
            p->u[row + r] = fresh_lanes[i];
            if (!(scale_lanes[i] > MIDDLE_LEAST && scale_lanes[i] < MIDDLE_MOST)) {
                /* far from where it was: the exponentials are taken again from there */
                if (p->matrix == NULL)
                    NAME(cost_tile)(p, row + r, 1, 0, padded / LANES, e + r * padded, padded);
                const REAL near = (REAL)fresh_lanes[i];
                NAME(exponentials)(costs + r * stride, v, columns, scale, near, e + r * padded);
                scale_lanes[i] = exp((fresh_lanes[i] - (double)near) * LN_2);
            }
            weights[r] = (REAL)scale_lanes[i];
            *floor += scale_lanes[i];
        }
    }
    if (!p->symmetric)
        NAME(add_rows)(e, padded, rows, weights, partial, padded);
}

static void NAME(row_block)(const lattice_problem *p, int64_t block, int thread)
{
    int64_t first, last;
    lattice_block_rows(p->rows, p->blocks, block, &first, &last);
    REAL *partial = (REAL *)p->partial + block * p->padded;
    REAL *e = (REAL *)(p->tiles + thread * p->tile_bytes);
    double floor = 0.0;
    if (!p->symmetric)
        memset(partial, 0, (size_t)p->padded * sizeof(REAL));
    const int64_t step = p->matrix != NULL ? LATTICE_DENSE_ROWS : LATTICE_CLOUD_ROWS;
    for (int64_t row = first; row < last; row += step)
        NAME(row_tile)(p, row, last - row < step ? last - row : step, e, partial, &floor);
    p->block_floors[block] = floor * LEAST_NORMAL;
}

/* Columns [column, column + LANES) again, from their maxima: base-2 logarithms of sum over i of 2^(u[i] - C[i, j] scale). */
static void NAME(columns_from_maxima)(const lattice_problem *p, int64_t column, double *log_sums)
{
    const VECTOR minus_scale = V(set1)(-(REAL)p->scale);
    const int64_t width = p->columns - column < LANES ? p->columns - column : LANES;
    VECTOR most = V(set1)(-(REAL)INFINITY);
    f64x8 low = f64x8_zero(), high = f64x8_zero();
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < p->rows; i++) {
            VECTOR costs;
            if (p->matrix != NULL) {
                costs = NAME(load_costs)((const REAL *)p->matrix + i * p->columns + column, width);
            } else {
                REAL lanes[LANES];
                NAME(cost_tile)(p, i, 1, column / LANES, column / LANES + 1, lanes, LANES);
                costs = V(load)(lanes);
            }
            const VECTOR t = V(fma)(costs, minus_scale, V(set1)((REAL)p->u[i]));
            if (round == 0) {
                most = V(max)(t, most);
                continue;
            }
            const VECTOR e = V(exp2_bounded)(V(sub)(t, most));
#if LANES == 16
            low = f64x8_add(low, f64x8_from_low(e));
            high = f64x8_add(high, f64x8_from_high(e));
#else
            low = f64x8_add(low, e);
#endif
        }
    }
    double sums[16];
    REAL maxima[LANES];
    f64x8_store(sums, f64x8_mul(f64x8_log(low), f64x8_set1(LOG2_E)));
    f64x8_store(sums + 8, f64x8_mul(f64x8_log(high), f64x8_set1(LOG2_E)));
    V(store)(maxima, most);
    for (int lane = 0; lane < LANES; lane++)
        log_sums[lane] = sums[lane] + (double)maxima[lane];
}

static void NAME(column_group)(const lattice_problem *p, int64_t group, int thread)
{
    (void)thread;
    const int64_t first = group * LATTICE_COLUMN_GROUP;
    const int64_t last = p->padded - first < LATTICE_COLUMN_GROUP ? p->padded : first + LATTICE_COLUMN_GROUP;
    double floor = 0.0;
    for (int64_t block = 0; block < p->blocks; block++)
        floor += p->block_floors[block];
    floor *= 0x1p+24;
    const f64x8 relaxation = f64x8_set1(p->relaxation), damping = f64x8_set1(p->column_damping);
    for (int64_t j = first; j < last; j += LANES) {
        f64x8 sums[2] = {f64x8_zero(), f64x8_zero()};
        for (int64_t block = 0; block < p->blocks; block++) {
            const VECTOR part = V(load)((const REAL *)p->partial + block * p->padded + j);
#if LANES == 16
            sums[0] = f64x8_add(sums[0], f64x8_from_low(part));
            sums[1] = f64x8_add(sums[1], f64x8_from_high(part));
#else
            sums[0] = f64x8_add(sums[0], part);
#endif
        }
        double again[LANES] = {0};
        int redone = 0;
        for (int half = 0; half * 8 < LANES; half++) {
            const int64_t column = j + half * 8;
            f64x8_store(p->column_sums + column, sums[half]);
            for (int lane = 0; lane < 8; lane++) {
                if (column + lane >= p->columns) {
                    p->column_sums[column + lane] = 0.0;
                } else if (!(p->column_sums[column + lane] > floor)) {
                    if (!redone)
                        NAME(columns_from_maxima)(p, j, again);
                    redone = 1;
                }
            }
            const f64x8 old = f64x8_load(p->v + column);
            f64x8 log_sum = f64x8_sub(f64x8_mul(f64x8_log(sums[half]), f64x8_set1(LOG2_E)), old);
            if (redone) {
                double logs[8];
                f64x8_store(logs, log_sum);
                for (int lane = 0; lane < 8; lane++)
                    if (column + lane < p->columns && !(p->column_sums[column + lane] > floor)) {
                        logs[lane] = again[half * 8 + lane];
                        p->column_sums[column + lane] = exp2(logs[lane] + p->v[column + lane]);
                    }
                log_sum = f64x8_load(logs);
            }
            const f64x8 wanted = f64x8_mul(damping, f64x8_sub(f64x8_load(p->log_b + column), log_sum));
            double fresh[8];
            f64x8_store(fresh, f64x8_fma(relaxation, f64x8_sub(wanted, old), old));
            for (int lane = 0; lane < 8; lane++)
                p->v_next[column + lane] = column + lane < p->columns ? (double)(REAL)fresh[lane] : 0.0;
        }
    }
}

/* The costs of a row: in place, or computed into `room`. */
LATTICE_INLINE const REAL *NAME(costs_of_row)(const lattice_problem *p, int64_t row, REAL *room)
{
    if (p->matrix != NULL)
        return (const REAL *)p->matrix + row * p->columns;
    NAME(cost_tile)(p, row, 1, 0, p->padded / LANES, room, p->padded);
    return room;
}

/* One entry vector of the plan; what is below the normal numbers is 0. */
LATTICE_INLINE VECTOR NAME(plan_vector)(VECTOR costs, VECTOR minus_scale, VECTOR v, VECTOR u)
{
    const VECTOR t = V(min)(V(set1)(MOST), V(add)(V(fma)(costs, minus_scale, v), u));
    return V(select)(V(less)(t, V(set1)(LEAST)), V(zero)(), V(exp2_bounded)(t));
}

static void NAME(plan_rows)(const lattice_problem *p, int64_t row, int64_t rows, void *plan, int thread)
{
    REAL *room = (REAL *)(p->tiles + thread * p->tile_bytes);
    const REAL *v = (const REAL *)p->v_real;
    const VECTOR minus_scale = V(set1)(-(REAL)p->scale);
    const int64_t step = LATTICE_CLOUD_ROWS;
    for (int64_t base = 0; base < rows; base += step) {
        const int64_t here = rows - base < step ? rows - base : step;
        if (p->matrix == NULL)
            NAME(cost_tile)(p, row + base, here, 0, p->padded / LANES, room, p->padded);
        for (int64_t r = 0; r < here; r++) {
            const int64_t i = row + base + r;
            const REAL *costs = p->matrix != NULL ? (const REAL *)p->matrix + i * p->columns : room + r * p->padded;
            REAL *target = (REAL *)plan + (base + r) * p->columns;
            const REAL near = (REAL)p->u[i];
            const VECTOR rest = V(set1)((REAL)exp2(p->u[i] - (double)near));
            for (int64_t j = 0; j < p->columns; j += LANES) {
                const int64_t left = p->columns - j;
                const VECTOR value = V(mul)(NAME(plan_vector)(NAME(load_costs)(costs + j, left), minus_scale,
                                                              V(load)(v + j), V(set1)(near)),
                                            rest);
                if (left >= LANES)
                    V(store)(target + j, value);
                else
                    V(store_tail)(target + j, value, (size_t)left);
            }
        }
    }
}

static void NAME(row_costs)(const lattice_problem *p, int64_t block, double *cost, int thread)
{
    int64_t first, last;
    lattice_block_rows(p->rows, p->blocks, block, &first, &last);
    REAL *room = (REAL *)(p->tiles + thread * p->tile_bytes);
    const REAL *v = (const REAL *)p->v_real;
    const VECTOR minus_scale = V(set1)(-(REAL)p->scale);
    const int64_t step = LATTICE_CLOUD_ROWS;
    for (int64_t base = first; base < last; base += step) {
        const int64_t here = last - base < step ? last - base : step;
        if (p->matrix == NULL)
            NAME(cost_tile)(p, base, here, 0, p->padded / LANES, room, p->padded);
        for (int64_t r = 0; r < here; r++) {
            const int64_t i = base + r;
            const REAL *costs = p->matrix != NULL ? (const REAL *)p->matrix + i * p->columns : room + r * p->padded;
            const VECTOR near = V(set1)((REAL)p->u[i]);
            f64x8 total = f64x8_zero();
            for (int64_t chunk = 0; chunk < p->columns; chunk += LATTICE_CHUNK) {
                const int64_t end = p->columns - chunk < LATTICE_CHUNK ? p->columns : chunk + LATTICE_CHUNK;
                VECTOR sum = V(zero)();
                for (int64_t j = chunk; j < end; j += LANES) {
                    const VECTOR c = NAME(load_costs)(costs + j, end - j);
                    VECTOR value = NAME(plan_vector)(c, minus_scale, V(load)(v + j), near);
                    if (end - j < LANES)
                        value = NAME(keep)(value, end - j);
                    sum = V(fma)(value, c, sum);
                }
                total = NAME(accumulate)(total, sum);
            }
            cost[i] = f64x8_fold_add(total) * exp2(p->u[i] - (double)(REAL)p->u[i]);
        }
    }
}

static void NAME(cost_rows)(const lattice_problem *p, int64_t row, int64_t rows, void *costs, int thread)
{
    REAL *room = (REAL *)(p->tiles + thread * p->tile_bytes);
    for (int64_t base = 0; base < rows; base += LATTICE_CLOUD_ROWS) {
        const int64_t here = rows - base < LATTICE_CLOUD_ROWS ? rows - base : LATTICE_CLOUD_ROWS;
        NAME(cost_tile)(p, row + base, here, 0, p->padded / LANES, room, p->padded);
        for (int64_t r = 0; r < here; r++)
            memcpy((REAL *)costs + (base + r) * p->columns, room + r * p->padded, (size_t)p->columns * sizeof(REAL));
    }
}

static int64_t NAME(extremes)(const void *opaque, int64_t count, double *least, double *most)
{
    const REAL *values = (const REAL *)opaque;
    VECTOR low = V(set1)((REAL)INFINITY), high = V(set1)(-(REAL)INFINITY), poison = V(zero)();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const VECTOR value = V(load)(values + i);
        low = V(min)(value, low);
        high = V(max)(value, high);
        poison = V(fma)(value, V(zero)(), poison); /* NaN and infinities times zero are NaN */
    }
    REAL lowest = -V(fold_max)(V(sub)(V(zero)(), low)), highest = V(fold_max)(high);
    REAL check = V(fold_add)(poison);
    for (; i < count; i++) {
        lowest = values[i] < lowest ? values[i] : lowest;
        highest = values[i] > highest ? values[i] : highest;
        check += values[i] * 0;
    }
    *least = (double)lowest;
    *most = (double)highest;
    if (check == 0)
        return -1;
    for (i = 0; i < count; i++)
        if (!(values[i] * 0 == 0))
            return i;
    return -1;
}

static void NAME(elementwise)(int function, const void *x, void *y, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t here = count - i < LANES ? count - i : LANES;
        const VECTOR value = V(load_tail)((const REAL *)x + i, (size_t)here);
        const VECTOR result = function == 0   ? V(exp)(value)
                              : function == 1 ? V(log)(value)
                                              : V(exp2_bounded)(value);
        V(store_tail)((REAL *)y + i, result, (size_t)here);
    }
}

#undef CAT_
#undef CAT
#undef V
#undef NAME
#undef LEVEL
#undef PRODUCT_ROWS
