/* Binary kernels of each instruction set. */
#include "binary_kernels.h"

const lattice_binary_kernels LATTICE_FN(lattice_binary_kernels) = {.score_binary = score_binary, .hamming = hamming};
