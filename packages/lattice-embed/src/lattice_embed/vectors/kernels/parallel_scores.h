/* Scores between many vectors, and the nearest among them, spread over the thread pool. */
#ifndef LATTICE_PARALLEL_SCORES_H
#define LATTICE_PARALLEL_SCORES_H

#include "lattice/pool.h"
#include "nearest.h"

/* scores[i] = metric(a[i], b[i]) of float32 rows. */
void lattice_scores_of_pairs(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *a,
                             const float *b, size_t count, size_t width, float *scores);

/* scores[q * rows->count + i] = metric(query q, row i). */
void lattice_scores_of_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const lattice_rows *rows,
                            const lattice_query *queries, size_t query_count, float *scores);

/* The `wanted` best rows for each query, best first: positions and scores [query][wanted]. The scores of all rows are never
 * stored. wanted <= rows->count. Returns 0, or -1 when memory is short. */
int lattice_nearest_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const lattice_rows *rows,
                         const lattice_query *queries, size_t query_count, int64_t wanted, int largest,
                         int64_t *positions, float *scores);

/* scores[i * b_count + j] = metric(a[i], b[j]) of float32 rows. Returns 0, or -1 when memory is short. */
int lattice_scores_of_all(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *a,
                          size_t a_count, const float *b, size_t b_count, size_t width, float *scores);

/* lattice_nearest_rows for float32 rows and queries [query_count][width], scored as lattice_scores_of_all does. */
int lattice_nearest_of_all(const lattice_kernel_choice *kernels, lattice_pool *pool, int metric, const float *queries,
                           size_t query_count, const float *rows, size_t count, size_t width, int64_t wanted, int largest,
                           int64_t *positions, float *scores);

/* Writes each row of `source` divided by its length to `target`. */
void lattice_normalize_rows(const lattice_kernel_choice *kernels, lattice_pool *pool, const float *source, float *target,
                            size_t count, size_t width);

#endif
