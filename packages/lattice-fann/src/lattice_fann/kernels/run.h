/* Whole calls over the kernels: the choice of a table, and the spread of work over the process's threads. */
#ifndef LATTICE_FANN_RUN_H
#define LATTICE_FANN_RUN_H

#include "lattice/pool.h"
#include "network.h"

/* The table of an instruction set, or NULL if this build has none. */
const fann_kernel_table *fann_kernels(int isa);

/* One row, on the calling thread. Returns 1, or 0 with *fault set, or -1 when memory is short. */
int fann_forward_one(const fann_network *network, const fann_kernel_table *table, const float *x, float *y,
                     fann_fault *fault);

/* Many rows, spread over threads when there is enough work. Returns as above; the fault is the first in row order. */
int fann_forward_batch(const fann_network *network, const fann_kernel_table *table, lattice_pool *pool, const float *x,
                       int64_t rows, float *y, fann_fault *fault);

/* Loss and gradient of the batch in `step`. Returns 1, or 0 when a forward value is not finite (with *fault: a row of the
 * batch), or 2 when a gradient is not. *loss is the weighted sum of the rows' losses, *squares the squared gradient norm. */
int fann_gradient(const fann_step *step, const fann_kernel_table *table, lattice_pool *pool, int threads, double *loss,
                  double *squares, fann_fault *fault);

/* The optimizer's update with the gradients in `step`. */
void fann_update(const fann_step *step, const fann_kernel_table *table, lattice_pool *pool, int threads);

/* Moves parameters of no network, one vector, on the calling thread. */
void fann_update_flat(const fann_optimizer *optimizer, const fann_kernel_table *table, float *parameters,
                      const float *gradients, float *moment1, float *moment2, int64_t count);

#endif
