/* The transportation problem, exactly: a primal network simplex on the complete bipartite graph.
 *
 *     minimise sum C[i, j] P[i, j]   with row sums `supply`, column sums `demand`, P >= 0
 *
 * Masses are integers, so flows are exact and the strongly feasible basis, which rules out cycling, stays strongly feasible.
 */
#ifndef LATTICE_NETWORK_SIMPLEX_H
#define LATTICE_NETWORK_SIMPLEX_H

#include <stdint.h>

typedef struct {
    int status; /* 0: optimal; 1: `most_pivots` were not enough, the flow is feasible or uses the artificial root */
    int exact;  /* whether potentials are the nearest doubles to exact ones; else rounding adds up in them */
    int64_t pivots;
    int64_t entries;  /* of the flow: at most rows + columns - 1 */
    double shortfall; /* cost less a bound of the optimum from below, for masses as they are; infinite for a part of a flow */
} lattice_simplex_result;

/* Bytes of working memory, 8-byte aligned. */
int64_t lattice_simplex_bytes(int64_t rows, int64_t columns);

/* supply and demand are positive and have equal sums below 2^62; 8 (rows + columns) of the largest cost do not overflow. Writes the positive flows as (row, column, mass) and
 * potentials with u[i] + v[j] <= C[i, j], with equality where mass flows. Allocates nothing. */
void lattice_network_simplex(int64_t rows, int64_t columns, const double *cost, const int64_t *supply,
                             const int64_t *demand, int64_t most_pivots, char *memory, int64_t *flow_row,
                             int64_t *flow_column, int64_t *flow_mass, double *row_potential, double *column_potential,
                             lattice_simplex_result *result);

#endif
