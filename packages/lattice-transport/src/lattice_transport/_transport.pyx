"""Binding of the C kernels: argument checks and memory, then one call without the GIL."""

from libc.math cimport INFINITY, isinf
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
cimport numpy as cnp

import numpy as np

from lattice_transport.errors import InvalidInputError

cnp.import_array()


REFUSED = InvalidInputError
include "lattice/binding.pxi"

cdef extern from "run_sinkhorn.h" nogil:
    int LATTICE_COLUMN_STEP
    int LATTICE_DENSE_ROWS
    int LATTICE_CLOUD_ROWS
    ctypedef struct lattice_problem:
        int64_t rows, columns, padded
        int precision
        double scale
        const void *matrix
        int metric
        int64_t dimension
        const void *x
        const void *panels
        const double *x_squared
        const double *y_squared
        const double *a
        const double *b
        const double *log_a
        const double *log_b
        double row_damping, column_damping, relaxation
        double row_tau, column_tau
        int symmetric, product
        double *u
        double *v
        double *v_next
        double *row_sums
        double *column_sums
        double *block_floors
        void *v_real
        void *partial
        char *tiles
        int64_t tile_bytes, blocks
    ctypedef struct lattice_progress:
        int64_t iterations
        int converged
        double row_residual, column_residual, primal, dual, relaxation, anchor_residual
        int64_t anchor_age
    ctypedef struct lattice_sinkhorn_kernels:
        const char *name
        void (*elementwise[2])(int function, const void *x, void *y, int64_t count)
    const lattice_sinkhorn_kernels *lattice_sinkhorn_table(int isa)
    int64_t lattice_blocks(int64_t rows)
    void lattice_sinkhorn_run(lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *, int threads,
                              int64_t iterations, double threshold, int adapt, lattice_progress *progress)
    void lattice_plan(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *, int threads,
                      int64_t row, int64_t rows, void *plan)
    void lattice_row_costs(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *,
                           int threads, double *cost)
    void lattice_cost_matrix(const lattice_problem *p, const lattice_sinkhorn_kernels *kernels, lattice_pool *,
                             int threads, void *costs)
    int64_t lattice_extremes(const void *values, int64_t count, int precision, const lattice_sinkhorn_kernels *kernels,
                             lattice_pool *, int threads, double *least, double *most)

cdef extern from "network_simplex.h" nogil:
    ctypedef struct lattice_simplex_result:
        int status
        int exact
        int64_t pivots
        int64_t entries
        double shortfall
    int64_t lattice_simplex_bytes(int64_t rows, int64_t columns)
    void lattice_network_simplex(int64_t rows, int64_t columns, const double *cost, const int64_t *supply,
                                 const int64_t *demand, int64_t most_pivots, char *memory, int64_t *flow_row,
                                 int64_t *flow_column, int64_t *flow_mass, double *row_potential,
                                 double *column_potential, lattice_simplex_result *result)


cdef const lattice_sinkhorn_kernels *active_kernels = NULL
cdef int active_isa = -1

SQUARED_EUCLIDEAN, EUCLIDEAN, COSINE = 0, 1, 2


cdef bint has_kernels(int isa):
    return lattice_sinkhorn_table(isa) != NULL


def select_isa(str requested=None):
    """Use the kernels of ``requested``, else of ``LATTICE_ISA``, else the best; return the name.

    Raises ValueError for an unknown name and for a level that this CPU or this build cannot run.
    """
    global active_isa, active_kernels
    active_isa = level_of(requested)
    active_kernels = lattice_sinkhorn_table(active_isa)
    return lattice_isa_name(active_isa).decode()


cdef const lattice_sinkhorn_kernels *kernels() except NULL:
    if active_kernels == NULL:
        select_isa()
    return active_kernels


