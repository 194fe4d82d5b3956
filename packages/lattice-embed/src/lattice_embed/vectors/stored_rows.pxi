# Binding of stored rows (float32, halves, int8, int4, bits); part of _vectors.pyx.


cdef class StoredRows:
    """Rows as ``kernels/stored_rows.h`` reads them.

    Holds the arrays, which must not change meanwhile.

    Args:
        kind: ``FLOAT32`` ... ``BINARY``.
        width: components of a row.
        data: (n, bytes of a row as stored / item size), C-contiguous.
        steps, offsets, inverse_norms: float32 (n,); sums: int32 (n,); squares: float64 (n,). What the kind needs.
        column_steps, column_offsets: float32 (width,), for int8 rows with a common calibration.
        threshold: from which value on a float query's bit is set, for binary rows.
    """

    cdef lattice_rows rows
    cdef const float *column_steps
    cdef const float *column_offsets
    cdef float threshold
    cdef tuple kept

    def __init__(
        self,
        int kind,
        size_t width,
        cnp.ndarray data not None,
        *,
        steps=None,
        offsets=None,
        sums=None,
        inverse_norms=None,
        squares=None,
        column_steps=None,
        column_offsets=None,
        float threshold=0.0,
    ):
        cdef size_t row_bytes = width * 4
        cdef size_t count
        if kind == LATTICE_BFLOAT16 or kind == LATTICE_FLOAT16:
            row_bytes = width * 2
        elif kind == LATTICE_INT8:
            row_bytes = width
        elif kind == LATTICE_INT4:
            row_bytes = (width + 1) // 2
        elif kind == LATTICE_BINARY:
            row_bytes = (width + 7) // 8
        count = <size_t>data.shape[0]
        if data.ndim != 2 or not cnp.PyArray_ISCARRAY_RO(data) or <size_t>data.nbytes != count * row_bytes:
            raise ValueError(f"{data.dtype} of shape {(<object>data).shape} does not hold rows of {width} components")
        if width > LATTICE_MAX_DIMENSIONS and kind >= LATTICE_INT8:
            raise ValueError(f"{width} components: at most {LATTICE_MAX_DIMENSIONS} can be stored quantized")
        self.kept = (data, steps, offsets, sums, inverse_norms, squares, column_steps, column_offsets)
        self.rows.kind = kind
        self.rows.count = count
        self.rows.width = width
        self.rows.row_bytes = row_bytes
        self.rows.data = cnp.PyArray_DATA(data)
        self.rows.steps = <const float *>row_data(steps, cnp.NPY_FLOAT32, count)
        self.rows.offsets = <const float *>row_data(offsets, cnp.NPY_FLOAT32, count)
        self.rows.sums = <const int32_t *>row_data(sums, cnp.NPY_INT32, count)
        self.rows.inverse_norms = <const float *>row_data(inverse_norms, cnp.NPY_FLOAT32, count)
        self.rows.squares = <const double *>row_data(squares, cnp.NPY_FLOAT64, count)
        self.column_steps = <const float *>row_data(column_steps, cnp.NPY_FLOAT32, width)
        self.column_offsets = <const float *>row_data(column_offsets, cnp.NPY_FLOAT32, width)
        self.threshold = threshold
        if kind == LATTICE_INT8 or kind == LATTICE_INT4:
            if steps is None or inverse_norms is None:
                raise ValueError("integer rows need steps and inverse norms")
        if kind == LATTICE_INT4 and (offsets is None or sums is None):
            raise ValueError("int4 rows need offsets and sums")


    def __len__(self):
        return <Py_ssize_t>self.rows.count

    def row(self, Py_ssize_t index):
        """Return row ``index`` alone, in the same memory."""
        if not 0 <= index < <Py_ssize_t>self.rows.count:
            raise IndexError(f"row {index} of {self.rows.count}")
        cdef StoredRows one = StoredRows.__new__(StoredRows)
        one.rows = self.rows
        one_row(&one.rows, <size_t>index)
        one.column_steps = self.column_steps
        one.column_offsets = self.column_offsets
        one.threshold = self.threshold
        one.kept = self.kept
        return one


