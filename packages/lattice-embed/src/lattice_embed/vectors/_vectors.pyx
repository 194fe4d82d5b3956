# cython: binding=False
"""Binding of the vector kernels: argument checks, then one call into C.

Vectors that are float32, C-contiguous and aligned NumPy arrays are read in place; anything else that NumPy can turn into
real numbers is converted first.
"""

import numpy as np

from lattice_embed.arrays import float32_array, without_mask
from lattice_embed.errors import InvalidInputError

cimport numpy as cnp
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.math cimport sqrt
from libc.stdlib cimport free, malloc

cnp.import_array()

REFUSED = InvalidInputError
include "lattice/binding.pxi"

cdef extern from "stored_rows.h":
    enum: LATTICE_DOT
    enum: LATTICE_COSINE
    enum: LATTICE_EUCLIDEAN
    enum: LATTICE_SQUARED_EUCLIDEAN
    enum: LATTICE_MANHATTAN
    enum: LATTICE_METRIC_COUNT
    enum: LATTICE_HAMMING
    enum: LATTICE_FLOAT32
    enum: LATTICE_BFLOAT16
    enum: LATTICE_FLOAT16
    enum: LATTICE_INT8
    enum: LATTICE_INT4
    enum: LATTICE_BINARY
    enum: LATTICE_MAX_DIMENSIONS
    ctypedef struct lattice_vector_kernels:
        float (*pair[5])(const float *a, const float *b, size_t width) noexcept nogil
    ctypedef struct lattice_integer_kernels:
        int32_t (*dot_int8)(const int8_t *a, const int8_t *b, size_t width) noexcept nogil
        int32_t (*dot_int4)(const uint8_t *a, const uint8_t *b, size_t bytes) noexcept nogil
    ctypedef struct lattice_binary_kernels:
        int64_t (*hamming)(const uint8_t *a, const uint8_t *b, size_t bytes) noexcept nogil
    ctypedef struct lattice_storing_kernels:
        void (*to_int8)(const float *, size_t, size_t, int8_t *, float *) noexcept nogil
        void (*to_int4)(const float *, size_t, size_t, uint8_t *, float *, float *) noexcept nogil
        void (*to_binary)(const float *, size_t, size_t, float, uint8_t *) noexcept nogil
        int64_t (*find_not_finite)(const float *, size_t, size_t) noexcept nogil
    ctypedef struct lattice_rows:
        int kind
        size_t count, width, row_bytes
        const void *data
        const float *steps
        const float *offsets
        const int32_t *sums
        const float *inverse_norms
        const double *squares
    ctypedef struct lattice_query:
        int metric
        const void *data
    ctypedef struct lattice_kernel_choice:
        const lattice_vector_kernels *vectors
        const lattice_integer_kernels *integers
        const lattice_binary_kernels *bits
        const lattice_storing_kernels *storing
    void lattice_choose_kernels(int isa, int extensions, lattice_kernel_choice *choice)

cdef extern from "prepare_query.h":
    size_t lattice_query_bytes(int kind, size_t width) noexcept nogil
    void lattice_prepare_floats(
        int, int, const float *, size_t, const float *, const float *, float, void *, lattice_query *
    ) noexcept nogil
    void lattice_prepare_stored(int, const lattice_rows *, size_t, void *, lattice_query *) noexcept nogil

cdef extern from "parallel_scores.h":
    void lattice_scores_of_pairs(
        const lattice_kernel_choice *, lattice_pool *, int, const float *, const float *, size_t, size_t, float *
    ) noexcept nogil
    void lattice_scores_of_rows(
        const lattice_kernel_choice *, lattice_pool *, const lattice_rows *, const lattice_query *, size_t, float *
    ) noexcept nogil
    int lattice_nearest_rows(
        const lattice_kernel_choice *, lattice_pool *, const lattice_rows *, const lattice_query *, size_t, int64_t, int,
        int64_t *, float *
    ) noexcept nogil
    int lattice_scores_of_all(
        const lattice_kernel_choice *, lattice_pool *, int, const float *, size_t, const float *, size_t, size_t, float *
    ) noexcept nogil
    int lattice_nearest_of_all(
        const lattice_kernel_choice *, lattice_pool *, int, const float *, size_t, const float *, size_t, size_t, int64_t,
        int, int64_t *, float *
    ) noexcept nogil
    void lattice_normalize_rows(
        const lattice_kernel_choice *, lattice_pool *, const float *, float *, size_t, size_t
    ) noexcept nogil