cdef void *data_of(object array, object dtype, Py_ssize_t size, str name) except NULL:
    """The data of a C-contiguous array of ``dtype`` with at least ``size`` elements."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous {np.dtype(dtype).name} array")
    if array.size < size:
        raise ValueError(f"{name} has {array.size} elements, {size} are needed")
    return cnp.PyArray_DATA(<cnp.ndarray>array)


def elementwise(str function, x):
    """Apply ``exp``, ``log`` or ``exp2`` of the kernels to an array.

    It is float32 or float64; for tests of their accuracy.
    """
    cdef int index = ["exp", "log", "exp2"].index(function)
    cdef int precision = x.dtype == np.float64
    result = np.empty_like(x)
    kernels().elementwise[precision](
        index, data_of(x, x.dtype, x.size, "x"), data_of(result, x.dtype, x.size, "result"), x.size
    )
    return result


def extremes(values):
    """Return (least, most, position of the first non-finite value or -1) of a float array.

    It is float32 or float64.
    """
    cdef int precision = values.dtype == np.float64
    cdef void *data = data_of(values, np.float64 if precision else np.float32, values.size, "values")
    cdef const lattice_sinkhorn_kernels *table = kernels()
    cdef int64_t count = values.size, bad
    cdef int threads = pool.get_threads(pool)
    cdef double least = 0, most = 0
    with nogil:
        bad = lattice_extremes(data, count, precision, table, pool, threads, &least, &most)
    return least, most, bad


def pack_panels(y):
    """Return the points ``y`` (n, k) as panels [n / lanes][k][lanes].

    There are 16 lanes for float32 and 8 for float64.
    """
    lanes = 16 if y.dtype == np.float32 else 8
    padded = padded_columns(y.shape[0])
    panels = np.zeros((padded // lanes, y.shape[1], lanes), y.dtype)
    whole = y.shape[0] // lanes
    np.copyto(panels[:whole], y[: whole * lanes].reshape(whole, lanes, y.shape[1]).transpose(0, 2, 1))
    rest = y.shape[0] - whole * lanes
    if rest:
        panels[whole, :, :rest] = y[whole * lanes :].T
    return panels


def padded_columns(Py_ssize_t columns):
    """Return ``columns`` rounded up to what the kernels work in."""
    return (columns + LATTICE_COLUMN_STEP - 1) // LATTICE_COLUMN_STEP * LATTICE_COLUMN_STEP


cdef class Solver:
    """Memory for a Sinkhorn problem of at most ``rows`` x ``columns``, and its current problem.

    ``u`` and ``v`` are base-2 logarithms. One thread at a time may use a solver. Nothing is allocated after construction,
    but for the arrays that the caller binds.
    """

    cdef lattice_problem problem
    cdef lattice_progress progress
    cdef list owners
    cdef readonly Py_ssize_t row_capacity, column_capacity
    cdef readonly bint clouds
    cdef readonly object u, v, v_next, row_sums, column_sums
    cdef object plain_log_a, plain_log_b, log_a, log_b, block_floors, v_real, partial, tiles, a, b
    cdef int threads

    def __init__(self, Py_ssize_t rows, Py_ssize_t columns, *, bint double_precision, bint clouds=False):
        cdef Py_ssize_t padded = padded_columns(columns)
        dtype = np.float64 if double_precision else np.float32
        memset(&self.problem, 0, sizeof(self.problem))
        memset(&self.progress, 0, sizeof(self.progress))
        self.problem.precision = double_precision
        self.row_capacity, self.column_capacity, self.clouds = rows, columns, clouds
        self.u = np.zeros(rows)
        self.v = np.zeros(padded)
        self.v_next = np.zeros(padded)
        self.row_sums = np.zeros(rows)
        self.column_sums = np.zeros(padded)
        self.a = np.zeros(rows)
        self.b = np.zeros(padded)
        self.plain_log_a = np.zeros(rows)
        self.plain_log_b = np.zeros(padded)
        self.log_a = np.zeros(rows)
        self.log_b = np.zeros(padded)
        self.block_floors = np.zeros(64)
        self.v_real = np.zeros(padded, dtype)
        self.partial = np.zeros((lattice_blocks(rows), padded), dtype)
        self.threads = pool.get_threads(pool)
        tile_rows = LATTICE_CLOUD_ROWS if clouds else LATTICE_DENSE_ROWS
        self.tiles = np.zeros((self.threads, tile_rows, padded), dtype)
        self.owners = []
        cdef lattice_problem *p = &self.problem
        p.u = <double *>cnp.PyArray_DATA(self.u)
        p.v = <double *>cnp.PyArray_DATA(self.v)
        p.v_next = <double *>cnp.PyArray_DATA(self.v_next)
        p.row_sums = <double *>cnp.PyArray_DATA(self.row_sums)
        p.column_sums = <double *>cnp.PyArray_DATA(self.column_sums)
        p.a = <double *>cnp.PyArray_DATA(self.a)
        p.b = <double *>cnp.PyArray_DATA(self.b)
        p.log_a = <double *>cnp.PyArray_DATA(self.log_a)
        p.log_b = <double *>cnp.PyArray_DATA(self.log_b)
        p.block_floors = <double *>cnp.PyArray_DATA(self.block_floors)
        p.v_real = cnp.PyArray_DATA(self.v_real)
        p.partial = cnp.PyArray_DATA(self.partial)
        p.tiles = <char *>cnp.PyArray_DATA(self.tiles)
        p.tile_bytes = tile_rows * padded * (8 if double_precision else 4)

    @property
    def nbytes(self):
        """Bytes of the solver's own memory."""
        arrays = (self.u, self.v, self.v_next, self.row_sums, self.column_sums, self.a, self.b, self.log_a, self.log_b,
                  self.plain_log_a, self.plain_log_b, self.block_floors, self.v_real, self.partial, self.tiles)
        return sum(array.nbytes for array in arrays)

    @property
    def double_precision(self):
        return bool(self.problem.precision)

    def _shape(self, Py_ssize_t rows, Py_ssize_t columns):
        if rows < 1 or columns < 1 or rows > self.row_capacity or columns > self.column_capacity:
            raise ValueError(
                f"a problem of {rows} x {columns} does not fit in a workspace for {self.row_capacity} x "
                f"{self.column_capacity}"
            )
        self.problem.rows, self.problem.columns = rows, columns
        self.problem.padded = padded_columns(columns)
        self.problem.blocks = lattice_blocks(rows)

    def bind_matrix(self, matrix):
        """Take the costs from a C-contiguous matrix of the solver's dtype, which is not copied."""
        self._shape(matrix.shape[0], matrix.shape[1])
        self.problem.matrix = data_of(matrix, self.v_real.dtype, matrix.size, "the cost matrix")
        self.owners = [matrix]

    def bind_clouds(self, int metric, x, panels, x_squared, y_squared, Py_ssize_t columns):
        """Compute the costs from points ``x`` (rows, k) and the other cloud's panels.

        Squared lengths are float64.
        """
        if not self.clouds:
            raise ValueError("this workspace was made for cost matrices; make one with clouds=True")
        self._shape(x.shape[0], columns)
        cdef lattice_problem *p = &self.problem
        p.matrix = NULL
        p.metric, p.dimension = metric, x.shape[1]
        p.x = data_of(x, self.v_real.dtype, x.size, "x")
        p.panels = data_of(panels, self.v_real.dtype, p.padded * p.dimension, "panels")
        p.x_squared = <const double *>data_of(x_squared, np.float64, p.rows, "x_squared")
        p.y_squared = <const double *>data_of(y_squared, np.float64, p.padded, "y_squared")
        self.owners = [x, panels, x_squared, y_squared]

    def set_weights(self, a, b):
        """Copy the weights (float64, all above zero) and take their logarithms."""
        cdef Py_ssize_t n = self.problem.rows, m = self.problem.columns, padded = self.problem.padded
        self.a[:n] = a
        self.b[:m] = b
        np.log2(self.a[:n], out=self.plain_log_a[:n])
        np.log2(self.b[:m], out=self.plain_log_b[:m])
        self.b[m:padded] = 0.0
        self.log_b[m:padded] = 0.0
        self.v[m:padded] = 0.0

    def configure(
        self, double epsilon, *, double row_tau=INFINITY, double column_tau=INFINITY, bint symmetric=False,
        bint product=False, double relaxation=1.0,
    ):
        """Set epsilon, the marginals' penalties and how steps are taken; forget progress.

        An infinite penalty holds a marginal exactly.

        ``product``: entropy is taken relative to the product of the weights.
        """
        cdef lattice_problem *p = &self.problem
        p.scale = 1.4426950408889634 / epsilon
        p.row_damping = 1.0 if isinf(row_tau) else row_tau / (row_tau + epsilon)
        p.column_damping = 1.0 if isinf(column_tau) else column_tau / (column_tau + epsilon)
        p.row_tau, p.column_tau = row_tau / epsilon, column_tau / epsilon
        p.symmetric, p.product = symmetric, product
        n, m = p.rows, p.columns
        # damped steps towards log a: relative to the product, log a itself is not damped
        np.divide(self.plain_log_a[:n], p.row_damping if product else 1.0, out=self.log_a[:n])
        np.divide(self.plain_log_b[:m], p.column_damping if product else 1.0, out=self.log_b[:m])
        p.relaxation = 0.5 if symmetric else relaxation
        memset(&self.progress, 0, sizeof(self.progress))

    def run(self, int64_t iterations, double threshold, *, bint adapt):
        """Run up to ``iterations`` iterations. Returns whether it converged."""
        if self.problem.x == NULL and self.problem.matrix == NULL:
            raise ValueError("no cost is bound")
        cdef const lattice_sinkhorn_kernels *table = kernels()
        cdef int threads = min(self.threads, pool.get_threads(pool))
        with nogil:
            lattice_sinkhorn_run(&self.problem, table, pool, threads, iterations, threshold, adapt, &self.progress)
        return bool(self.progress.converged)

    @property
    def iterations(self):
        return self.progress.iterations

    @property
    def row_residual(self):
        return self.progress.row_residual

    @property
    def column_residual(self):
        return self.progress.column_residual

    @property
    def primal(self):
        return self.progress.primal

    @property
    def dual(self):
        return self.progress.dual

    @property
    def relaxation(self):
        return self.progress.relaxation

    def plan_rows(self, Py_ssize_t row, plan):
        """Write the plan's rows from ``row`` into ``plan`` (rows, columns), of the solver's dtype."""
        cdef Py_ssize_t rows = plan.shape[0]
        if row < 0 or row + rows > self.problem.rows or plan.shape[1] != self.problem.columns:
            raise ValueError(f"rows {row} to {row + rows} of the plan do not exist")
        cdef void *target = data_of(plan, self.v_real.dtype, plan.size, "plan")
        cdef const lattice_sinkhorn_kernels *table = kernels()
        cdef int threads = min(self.threads, pool.get_threads(pool))
        with nogil:
            lattice_plan(&self.problem, table, pool, threads, row, rows, target)

    def row_costs(self, costs):
        """Write the sum over j of P[i, j] C[i, j] for each row i into ``costs`` (float64)."""
        cdef double *target = <double *>data_of(costs, np.float64, self.problem.rows, "costs")
        cdef const lattice_sinkhorn_kernels *table = kernels()
        cdef int threads = min(self.threads, pool.get_threads(pool))
        with nogil:
            lattice_row_costs(&self.problem, table, pool, threads, target)

    def cost_matrix(self, costs):
        """Write the costs of the bound clouds into ``costs`` (rows, columns), of the solver's dtype."""
        if self.problem.matrix != NULL:
            raise ValueError("no clouds are bound")
        cdef Py_ssize_t size = self.problem.rows * self.problem.columns
        cdef void *target = data_of(costs, self.v_real.dtype, size, "costs")
        cdef const lattice_sinkhorn_kernels *table = kernels()
        cdef int threads = min(self.threads, pool.get_threads(pool))
        with nogil:
            lattice_cost_matrix(&self.problem, table, pool, threads, target)


