/* See network_simplex.h. Compiled once.
 *
 * The basis is a spanning tree over rows, columns and an artificial root. Each node keeps the arc to its parent and that
 * arc's flow; arcs run from rows to columns (from rows to the root, from the root to columns), so a row's arc points up and a
 * column's down. Children are linked lists: cutting and joining is constant time, and a walk over a subtree needs no stack.
 *
 * Pricing is a block search: the arc of most negative reduced cost among the next block of rows that has one enters. Going
 * round by the direct arc costs at most the largest cost, so an artificial arc needs only to be dearer than that, which keeps
 * potentials small and exact. When no arc prices out, potentials are computed anew from the tree and all arcs priced again, so
 * that rounding of the updates cannot end the search early.
 */
#include "network_simplex.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    int64_t rows, columns, nodes; /* `nodes` is the number of rows and columns, and the index of the root */
    const double *cost;
    double artificial; /* cost of an arc from or to the root */
    int64_t *flow;     /* of the arc to the parent */
    double *potential; /* reduced cost of (i, j): cost + potential[i] - potential[rows + j] */
    int32_t *parent, *child, *next, *previous, *depth;
} tree;

int64_t lattice_simplex_bytes(int64_t rows, int64_t columns)
{
    return (rows + columns + 2) * (int64_t)(sizeof(int64_t) + sizeof(double) + 6 * sizeof(int32_t));
}

static double arc_cost(const tree *t, int64_t node)
{
    const int64_t above = t->parent[node];
    if (above == t->nodes)
        return t->artificial;
    return node < t->rows ? t->cost[node * t->columns + above - t->rows]
                          : t->cost[above * t->columns + node - t->rows];
}

static void unlink_node(tree *t, int32_t node)
{
    const int32_t before = t->previous[node], after = t->next[node];
    if (before >= 0)
        t->next[before] = after;
    else
        t->child[t->parent[node]] = after;
    if (after >= 0)
        t->previous[after] = before;
}

static void link_node(tree *t, int32_t node, int32_t above)
{
    const int32_t first = t->child[above];
    t->parent[node] = above;
    t->previous[node] = -1;
    t->next[node] = first;
    if (first >= 0)
        t->previous[first] = node;
    t->child[above] = node;
}

/* The node after `node` in a walk over the subtree of `top`, parents first; -1 at the end. */
static int32_t walk(const tree *t, int32_t node, int32_t top)
{
    if (t->child[node] >= 0)
        return t->child[node];
    while (node != top && t->next[node] < 0)
        node = t->parent[node];
    return node == top ? -1 : t->next[node];
}

static void potential_from_parent(tree *t, int32_t node)
{
    const double above = t->potential[t->parent[node]], c = arc_cost(t, node);
    t->potential[node] = node < t->rows ? above - c : above + c;
}

static void refresh_potentials(tree *t)
{
    t->potential[t->nodes] = 0.0;
    for (int32_t node = t->child[t->nodes]; node >= 0; node = walk(t, node, (int32_t)t->nodes))
        potential_from_parent(t, node);
}

/* Prices rows from *position on, in blocks; returns whether an arc came in below -tolerance. */
static int find_entering(const tree *t, double tolerance, int64_t block, int64_t *position, int64_t *row, int64_t *column)
{
    const double *v = t->potential + t->rows;
    double best = -tolerance;
    int found = 0;
    for (int64_t seen = 0; seen < t->rows; seen++) {
        const int64_t i = *position;
        const double *c = t->cost + i * t->columns;
        const double u = t->potential[i];
        /* four at a time; ties go to the first */
        double least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
        int64_t j = 0;
        for (; j + 4 <= t->columns; j += 4)
            for (int k = 0; k < 4; k++) {
                const double price = c[j + k] - v[j + k];
                least[k] = price < least[k] ? price : least[k];
            }
        for (; j < t->columns; j++) {
            const double price = c[j] - v[j];
            least[0] = price < least[0] ? price : least[0];
        }
        const double first = least[0] < least[1] ? least[0] : least[1], second = least[2] < least[3] ? least[2] : least[3];
        const double of_row = first < second ? first : second;
        *position = i + 1 == t->rows ? 0 : i + 1;
        if (of_row + u < best) {
            for (j = 0; c[j] - v[j] != of_row; j++)
                ;
            best = of_row + u;
            *row = i;
            *column = j;
            found = 1;
        }
        if (found && (seen + 1) % block == 0)
            return 1;
    }
    return found;
}