DOT = LATTICE_DOT
COSINE = LATTICE_COSINE
EUCLIDEAN = LATTICE_EUCLIDEAN
SQUARED_EUCLIDEAN = LATTICE_SQUARED_EUCLIDEAN
MANHATTAN = LATTICE_MANHATTAN
HAMMING = LATTICE_HAMMING

FLOAT32 = LATTICE_FLOAT32
BFLOAT16 = LATTICE_BFLOAT16
FLOAT16 = LATTICE_FLOAT16
INT8 = LATTICE_INT8
INT4 = LATTICE_INT4
BINARY = LATTICE_BINARY
MAX_DIMENSIONS = LATTICE_MAX_DIMENSIONS

# Below this many floats, releasing and taking the GIL would cost more than the work.
cdef enum: GIL_FREE_FLOATS = 32768

cdef int active_isa = 0
cdef lattice_kernel_choice kernels

cdef bint has_kernels(int isa):
    return True  # each level of an architecture is compiled for it


def select_isa(str name=None, *, bint extensions=True):
    """Use the kernels of the instruction set ``name`` and return its name.

    Without ``name``, that of ``LATTICE_ISA``, else the best. Without ``extensions`` the bodies for single
    instructions beyond it (VNNI, VPOPCNTDQ, SDOT) are left out.

    Raises:
        InvalidInputError: there is no such level, or this CPU cannot run it.
    """
    global active_isa
    active_isa = level_of(name)
    lattice_choose_kernels(active_isa, extensions, &kernels)
    return isa_name()


def isa_name():
    """Return the name of the instruction set in use."""
    return lattice_isa_name(active_isa).decode()


memmap = np.memmap


cdef inline bint is_plain(object values) noexcept:
    """Whether this is an array whose data is all of it: a subclass may carry a mask or a unit."""
    return cnp.PyArray_CheckExact(values) or type(values) is memmap


cdef inline const float *vector_in_place(object vector, size_t *width) noexcept:
    """The data of a float32, C-contiguous, aligned 1-D array, or NULL for anything else."""
    if not is_plain(vector):
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
    """Return ``values`` as a float32, C-contiguous array of ``dimensions`` dimensions.

    It is copied only if it must be.

    Raises:
        InvalidInputError: it holds no real numbers or masked ones, or has another number of dimensions.
    """
    if (
        is_plain(values)
        and cnp.PyArray_NDIM(values) == dimensions
        and cnp.PyArray_TYPE(values) == cnp.NPY_FLOAT32
        and cnp.PyArray_ISCARRAY_RO(values)
    ):
        return values
    array = float32_array(values, name)
    if array.ndim != dimensions:
        wanted = "a vector" if dimensions == 1 else "a matrix with one vector a row"
        raise InvalidInputError(f"{name} has shape {array.shape}; it must be {wanted}")
    return array