cdef const void *row_data(object array, int dtype, size_t count) except? NULL:
    if array is None:
        return NULL
    cdef cnp.ndarray values = array
    if (
        cnp.PyArray_NDIM(values) != 1
        or cnp.PyArray_TYPE(values) != dtype
        or not cnp.PyArray_ISCARRAY_RO(values)
        or <size_t>values.shape[0] != count
    ):
        raise ValueError(f"{values.dtype} of shape {(<object>values).shape} where {count} values belong")
    return cnp.PyArray_DATA(values)


cdef class StoredVector:
    """Base of ``stored_matrix.StoredVector``, by which the pair operations recognise one."""

    cdef readonly Py_ssize_t index

    def __init__(self, Py_ssize_t index):
        self.index = index


cdef class PreparedQueries:
    """Queries made ready for ``rows``; their memory."""

    cdef lattice_query *queries
    cdef char *room
    cdef size_t count
    cdef object kept

    def __cinit__(self, StoredRows rows, size_t count, kept):
        cdef size_t each = (lattice_query_bytes(rows.rows.kind, rows.rows.width) + 63) // 64 * 64
        self.queries = <lattice_query *>malloc((count + 1) * sizeof(lattice_query))
        self.room = <char *>malloc(count * each + 64) if rows.rows.kind >= LATTICE_INT8 else NULL
        self.count = count
        self.kept = kept
        if self.queries == NULL or (self.room == NULL and rows.rows.kind >= LATTICE_INT8):
            raise MemoryError

    def __dealloc__(self):
        free(self.queries)
        free(self.room)


cdef PreparedQueries prepare(StoredRows rows, int metric, object queries):
    """Queries for ``rows``: a float32 array (m, dim), or stored rows of the same kind."""
    if (metric == LATTICE_EUCLIDEAN or metric == LATTICE_SQUARED_EUCLIDEAN) and rows.rows.squares == NULL:
        if rows.rows.kind == LATTICE_INT8 or rows.rows.kind == LATTICE_INT4:
            raise ValueError("distances of integer rows need their squares")
    cdef PreparedQueries made
    cdef StoredRows stored
    cdef cnp.ndarray floats
    cdef const float *x
    cdef size_t i, each = (lattice_query_bytes(rows.rows.kind, rows.rows.width) + 63) // 64 * 64
    if isinstance(queries, StoredRows):
        stored = queries
        check_widths(stored.rows.width, rows.rows.width)
        if stored.rows.kind != rows.rows.kind or stored.rows.kind < LATTICE_INT8 or stored.column_steps != NULL:
            raise ValueError("stored queries must be of the rows' kind: int8 without a calibration, int4 or binary")
        if rows.column_steps != NULL:
            raise ValueError("rows with a calibration take float queries")
        made = PreparedQueries(rows, stored.rows.count, stored)
        for i in range(made.count):
            lattice_prepare_stored(metric, &stored.rows, i, made.room + i * each, &made.queries[i])
        return made
    floats = as_float32(queries, 2, "the queries")
    check_widths(<size_t>floats.shape[1], rows.rows.width)
    x = <const float *>cnp.PyArray_DATA(floats)
    made = PreparedQueries(rows, <size_t>floats.shape[0], floats)
    if rows.rows.kind >= LATTICE_INT8:
        check_finite(floats, "query")
    for i in range(made.count):
        lattice_prepare_floats(
            rows.rows.kind, metric, x + i * rows.rows.width, rows.rows.width, rows.column_steps, rows.column_offsets,
            rows.threshold, made.room + i * each if made.room != NULL else NULL, &made.queries[i]
        )
    return made


cdef int check_finite(cnp.ndarray rows, str name) except -1:
    cdef const float *x = <const float *>cnp.PyArray_DATA(rows)
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    cdef int64_t found
    with nogil:
        found = kernels.storing.find_not_finite(x, count, width)
    if found >= 0:
        from lattice_embed.errors import InvalidInputError

        raise InvalidInputError(f"{name} {found} holds NaN or infinity, which has no place on a scale of integers")
    return 0


