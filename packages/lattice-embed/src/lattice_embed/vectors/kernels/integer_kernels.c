/* int8 and int4 kernels of each instruction set. */
#include "integer_kernels.h"

const lattice_integer_kernels LATTICE_FN(lattice_integer_kernels) = {
    .score_int8 = score_int8,
    .score_int4 = score_int4,
    .dot_int8 = dot_int8,
    .dot_int4 = dot_int4,
};