cdef object score_pair(int metric, object a, object b):
    cdef size_t a_width = 0, b_width = 0
    cdef const float *x = vector_in_place(a, &a_width)
    cdef const float *y = vector_in_place(b, &b_width)
    cdef float score
    if x == NULL or y == NULL:
        if isinstance(a, StoredVector) or isinstance(b, StoredVector):
            return score_stored_pair(metric, a, b)
        # the names keep the converted arrays alive while their data is read
        a = as_float32(a, 1, "the first vector")
        b = as_float32(b, 1, "the second vector")
        x = vector_in_place(a, &a_width)
        y = vector_in_place(b, &b_width)
    if a_width != b_width:
        from lattice_embed.errors import DimensionMismatchError

        raise DimensionMismatchError(expected=a_width, actual=b_width)
    if a_width < GIL_FREE_FLOATS:
        return kernels.vectors.pair[metric](x, y, a_width)
    with nogil:
        score = kernels.vectors.pair[metric](x, y, a_width)
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
    """Return the squared distance of two vectors.

    It has the order of euclidean_distance without the root.

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


def _row_by_row(int metric, a, b):
    """Score row i of one matrix (n, dim) against row i of another. Returns float32 (n,)."""
    check_metric(metric)
    cdef cnp.ndarray first = as_float32(a, 2, "the first matrix")
    cdef cnp.ndarray second = as_float32(b, 2, "the second matrix")
    check_widths(<size_t>first.shape[1], <size_t>second.shape[1])
    if first.shape[0] != second.shape[0]:
        raise InvalidInputError(f"{first.shape[0]} rows cannot be paired with {second.shape[0]} rows one to one")
    cdef size_t count = <size_t>first.shape[0], width = <size_t>first.shape[1]
    cdef cnp.ndarray scores = np.empty(count, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(first)
    cdef const float *y = <const float *>cnp.PyArray_DATA(second)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    with nogil:
        lattice_scores_of_pairs(&kernels, pool, metric, x, y, count, width, out)
    return scores


def _many_vs_many(int metric, a, b):
    """Score each row of a matrix (m, dim) against each row of another (n, dim).

    Returns float32 (m, n).
    """
    check_metric(metric)
    cdef cnp.ndarray first = as_float32(a, 2, "the first matrix")
    cdef cnp.ndarray second = as_float32(b, 2, "the second matrix")
    cdef size_t a_count = <size_t>first.shape[0], b_count = <size_t>second.shape[0], width = <size_t>first.shape[1]
    check_widths(width, <size_t>second.shape[1])
    cdef cnp.ndarray scores = np.empty((a_count, b_count), np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(first)
    cdef const float *y = <const float *>cnp.PyArray_DATA(second)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    cdef int failed
    with nogil:
        failed = lattice_scores_of_all(&kernels, pool, metric, x, a_count, y, b_count, width, out)
    if failed:
        raise MemoryError
    return scores


def _nearest_of_all(int metric, queries, matrix, Py_ssize_t wanted):
    """Return positions (int64) and scores (float32) of the best rows, both (m, min(wanted, n)).

    The rows are those of a matrix (n, dim), for each query of (m, dim). Scores are those of ``_many_vs_many``.
    """
    check_metric(metric)
    cdef cnp.ndarray first = as_float32(queries, 2, "the queries")
    cdef cnp.ndarray second = as_float32(matrix, 2, "the matrix")
    cdef size_t a_count = <size_t>first.shape[0], b_count = <size_t>second.shape[0], width = <size_t>first.shape[1]
    check_widths(width, <size_t>second.shape[1])
    cdef cnp.npy_intp[2] shape = [<cnp.npy_intp>a_count, min(wanted, <Py_ssize_t>b_count)]
    cdef tuple found = room_for_nearest(2, shape)
    cdef const float *x = <const float *>cnp.PyArray_DATA(first)
    cdef const float *y = <const float *>cnp.PyArray_DATA(second)
    cdef int64_t *out_positions = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>found[0])
    cdef float *out = <float *>cnp.PyArray_DATA(<cnp.ndarray>found[1])
    cdef int failed, largest = is_similarity(metric)
    with nogil:
        failed = lattice_nearest_of_all(
            &kernels, pool, metric, x, a_count, y, b_count, width, shape[1], largest, out_positions, out
        )
    if failed:
        raise MemoryError
    return found


cdef tuple room_for_nearest(int ndim, cnp.npy_intp *shape):
    """Arrays for positions and scores; the last dimension is how many rows are wanted."""
    if shape[ndim - 1] < 0:
        raise ValueError(f"cannot take {shape[ndim - 1]} rows")
    return cnp.PyArray_EMPTY(ndim, shape, cnp.NPY_INT64, 0), cnp.PyArray_EMPTY(ndim, shape, cnp.NPY_FLOAT32, 0)


cdef bint is_similarity(int metric) noexcept:
    return metric == LATTICE_COSINE or metric == LATTICE_DOT


def _normalize(source, target):
    """Write the normalized rows of ``source`` (n, dim) to ``target``.

    Both are float32 C arrays of one shape.
    """
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
        lattice_normalize_rows(&kernels, pool, x, y, count, width)


cdef int check_widths(size_t a_width, size_t b_width) except -1:
    if a_width != b_width:
        from lattice_embed.errors import DimensionMismatchError

        raise DimensionMismatchError(expected=a_width, actual=b_width)
    return 0


include "stored_rows.pxi"

select_isa()