def _check_finite(vectors):
    """Refuse float32 rows with NaN or infinity in them, naming the row."""
    check_finite(as_float32(vectors, 2, "the vectors"), "row")


def _scores_of_rows(int metric, StoredRows rows not None, queries):
    """Score queries (m, dim) against all rows; returns float32 (m, n).

    Queries are float32 or stored rows of the same kind.
    """
    cdef PreparedQueries made = prepare(rows, metric, queries)
    cdef cnp.ndarray scores = np.empty((made.count, rows.rows.count), np.float32)
    cdef float *out = <float *>cnp.PyArray_DATA(scores)
    with nogil:
        lattice_scores_of_rows(&kernels, pool, &rows.rows, made.queries, made.count, out)
    return scores


def _nearest_rows(int metric, StoredRows rows not None, queries, Py_ssize_t wanted):
    """Return positions (int64) and scores (float32) of each query's best rows, best first.

    Both have the shape (m, min(wanted, n)).
    """
    cdef PreparedQueries made = prepare(rows, metric, queries)
    cdef cnp.npy_intp[2] shape = [<cnp.npy_intp>made.count, min(wanted, <Py_ssize_t>rows.rows.count)]
    return nearest_rows(metric, rows, made, 2, shape)


def _nearest_to_one(int metric, StoredRows rows not None, query, Py_ssize_t wanted, type kind not None):
    """Return a ``kind`` of tuple with positions and scores of one query's best rows.

    Both have the shape (min(wanted, n),). Everything that is looked at here is out of cache after the search before.
    """
    cdef PreparedQueries made = prepare(rows, metric, query)
    cdef cnp.npy_intp[1] shape = [min(wanted, <Py_ssize_t>rows.rows.count)]
    return tuple.__new__(kind, nearest_rows(metric, rows, made, 1, shape))


cdef tuple nearest_rows(int metric, StoredRows rows, PreparedQueries made, int ndim, cnp.npy_intp *shape):
    cdef tuple found = room_for_nearest(ndim, shape)
    cdef int64_t *out_positions = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>found[0])
    cdef float *out = <float *>cnp.PyArray_DATA(<cnp.ndarray>found[1])
    cdef int64_t wanted = shape[ndim - 1]
    cdef int failed, largest = is_similarity(metric)
    with nogil:
        failed = lattice_nearest_rows(
            &kernels, pool, &rows.rows, made.queries, made.count, wanted, largest, out_positions, out
        )
    if failed:
        raise MemoryError
    return found


cdef object score_stored_pair(int metric, object a, object b):
    """Score a pair of which at least one is stored.

    It is scored as a row is: bit-identical to one-vs-many.
    """
    cdef StoredVector second = b if isinstance(b, StoredVector) else a
    if second is b and isinstance(a, StoredVector):
        queries = a.as_query(second, metric)
    else:
        queries = as_float32(a if second is b else b, 1, "the vector").reshape(1, -1)
    cdef StoredRows rows = second.rows_for(metric)
    cdef PreparedQueries made = prepare(rows, metric, queries if isinstance(queries, StoredRows) else np.atleast_2d(queries))
    cdef lattice_rows row = rows.rows
    cdef float score
    one_row(&row, <size_t>second.index)
    lattice_scores_of_rows(&kernels, pool, &row, made.queries, 1, &score)
    return score


cdef void one_row(lattice_rows *rows, size_t index) noexcept:
    """Cut rows down to one."""
    rows.data = <const char *>rows.data + index * rows.row_bytes
    rows.count = 1
    if rows.steps != NULL:
        rows.steps += index
    if rows.offsets != NULL:
        rows.offsets += index
    if rows.sums != NULL:
        rows.sums += index
    if rows.inverse_norms != NULL:
        rows.inverse_norms += index
    if rows.squares != NULL:
        rows.squares += index


cdef inline const void *bytes_in_place(object vector, int dtype, size_t *width) noexcept:
    """The data of a C-contiguous 1-D array of one-byte integers, or NULL for anything else."""
    if not is_plain(vector):
        return NULL
    if cnp.PyArray_NDIM(vector) != 1 or cnp.PyArray_TYPE(vector) != dtype or not cnp.PyArray_IS_C_CONTIGUOUS(vector):
        return NULL
    width[0] = <size_t>cnp.PyArray_DIM(vector, 0)
    return cnp.PyArray_DATA(vector)


