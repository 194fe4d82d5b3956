/* See network_simplex.h. Compiled once.
 *
 * The basis is a spanning tree over rows, columns and an artificial root. Each node keeps the arc to its parent and that
 * arc's flow; arcs run from rows to columns (from rows to the root, from the root to columns), so a row's arc points up and a
 * column's down. Children are linked lists: cutting and joining is constant time, and a walk over a subtree needs no stack.
 *
 * Pricing is a block search: the arc of most negative reduced cost among the next block of rows that has one enters. Going
 * round by the direct arc costs at most the largest cost, so an artificial arc needs only to be dearer than that, which keeps
 * potentials small. When no arc prices out, potentials are computed anew from the tree and all arcs priced again, so
 * that rounding of the updates cannot end the search early.
 *
 * The tolerance of that search is a part of the largest cost, and potentials carry it. Where the arcs with flow cost a
 * millionth of it or less, both may hide what can still be gained. The search then goes on from the same tree without a
 * tolerance: potentials are exact sums of costs (fixed_point.h). Their nearest doubles price an arc up to a bound of the
 * rounding that its terms can cause, and only an arc within the bound is priced exactly. No mass goes by the root any more, and
 * the arcs to it that remain in a strongly feasible tree come from rows and carry nothing, so they may cost 0.
 */
#include "network_simplex.h"

#include "fixed_point.h"

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
    uint64_t *exact; /* potentials, `scale.limbs` limbs each */
    lattice_fixed_scale scale;
} tree;

#define LEAST_PLAIN 0x1p-22  /* of the largest cost: where the arcs with flow cost less on average, potentials are exact */
#define MOST_SHORTFALL 0x1p-30 /* of the cost of the plan: what the tolerance may leave to gain */
#define ROUNDING 0x1p-50     /* of each term of a reduced cost: more than rounding can make of it */

int64_t lattice_simplex_bytes(int64_t rows, int64_t columns)
{
    return (rows + columns + 2) *
           (int64_t)(sizeof(int64_t) + sizeof(double) + 6 * sizeof(int32_t) + LATTICE_MOST_LIMBS * sizeof(uint64_t));
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

/* Prices rows from *position on, in blocks; returns whether an arc came in below -tolerance. If none did, *shortfall is what
 * the cost of the plan can be above the optimum. */
static int find_entering(const tree *t, double tolerance, int64_t block, const int64_t *supply, int64_t *position,
                         int64_t *row, int64_t *column, double *shortfall)
{
    const double *v = t->potential + t->rows;
    double best = -tolerance, short_of = 0.0;
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
        if (of_row + u < 0.0) /* a potential lower by this makes the row feasible for the dual problem */
            short_of -= (of_row + u) * (double)supply[i];
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
    *shortfall = short_of;
    return found;
}

static uint64_t *exact_potential(const tree *t, int64_t node)
{
    return t->exact + node * t->scale.limbs;
}

/* cost + potential[i] - potential[rows + j], into `price`; returns its nearest double. */
static double exact_price(const tree *t, int64_t i, int64_t j, uint64_t *price)
{
    memcpy(price, exact_potential(t, i), (size_t)t->scale.limbs * sizeof(uint64_t));
    lattice_fixed_combine(price, t->scale, exact_potential(t, t->rows + j), 1);
    lattice_fixed_add(price, t->scale, t->cost[i * t->columns + j], 0);
    return lattice_fixed_round(price, t->scale);
}

/* Potentials from the tree, without rounding; arcs to the root cost nothing. */
static void refresh_exactly(tree *t)
{
    memset(exact_potential(t, t->nodes), 0, (size_t)t->scale.limbs * sizeof(uint64_t));
    t->potential[t->nodes] = 0.0;
    for (int32_t node = t->child[t->nodes]; node >= 0; node = walk(t, node, (int32_t)t->nodes)) {
        uint64_t *own = exact_potential(t, node);
        memcpy(own, exact_potential(t, t->parent[node]), (size_t)t->scale.limbs * sizeof(uint64_t));
        if (t->parent[node] != t->nodes)
            lattice_fixed_add(own, t->scale, arc_cost(t, node), node < t->rows);
        t->potential[node] = lattice_fixed_round(own, t->scale);
    }
}

/* As find_entering, but for an arc whose exact reduced cost is below zero: there is no tolerance. */
static int find_exactly(const tree *t, int64_t block, const int64_t *supply, int64_t *position, int64_t *row,
                        int64_t *column, double *shortfall)
{
    const double *v = t->potential + t->rows;
    double best = 0.0, short_of = 0.0;
    int found = 0;
    uint64_t price[LATTICE_MOST_LIMBS];
    for (int64_t seen = 0; seen < t->rows; seen++) {
        const int64_t i = *position;
        const double *c = t->cost + i * t->columns;
        const double u = t->potential[i], slack_of_u = ROUNDING * fabs(u);
        double of_row = 0.0;
        for (int64_t j = 0; j < t->columns; j++) {
            const double about = (c[j] - v[j]) + u, slack = ROUNDING * (fabs(c[j]) + fabs(v[j])) + slack_of_u;
            if (about - slack >= 0.0)
                continue;
            /* a sum that rounding cannot have changed much is good enough to choose by */
            const double value = about < -slack ? about : exact_price(t, i, j, price);
            of_row = value < of_row ? value : of_row;
            if (value < best) {
                best = value;
                *row = i;
                *column = j;
                found = 1;
            }
        }
        short_of -= of_row * (double)supply[i];
        *position = i + 1 == t->rows ? 0 : i + 1;
        if (found && (seen + 1) % block == 0)
            return 1;
    }
    *shortfall = short_of;
    return found;
}

/* Brings arc (row, column) into the basis. Returns the top of the subtree whose potentials and depths it changes. */
static inline int32_t exchange(tree *t, int64_t row, int64_t column)
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
    t->depth[inner] = t->depth[outer] + 1;
    return inner;
}

