# cython: binding=False
"""The door to the vector kernels: argument checks, then one call into C.

Vectors that are float32, C-contiguous and aligned NumPy arrays are read in place; anything else that NumPy can turn into
real numbers is converted first.
"""

import os

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cnp.import_array()

cdef extern from "lattice/cpu.h":
    enum: LATTICE_ISA_COUNT
    int lattice_isa_select(const char *requested)
    int lattice_isa_available(int isa)
    const char *lattice_isa_name(int isa)

cdef extern from "vector_kernels.h":
    enum: LATTICE_DOT
    enum: LATTICE_COSINE
    enum: LATTICE_EUCLIDEAN
    enum: LATTICE_SQUARED_EUCLIDEAN
    enum: LATTICE_MANHATTAN
    enum: LATTICE_METRIC_COUNT
    ctypedef struct lattice_vector_kernels:
        float (*pair[5])(const float *a, const float *b, size_t width) noexcept nogil
        void (*normalize)(const float *, float *, size_t, size_t) noexcept nogil
    const lattice_vector_kernels *lattice_vector_kernels_for(int isa)

cdef extern from "lattice/pool_capsule.h":
    ctypedef struct lattice_pool:
        pass
    lattice_pool *lattice_pool_shared() except NULL

cdef extern from "parallel_scores.h":
    void lattice_scores_of_rows(
        const lattice_vector_kernels *, lattice_pool *, int, const float *, size_t, const float *, size_t, size_t, float *
    ) noexcept nogil
    void lattice_scores_of_all(
        const lattice_vector_kernels *, lattice_pool *, int, const float *, size_t, const float *, size_t, size_t,
        double *, float *
    ) noexcept nogil
    void lattice_select_best(const float *, int64_t, int64_t, int, int64_t *, float *) noexcept nogil

DOT = LATTICE_DOT
COSINE = LATTICE_COSINE
EUCLIDEAN = LATTICE_EUCLIDEAN
SQUARED_EUCLIDEAN = LATTICE_SQUARED_EUCLIDEAN
MANHATTAN = LATTICE_MANHATTAN

# Below this many floats, releasing and taking the GIL would cost more than the work.
cdef enum: GIL_FREE_FLOATS = 32768

cdef int active_isa = 0
cdef const lattice_vector_kernels *kernels = NULL
cdef lattice_pool *pool = lattice_pool_shared()


def select_isa(str name=None):
    """Use the kernels of the instruction set ``name``, or the best that this CPU runs, and return its name.

    Raises:
        InvalidInputError: there is no such level, or this CPU cannot run it.
    """
    global active_isa, kernels
    cdef bytes encoded = (name or "").encode()
    cdef int isa = lattice_isa_select(encoded)
    if isa < 0:
        from lattice_embed.errors import InvalidInputError

        reason = "is not an instruction set" if isa == -1 else "is not available on this CPU"
        raise InvalidInputError(f"{name!r} {reason}: use one of {', '.join(available_isas())}, or unset LATTICE_ISA")
    active_isa = isa
    kernels = lattice_vector_kernels_for(isa)
    return isa_name()


def isa_name():
    """Return the name of the instruction set in use."""
    return lattice_isa_name(active_isa).decode()


def available_isas():
    """Return the names of the instruction sets that this CPU runs, slowest first."""
    return [lattice_isa_name(isa).decode() for isa in range(LATTICE_ISA_COUNT) if lattice_isa_available(isa)]


cdef inline const float *vector_in_place(object vector, size_t *width) noexcept:
    """The data of a float32, C-contiguous, aligned 1-D array, or NULL for anything else."""
    if not cnp.PyArray_Check(vector):
        return NULL
    if (
        cnp.PyArray_NDIM(vector) != 1
        or cnp.PyArray_TYPE(vector) != cnp.NPY_FLOAT32
        or not cnp.PyArray_ISCARRAY_RO(vector)
    ):
        return NULL
    width[0] = <size_t>cnp.PyArray_DIM(vector, 0)
    return <const float *>cnp.PyArray_DATA(vector)