def network_simplex(cost, supply, demand, int64_t most_pivots):
    """Solve a transportation problem with integer masses exactly.

    Returns (rows, columns, masses, u, v, pivots, status, exact, shortfall). ``status`` is 0 for an optimal plan, 1 if
    the pivots ran out. ``exact`` says that potentials are exact but for their last bit. ``shortfall`` is an upper bound
    of the cost above the optimum, for masses as they are. ``cost`` is float64 (n, m); ``supply`` and ``demand`` are
    int64 with equal sums.
    """
    cdef int64_t n = cost.shape[0], m = cost.shape[1]
    cdef const double *costs = <const double *>data_of(cost, np.float64, n * m, "cost")
    cdef const int64_t *supplies = <const int64_t *>data_of(supply, np.int64, n, "supply")
    cdef const int64_t *demands = <const int64_t *>data_of(demand, np.int64, m, "demand")
    memory = np.empty(lattice_simplex_bytes(n, m), np.uint8)
    row, column, mass = np.empty(n + m, np.int64), np.empty(n + m, np.int64), np.empty(n + m, np.int64)
    u, v = np.empty(n), np.empty(m)
    cdef char *room = <char *>cnp.PyArray_DATA(memory)
    cdef int64_t *rows = <int64_t *>cnp.PyArray_DATA(row)
    cdef int64_t *columns = <int64_t *>cnp.PyArray_DATA(column)
    cdef int64_t *masses = <int64_t *>cnp.PyArray_DATA(mass)
    cdef double *row_potential = <double *>cnp.PyArray_DATA(u)
    cdef double *column_potential = <double *>cnp.PyArray_DATA(v)
    cdef lattice_simplex_result result
    with nogil:
        lattice_network_simplex(n, m, costs, supplies, demands, most_pivots, room, rows, columns, masses, row_potential,
                                column_potential, &result)
    used = result.entries
    return (row[:used], column[:used], mass[:used], u, v, result.pivots, result.status, bool(result.exact),
            result.shortfall)