static void pivot(tree *t, int64_t row, int64_t column)
{
    const int32_t inner = exchange(t, row, column);
    const double before = t->potential[inner];
    potential_from_parent(t, inner);
    const double shift = t->potential[inner] - before;
    for (int32_t node = walk(t, inner, inner); node >= 0; node = walk(t, node, inner)) {
        t->potential[node] += shift;
        t->depth[node] = t->depth[t->parent[node]] + 1;
    }
}

static void pivot_exactly(tree *t, int64_t row, int64_t column)
{
    uint64_t price[LATTICE_MOST_LIMBS];
    exact_price(t, row, column, price);
    const int32_t inner = exchange(t, row, column);
    const int minus = inner < t->rows; /* the price of the new arc becomes 0 */
    for (int32_t node = inner; node >= 0; node = walk(t, node, inner)) {
        uint64_t *own = exact_potential(t, node);
        lattice_fixed_combine(own, t->scale, price, minus);
        t->potential[node] = lattice_fixed_round(own, t->scale);
        if (node != inner)
            t->depth[node] = t->depth[t->parent[node]] + 1;
    }
}

/* Whether what the plain search ended with may miss a gain that counts against the cost of the plan. */
static int needs_exact(const tree *t, const int64_t *supply, double magnitude, double shortfall)
{
    double used = 0.0, total = 0.0;
    for (int64_t node = 0; node < t->nodes; node++) {
        if (t->flow[node] != 0)
            used += (double)t->flow[node] * fabs(arc_cost(t, node));
        if (node < t->rows)
            total += (double)supply[node];
    }
    return !(used >= LEAST_PLAIN * magnitude * total && shortfall <= MOST_SHORTFALL * used);
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
    t.exact = (uint64_t *)(t.depth + 2 * room);
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
    int64_t row = 0, column = 0;
    int fresh = 1;
    double shortfall = INFINITY;
    result->status = 1;
    while (pivots < most_pivots) {
        if (find_entering(&t, tolerance, block, supply, &position, &row, &column, &shortfall)) {
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
    int complete = 1; /* no mass goes by the root */
    for (int32_t node = t.child[nodes]; node >= 0; node = t.next[node])
        complete = complete && t.flow[node] == 0;
    if (!complete)
        result->status = 1;
    if (result->status == 0 && needs_exact(&t, supply, magnitude, shortfall)) {
        t.scale = lattice_fixed_scale_of(cost, rows * columns);
        refresh_exactly(&t);
        while (find_exactly(&t, block, supply, &position, &row, &column, &shortfall)) {
            if (pivots >= most_pivots) {
                result->status = 1;
                break;
            }
            pivot_exactly(&t, row, column);
            pivots++;
        }
    }
    if (result->status != 0 && complete) { /* how far it is from the optimum */
        if (t.scale.limbs == 0)
            find_entering(&t, INFINITY, block, supply, &position, &row, &column, &shortfall);
        else
            find_exactly(&t, rows + 1, supply, &position, &row, &column, &shortfall);
    }
    result->exact = t.scale.limbs != 0;
    result->shortfall = complete ? shortfall : INFINITY;
    result->pivots = pivots;
    result->entries = 0;
    for (int64_t node = 0; node < nodes; node++) {
        const int64_t above = t.parent[node];
        if (t.flow[node] == 0 || above == nodes)
            continue;
        flow_row[result->entries] = node < rows ? node : above;
        flow_column[result->entries] = (node < rows ? above : node) - rows;
        flow_mass[result->entries++] = t.flow[node];
    }
    for (int64_t i = 0; i < rows; i++)
        row_potential[i] = 0.0 - t.potential[i];
    for (int64_t j = 0; j < columns; j++)
        column_potential[j] = t.potential[rows + j];
}