def as_float32(object values, int dimensions, str name):
    """Return ``values`` as a float32, C-contiguous array of ``dimensions`` dimensions, copied only if it must be.

    Raises:
        InvalidInputError: it holds no real numbers, or has another number of dimensions.
    """
    from lattice_embed.errors import InvalidInputError

    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInputError(f"{name} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {array.dtype}; it must hold real numbers")
    if array.ndim != dimensions:
        wanted = "a vector" if dimensions == 1 else "a matrix with one vector a row"
        raise InvalidInputError(f"{name} has shape {array.shape}; it must be {wanted}")
    return np.require(array, np.float32, ["C", "A"])


cdef object score_pair(int metric, object a, object b):
    cdef size_t a_width = 0, b_width = 0
    cdef const float *x = vector_in_place(a, &a_width)
    cdef const float *y = vector_in_place(b, &b_width)
    cdef float score
    if x == NULL or y == NULL:
        # the names keep the converted arrays alive while their data is read
        a = as_float32(a, 1, "the first vector")
        b = as_float32(b, 1, "the second vector")
        x = vector_in_place(a, &a_width)
        y = vector_in_place(b, &b_width)
    if a_width != b_width:
        from lattice_embed.errors import DimensionMismatchError

        raise DimensionMismatchError(expected=a_width, actual=b_width)
    if a_width < GIL_FREE_FLOATS:
        return kernels.pair[metric](x, y, a_width)
    with nogil:
        score = kernels.pair[metric](x, y, a_width)
    return score


def dot_product(a, b, /):
    """Return the dot product of two vectors of the same length, as float32 arithmetic gives it.

    Raises:
        InvalidInputError: an argument is not a vector of real numbers.
        DimensionMismatchError: their lengths differ.
    """
    return score_pair(LATTICE_DOT, a, b)


def cosine_similarity(a, b, /):
    """Return the cosine of the angle between two vectors, in [-1, 1].

    A vector of zeros has no direction: its similarity to anything is 0.0. NaN in either vector gives NaN.

    Raises:
        InvalidInputError: an argument is not a vector of real numbers.
        DimensionMismatchError: their lengths differ.
    """
    return score_pair(LATTICE_COSINE, a, b)


def euclidean_distance(a, b, /):
    """Return the length of the difference of two vectors.

    Raises:
        InvalidInputError: an argument is not a vector of real numbers.
        DimensionMismatchError: their lengths differ.
    """
    return score_pair(LATTICE_EUCLIDEAN, a, b)


def squared_euclidean_distance(a, b, /):
    """Return the squared length of the difference of two vectors: the order of euclidean_distance without its root.

    Raises:
        InvalidInputError: an argument is not a vector of real numbers.
        DimensionMismatchError: their lengths differ.
    """
    return score_pair(LATTICE_SQUARED_EUCLIDEAN, a, b)


def manhattan_distance(a, b, /):
    """Return the sum of the absolute differences of two vectors' components.

    Raises:
        InvalidInputError: an argument is not a vector of real numbers.
        DimensionMismatchError: their lengths differ.
    """
    return score_pair(LATTICE_MANHATTAN, a, b)


cdef int check_metric(int metric) except -1:
    if not 0 <= metric < LATTICE_METRIC_COUNT:
        raise ValueError(f"no metric has the number {metric}")
    return metric