cdef object plain_bytes(str kind, object vector):
    """Return the plain array of an ndarray subclass that holds only its data; refuse others."""
    vector = without_mask(vector, "a vector")
    if not isinstance(vector, np.ndarray) or vector.dtype != kind or vector.ndim != 1:
        what = f"{vector.dtype} of shape {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise InvalidInputError(f"expected C-contiguous {kind} vectors, not {what}")
    if not cnp.PyArray_IS_C_CONTIGUOUS(vector):
        raise InvalidInputError(f"expected C-contiguous {kind} vectors: copy the strided one with np.ascontiguousarray")
    return np.asarray(vector)


def dot_product_i8_raw(a, b, /):
    """Return the dot product of two int8 arrays of shape (dim,), an exact integer.

    Raises:
        InvalidInputError: an argument is no C-contiguous int8 vector, or has more than 65,536 components.
        DimensionMismatchError: their lengths differ.
    """
    cdef size_t a_width = 0, b_width = 0
    cdef const int8_t *x = <const int8_t *>bytes_in_place(a, cnp.NPY_INT8, &a_width)
    cdef const int8_t *y = <const int8_t *>bytes_in_place(b, cnp.NPY_INT8, &b_width)
    if x == NULL or y == NULL:
        a, b = plain_bytes("int8", a), plain_bytes("int8", b)
        x = <const int8_t *>bytes_in_place(a, cnp.NPY_INT8, &a_width)
        y = <const int8_t *>bytes_in_place(b, cnp.NPY_INT8, &b_width)
    if a_width != b_width:
        check_widths(a_width, b_width)
    if a_width > LATTICE_MAX_DIMENSIONS:
        refuse_width(a_width)
    return kernels.integers.dot_int8(x, y, a_width)


cdef int refuse_width(size_t width) except -1:
    from lattice_embed.errors import InvalidInputError

    raise InvalidInputError(f"vectors of {width:,} components: at most {LATTICE_MAX_DIMENSIONS:,} can be quantized")


cdef double raw_cosine_int8(object a, object b) except? -2:
    cdef size_t a_width = 0, b_width = 0
    cdef const int8_t *x = <const int8_t *>bytes_in_place(a, cnp.NPY_INT8, &a_width)
    cdef const int8_t *y = <const int8_t *>bytes_in_place(b, cnp.NPY_INT8, &b_width)
    cdef double aa, bb
    if x == NULL or y == NULL:
        a, b = plain_bytes("int8", a), plain_bytes("int8", b)
        x = <const int8_t *>bytes_in_place(a, cnp.NPY_INT8, &a_width)
        y = <const int8_t *>bytes_in_place(b, cnp.NPY_INT8, &b_width)
    if a_width != b_width:
        check_widths(a_width, b_width)
    if a_width > LATTICE_MAX_DIMENSIONS:
        refuse_width(a_width)
    aa = kernels.integers.dot_int8(x, x, a_width)
    bb = kernels.integers.dot_int8(y, y, a_width)
    if aa == 0 or bb == 0:
        return 0.0
    return kernels.integers.dot_int8(x, y, a_width) / sqrt(aa * bb)


def cosine_similarity_i8(a, b, /):
    """Return the cosine of two int8 arrays of shape (dim,), or of two ``QuantizedVector``.

    Scales do not change an angle, so arrays quantized with any scale may be compared. For two ``QuantizedVector`` it is the
    dot product divided by the lengths of the vectors that they were made from, as :func:`cosine_similarity` gives it.

    Raises:
        InvalidInputError: an argument is neither.
        DimensionMismatchError: their lengths differ.
    """
    if isinstance(a, StoredVector) and isinstance(b, StoredVector):
        return score_stored_pair(LATTICE_COSINE, a, b)
    return raw_cosine_int8(a, b)


