# _cpu.pyx includes this file. It packs weights into the panels that linears read, and gives the sizes of panels and of rows
# that are not floats.


def pack_panels(weight, Memory target, Py_ssize_t offset):
    """Write ``weight`` (n, k) as panels of 16 columns, [n / 16][k][16].

    ``weight`` is float32 or uint16. The panels begin at byte ``offset`` of ``target``.
    """
    cdef Py_ssize_t n = weight.shape[0], k = weight.shape[1], size = weight.dtype.itemsize
    cdef void *source = weight_data(weight, LATTICE_WEIGHT_FLOAT32 if size == 4 else LATTICE_WEIGHT_BFLOAT16, n * k, "weight")
    cdef Py_ssize_t nbytes = (n + LATTICE_PANEL - 1) // LATTICE_PANEL * LATTICE_PANEL * k * size
    if offset < 0 or offset % 4 or offset + nbytes > target.nbytes:
        raise ValueError(f"{nbytes} bytes at {offset} do not fit in {target.nbytes}")
    cdef void *panels = target.data + offset
    with nogil:
        lattice_pack_panels(source, n, k, size, panels)


def bfloat16_panel_bytes(Py_ssize_t k):
    """Return the bytes of a panel of bfloat16 weights in pairs, of depth ``k``."""
    return lattice_bfloat16_panel_bytes(k)


def bfloat16_row_floats(Py_ssize_t k):
    """Return the size in floats of a row of ``k`` activations rounded to bfloat16."""
    return lattice_bfloat16_row_floats(k)


def pack_bfloat16_panels(cnp.ndarray weight not None, Memory target, Py_ssize_t offset):
    """Write bfloat16 ``weight`` (n, k), as uint16, in the panels of bfloat16_linear.h.

    The panels begin at byte ``offset`` of ``target``.
    """
    cdef Py_ssize_t n = weight.shape[0], k = weight.shape[1]
    cdef const uint16_t *source = <const uint16_t *>weight_data(weight, LATTICE_WEIGHT_BFLOAT16, n * k, "weight")
    cdef Py_ssize_t nbytes = (n + LATTICE_PANEL - 1) // LATTICE_PANEL * lattice_bfloat16_panel_bytes(k)
    if offset < 0 or offset % 64 or offset + nbytes > target.nbytes:
        raise ValueError(f"{nbytes} bytes at {offset} do not fit in {target.nbytes}")
    cdef uint16_t *panels = <uint16_t *>(target.data + offset)
    with nogil:
        lattice_pack_bfloat16_panels(source, n, k, panels)


def int8_panel_bytes(Py_ssize_t k):
    """Return the bytes of a panel of int8 weights of depth ``k``."""
    return lattice_int8_panel_bytes(k)


def integer_row_floats(Py_ssize_t k):
    """Return the size in floats of a quantized row of ``k`` activations."""
    return lattice_integer_row_floats(k)


def pack_int8_panels(cnp.ndarray weight not None, scales, Memory target, Py_ssize_t offset):
    """Write int8 ``weight`` (n, k) and float32 ``scales`` (n,) as the panels of int8_linear.h.

    The panels begin at byte ``offset`` of ``target``.
    """
    cdef Py_ssize_t n = weight.shape[0], k = weight.shape[1]
    if cnp.PyArray_TYPE(weight) != cnp.NPY_INT8 or not cnp.PyArray_IS_C_CONTIGUOUS(weight):
        raise TypeError("weight must be a C-contiguous int8 array")
    if k > LATTICE_INT8_DEPTH:
        raise ValueError(f"sums over {k} products of int8 may leave int32: at most {LATTICE_INT8_DEPTH}")
    cdef Py_ssize_t nbytes = (n + LATTICE_PANEL - 1) // LATTICE_PANEL * lattice_int8_panel_bytes(k)
    if offset < 0 or offset % 64 or offset + nbytes > target.nbytes:
        raise ValueError(f"{nbytes} bytes at {offset} do not fit in {target.nbytes}")
    cdef const int8_t *source = <const int8_t *>cnp.PyArray_DATA(weight)
    cdef const float *factors = float32_data(scales, n, "scales")
    cdef char *panels = target.data + offset
    with nogil:
        lattice_pack_int8_panels(source, factors, n, k, panels)


def block_panel_bytes(str format, Py_ssize_t k):
    """Return the bytes of a panel of depth ``k`` in a block format."""
    return lattice_block_panel_bytes(BLOCK_FORMATS.index(format), k)


def block_row_floats(Py_ssize_t k):
    """Return the size in floats of a row of ``k`` activations quantized in blocks."""
    return lattice_block_row_floats(k)


def pack_blocks(str format, cnp.ndarray rows not None, Py_ssize_t k, Memory target, Py_ssize_t offset):
    """Write ``rows`` of ggml's blocks, uint8 (n, bytes a row), as the panels of block_format.h.

    The panels begin at byte ``offset`` of ``target``. Returns whether every scale is finite. Calls for different panels may
    run at once.
    """
    cdef int number = BLOCK_FORMATS.index(format)
    cdef lattice_block_layout layout = lattice_block_layout_of(number)
    cdef Py_ssize_t n = rows.shape[0], elements = 32 * layout.blocks
    if cnp.PyArray_TYPE(rows) != cnp.NPY_UINT8 or not cnp.PyArray_IS_C_CONTIGUOUS(rows) or rows.ndim != 2:
        raise TypeError("rows must be a C-contiguous uint8 matrix")
    if k % elements or rows.shape[1] != k // elements * layout.file_bytes:
        raise ValueError(f"rows of {rows.shape[1]} bytes do not hold {k} elements in {format}")
    cdef int64_t panel_bytes = lattice_block_panel_bytes(number, k), row_bytes = rows.shape[1]
    if offset < 0 or offset % 32 or offset + (n + LATTICE_PANEL - 1) // LATTICE_PANEL * panel_bytes > target.nbytes:
        raise ValueError(f"{n} rows at {offset} do not fit in {target.nbytes} bytes")
    cdef const uint8_t *source = <const uint8_t *>cnp.PyArray_DATA(rows)
    cdef uint8_t *panel = <uint8_t *>target.data + offset
    cdef int finite = 1
    cdef Py_ssize_t row
    with nogil:
        row = 0
        while row < n:
            finite &= lattice_pack_block_panel(number, source + row * row_bytes, min(n - row, LATTICE_PANEL), k, panel)
            panel += panel_bytes
            row += LATTICE_PANEL
    return bool(finite)


def touch_pages(cnp.ndarray array not None):
    """Read a byte of every page of a C-contiguous array.

    This brings an array that is mapped from a file into memory.
    """
    cdef Py_ssize_t nbytes = cnp.PyArray_NBYTES(array), position = 0
    cdef const volatile char *data = <const volatile char *>cnp.PyArray_DATA(array)
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise TypeError("array must be C-contiguous")
    with nogil:
        while position < nbytes:
            data[position]
            position += 4096