def _one_vs_many(int metric, query, matrix):
    """Score a query (dim,) against each row of a matrix (n, dim); both are converted. Returns float32 (n,)."""
    check_metric(metric)
    cdef cnp.ndarray vector = as_float32(query, 1, "the query")
    cdef cnp.ndarray rows = as_float32(matrix, 2, "the matrix")
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    check_widths(<size_t>vector.shape[0], width)
    cdef cnp.ndarray scores = np.empty(count, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(vector)
    cdef const float *y = <const float *>cnp.PyArray_DATA(rows)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    with nogil:
        lattice_scores_of_rows(kernels, pool, metric, x, 0, y, count, width, out)
    return scores


def _row_by_row(int metric, a, b):
    """Score row i of one matrix (n, dim) against row i of another. Returns float32 (n,)."""
    check_metric(metric)
    cdef cnp.ndarray first = as_float32(a, 2, "the first matrix")
    cdef cnp.ndarray second = as_float32(b, 2, "the second matrix")
    check_widths(<size_t>first.shape[1], <size_t>second.shape[1])
    if first.shape[0] != second.shape[0]:
        from lattice_embed.errors import InvalidInputError

        raise InvalidInputError(f"{first.shape[0]} rows cannot be paired with {second.shape[0]} rows one to one")
    cdef size_t count = <size_t>first.shape[0], width = <size_t>first.shape[1]
    cdef cnp.ndarray scores = np.empty(count, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(first)
    cdef const float *y = <const float *>cnp.PyArray_DATA(second)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    with nogil:
        lattice_scores_of_rows(kernels, pool, metric, x, width, y, count, width, out)
    return scores


def _many_vs_many(int metric, a, b):
    """Score each row of one matrix (m, dim) against each row of another (n, dim). Returns float32 (m, n)."""
    check_metric(metric)
    cdef cnp.ndarray first = as_float32(a, 2, "the first matrix")
    cdef cnp.ndarray second = as_float32(b, 2, "the second matrix")
    cdef size_t a_count = <size_t>first.shape[0], b_count = <size_t>second.shape[0], width = <size_t>first.shape[1]
    check_widths(width, <size_t>second.shape[1])
    cdef cnp.ndarray scores = np.empty((a_count, b_count), np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(first)
    cdef const float *y = <const float *>cnp.PyArray_DATA(second)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    cdef double *norms = <double *>malloc((a_count + b_count + 1) * sizeof(double))
    if norms == NULL:
        raise MemoryError
    with nogil:
        lattice_scores_of_all(kernels, pool, metric, x, a_count, y, b_count, width, norms, out)
    free(norms)
    return scores


def _normalize(source, target):
    """Write each row of ``source`` (n, dim), divided by its length, to ``target``: float32 C arrays of one shape."""
    cdef cnp.ndarray rows = as_float32(source, 2, "the vectors")
    cdef cnp.ndarray out = target
    if (
        cnp.PyArray_TYPE(out) != cnp.NPY_FLOAT32
        or not cnp.PyArray_ISCARRAY(out)
        or cnp.PyArray_NDIM(out) != 2
        or out.shape[0] != rows.shape[0]
        or out.shape[1] != rows.shape[1]
    ):
        raise ValueError("the target must be a writable, C-contiguous float32 array of the vectors' shape")
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    cdef const float *x = <const float *>cnp.PyArray_DATA(rows)
    cdef float *y = <float *>cnp.PyArray_DATA(out)
    with nogil:
        kernels.normalize(x, y, count, width)


def _select_best(scores, Py_ssize_t wanted, bint largest):
    """Return positions (int64) and values (float32) of the ``wanted`` best scores of a float32 array, best first."""
    cdef cnp.ndarray values = as_float32(scores, 1, "the scores")
    cdef Py_ssize_t count = values.shape[0]
    if not 0 <= wanted <= count:
        raise ValueError(f"cannot take {wanted} of {count} scores")
    cdef cnp.ndarray positions = np.empty(wanted, np.int64)
    cdef cnp.ndarray best = np.empty(wanted, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(values)
    cdef int64_t *out_positions = <int64_t *>cnp.PyArray_DATA(positions)
    cdef float *out_values = <float *>cnp.PyArray_DATA(best)
    with nogil:
        lattice_select_best(x, count, wanted, largest, out_positions, out_values)
    return positions, best


cdef int check_widths(size_t a_width, size_t b_width) except -1:
    if a_width != b_width:
        from lattice_embed.errors import DimensionMismatchError

        raise DimensionMismatchError(expected=a_width, actual=b_width)
    return 0


select_isa(os.environ.get("LATTICE_ISA"))