/* Brings arc (row, column) into the basis. */
static void pivot(tree *t, int64_t row, int64_t column)
{
    const int32_t first = (int32_t)row, second = (int32_t)(t->rows + column);
    int32_t u = first, v = second;
    while (u != v) {
        if (t->depth[u] >= t->depth[v])
            u = t->parent[u];
        else
            v = t->parent[v];
    }
    const int32_t join = u;
    /* The new arc carries flow from `first` to `second`, which comes back over the tree: up from `second`, down to `first`.
     * It shrinks on the upward arcs of the first path and the downward arcs of the second. The last of equals on the way from
     * the join, along the flow, leaves: that is what keeps the tree strongly feasible. */
    int64_t delta = INT64_MAX;
    int32_t leaving = -1;
    int on_first = 0;
    for (u = first; u != join; u = t->parent[u])
        if (u < t->rows && t->flow[u] < delta) {
            delta = t->flow[u];
            leaving = u;
            on_first = 1;
        }
    for (u = second; u != join; u = t->parent[u])
        if (u >= t->rows && t->flow[u] <= delta) {
            delta = t->flow[u];
            leaving = u;
            on_first = 0;
        }
    for (u = first; u != join; u = t->parent[u])
        t->flow[u] += u < t->rows ? -delta : delta;
    for (u = second; u != join; u = t->parent[u])
        t->flow[u] += u < t->rows ? delta : -delta;

    /* The subtree below `leaving` is hung up anew at its end of the entering arc: parents turn round along the path. */
    const int32_t inner = on_first ? first : second, outer = on_first ? second : first;
    int32_t node = inner, above = outer;
    int64_t flow = delta;
    for (;;) {
        const int32_t old_parent = t->parent[node];
        const int64_t old_flow = t->flow[node];
        unlink_node(t, node);
        link_node(t, node, above);
        t->flow[node] = flow;
        if (node == leaving)
            break;
        above = node;
        flow = old_flow;
        node = old_parent;
    }
    const double before = t->potential[inner];
    potential_from_parent(t, inner);
    const double shift = t->potential[inner] - before;
    t->depth[inner] = t->depth[outer] + 1;
    for (node = walk(t, inner, inner); node >= 0; node = walk(t, node, inner)) {
        t->potential[node] += shift;
        t->depth[node] = t->depth[t->parent[node]] + 1;
    }
}

void lattice_network_simplex(int64_t rows, int64_t columns, const double *cost, const int64_t *supply,
                             const int64_t *demand, int64_t most_pivots, char *memory, int64_t *flow_row,
                             int64_t *flow_column, int64_t *flow_mass, double *row_potential, double *column_potential,
                             lattice_simplex_result *result)
{
    const int64_t nodes = rows + columns, room = nodes + 2;
    tree t = {.rows = rows, .columns = columns, .nodes = nodes, .cost = cost};
    t.flow = (int64_t *)memory;
    t.potential = (double *)(t.flow + room);
    t.parent = (int32_t *)(t.potential + room);
    t.child = t.parent + room;
    t.next = t.child + room;
    t.previous = t.next + room;
    t.depth = t.previous + room;
    double least = INFINITY, most = -INFINITY;
    for (int64_t k = 0; k < rows * columns; k++) {
        least = cost[k] < least ? cost[k] : least;
        most = cost[k] > most ? cost[k] : most;
    }
    const double magnitude = fabs(most) > fabs(least) ? fabs(most) : fabs(least);
    t.artificial = magnitude > 0.0 ? 2.0 * magnitude : 1.0;
    const double tolerance = 64.0 * DBL_EPSILON * t.artificial;

    for (int64_t node = 0; node <= nodes; node++)
        t.child[node] = -1;
    t.parent[nodes] = -1;
    t.depth[nodes] = 0;
    t.next[nodes] = t.previous[nodes] = -1;
    for (int64_t node = nodes; node-- > 0;) {
        link_node(&t, (int32_t)node, (int32_t)nodes);
        t.depth[node] = 1;
        t.flow[node] = node < rows ? supply[node] : demand[node - rows];
    }
    refresh_potentials(&t);

    int64_t block = (int64_t)(sqrt((double)rows * (double)columns) / (double)columns) + 1, position = 0, pivots = 0;
    int fresh = 1;
    result->status = 1;
    while (pivots < most_pivots) {
        int64_t row = 0, column = 0;
        if (find_entering(&t, tolerance, block, &position, &row, &column)) {
            pivot(&t, row, column);
            pivots++;
            fresh = 0;
            continue;
        }
        if (fresh) {
            result->status = 0;
            break;
        }
        refresh_potentials(&t);
        fresh = 1;
    }
    result->pivots = pivots;
    result->entries = 0;
    for (int64_t node = 0; node < nodes; node++) {
        const int64_t above = t.parent[node];
        if (t.flow[node] == 0)
            continue;
        if (above == nodes) { /* mass still goes by the root: not optimal */
            result->status = 1;
            continue;
        }
        flow_row[result->entries] = node < rows ? node : above;
        flow_column[result->entries] = (node < rows ? above : node) - rows;
        flow_mass[result->entries++] = t.flow[node];
    }
    for (int64_t i = 0; i < rows; i++)
        row_potential[i] = -t.potential[i];
    for (int64_t j = 0; j < columns; j++)
        column_potential[j] = t.potential[rows + j];
}
