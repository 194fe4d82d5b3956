/* Every kernel of one instruction set: this file is compiled once for each, and offers one table. */
#include <math.h>
#include <string.h>

#include "lattice/exp2.h"
#include "lattice/simd_f64.h"
#include "lattice/vector_math.h"
#include "sinkhorn.h"

#define LOG2_E 0x1.71547652b82fep+0
#define LN_2 0x1.62e42fefa39efp-1

#define REAL float
#define VECTOR f32x16
#define LANES 16
#define LEAST (-126.0f)
#define MOST 126.0f
#define LEAST_NORMAL 0x1p-126
#define MIDDLE_LEAST 0x1p-60
#define MIDDLE_MOST 0x1p+60
#include "sinkhorn_pass.h"
#undef REAL
#undef VECTOR
#undef LANES
#undef LEAST
#undef MOST
#undef LEAST_NORMAL
#undef MIDDLE_LEAST
#undef MIDDLE_MOST

#define REAL double
#define VECTOR f64x8
#define LANES 8
#define LEAST (-1022.0)
#define MOST 1000.0
#define LEAST_NORMAL 0x1p-1022
#define MIDDLE_LEAST 0x1p-500
#define MIDDLE_MOST 0x1p+500
#include "sinkhorn_pass.h"

#define LATTICE_STRINGIFY_(text) #text
#define LATTICE_STRINGIFY(text) LATTICE_STRINGIFY_(text)
#define BOTH(name) {LATTICE_FN(name##_f32x16), LATTICE_FN(name##_f64x8)}

const lattice_sinkhorn_kernels LATTICE_FN(lattice_sinkhorn_kernels) = {
    .name = LATTICE_STRINGIFY(LATTICE_FN(kernels)),
    .row_block = BOTH(row_block),
    .column_group = BOTH(column_group),
    .plan_rows = BOTH(plan_rows),
    .row_costs = BOTH(row_costs),
    .cost_rows = BOTH(cost_rows),
    .extremes = BOTH(extremes),
    .elementwise = BOTH(elementwise),
};
