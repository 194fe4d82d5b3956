/* Scores between many vectors, spread over the thread pool. */
#ifndef LATTICE_PARALLEL_SCORES_H
#define LATTICE_PARALLEL_SCORES_H

#include "lattice/pool.h"
#include "vector_kernels.h"

/* score_rows of the kernels, for any number of rows. */
void lattice_scores_of_rows(const lattice_vector_kernels *kernels, lattice_pool *pool, int metric, const float *a,
                            size_t a_step, const float *b, size_t count, size_t width, float *scores);

/* scores[i * b_count + j] = metric(a[i], b[j]). `norms` is room for a_count + b_count doubles. */
void lattice_scores_of_all(const lattice_vector_kernels *kernels, lattice_pool *pool, int metric, const float *a,
                           size_t a_count, const float *b, size_t b_count, size_t width, double *norms, float *scores);

#endif