def hamming_distance_binary(a, b, /):
    """Return the number of differing bits of two uint8 arrays (bytes,) or ``BinaryVector``.

    Raises:
        InvalidInputError: an argument is neither.
        DimensionMismatchError: their lengths differ.
    """
    cdef size_t a_width = 0, b_width = 0
    cdef const uint8_t *x = <const uint8_t *>bytes_in_place(a, cnp.NPY_UINT8, &a_width)
    cdef const uint8_t *y = <const uint8_t *>bytes_in_place(b, cnp.NPY_UINT8, &b_width)
    if x == NULL or y == NULL:
        if isinstance(a, StoredVector) and isinstance(b, StoredVector):
            return int(score_stored_pair(LATTICE_HAMMING, a, b))
        a, b = plain_bytes("uint8", a), plain_bytes("uint8", b)
        x = <const uint8_t *>bytes_in_place(a, cnp.NPY_UINT8, &a_width)
        y = <const uint8_t *>bytes_in_place(b, cnp.NPY_UINT8, &b_width)
    if a_width != b_width:
        check_widths(8 * a_width, 8 * b_width)
    return kernels.bits.hamming(x, y, a_width)


cdef cnp.ndarray rows_in_lines(size_t count, size_t bytes, dtype):
    """Room for rows of so many bytes, aligned to cache lines.

    A row of whole lines touches no more lines than its own.
    """
    cdef cnp.ndarray room = np.empty(count * bytes + 63, np.uint8)
    cdef size_t start = -<size_t>cnp.PyArray_DATA(room) % 64
    return room[start : start + count * bytes].view(dtype).reshape(count, bytes)


def _to_int8(vectors):
    """Return int8 (n, dim) and scales, float32 (n,), of float32 rows that must be finite."""
    cdef cnp.ndarray rows = as_float32(vectors, 2, "the vectors")
    check_finite(rows, "row")
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    cdef cnp.ndarray data = rows_in_lines(count, width, np.int8)
    cdef cnp.ndarray scales = np.empty(count, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(rows)
    cdef int8_t *out = <int8_t *>cnp.PyArray_DATA(data)
    cdef float *out_scales = <float *>cnp.PyArray_DATA(scales)
    with nogil:
        kernels.storing.to_int8(x, count, width, out, out_scales)
    return data, scales


def _to_int4(vectors):
    """Return uint8 (n, (dim + 1) // 2), scales and largest magnitudes of float32 rows.

    Scales and magnitudes are float32 (n,); the rows are finite.
    """
    cdef cnp.ndarray rows = as_float32(vectors, 2, "the vectors")
    check_finite(rows, "row")
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    cdef cnp.ndarray data = rows_in_lines(count, (width + 1) // 2, np.uint8)
    cdef cnp.ndarray scales = np.empty(count, np.float32)
    cdef cnp.ndarray magnitudes = np.empty(count, np.float32)
    cdef const float *x = <const float *>cnp.PyArray_DATA(rows)
    cdef uint8_t *out = <uint8_t *>cnp.PyArray_DATA(data)
    cdef float *out_scales = <float *>cnp.PyArray_DATA(scales)
    cdef float *out_magnitudes = <float *>cnp.PyArray_DATA(magnitudes)
    with nogil:
        kernels.storing.to_int4(x, count, width, out, out_scales, out_magnitudes)
    return data, scales, magnitudes


def _to_binary(vectors, float threshold):
    """Return uint8 (n, (dim + 7) // 8) of finite float32 rows.

    A bit is value >= threshold; the first component is the highest bit.
    """
    cdef cnp.ndarray rows = as_float32(vectors, 2, "the vectors")
    check_finite(rows, "row")
    cdef size_t count = <size_t>rows.shape[0], width = <size_t>rows.shape[1]
    cdef cnp.ndarray data = rows_in_lines(count, (width + 7) // 8, np.uint8)
    cdef const float *x = <const float *>cnp.PyArray_DATA(rows)
    cdef uint8_t *out = <uint8_t *>cnp.PyArray_DATA(data)
    with nogil:
        kernels.storing.to_binary(x, count, width, threshold, out)
    return data
