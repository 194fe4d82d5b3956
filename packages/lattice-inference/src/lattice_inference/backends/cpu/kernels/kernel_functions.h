/* The functions of every kernel of the level that is compiled for, declared by the list of kernels. */
#ifndef LATTICE_KERNEL_FUNCTIONS_H
#define LATTICE_KERNEL_FUNCTIONS_H

#include "lattice/simd.h"
#include "step.h"

#define LATTICE_DECLARE(id, name, record, tasks, run)                                                                  \
    int64_t LATTICE_FN(tasks)(const lattice_op *op, const lattice_step *step);                                         \
    void LATTICE_FN(run)(const lattice_op *op, const lattice_step *step, int64_t task, int64_t tasks_of_op, int thread);
LATTICE_KERNELS(LATTICE_DECLARE)
#undef LATTICE_DECLARE

#endif
