"""The door into the C kernels: argument checks and memory, then one call without the GIL."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset
cimport numpy as cnp

import numpy as np

from lattice_inference.errors import InvalidInputError

cnp.import_array()


cdef extern from "sys/mman.h" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int descriptor, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void *MAP_FAILED

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MADV_HUGEPAGE
    #define MADV_HUGEPAGE (-1) /* not Linux: the advice is refused, which is harmless */
    #endif
    """
    int MADV_HUGEPAGE

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #define LATTICE_TRIM_HEAP() ((void)malloc_trim(0))
    #else
    #define LATTICE_TRIM_HEAP() ((void)0) /* other C libraries give free memory back by themselves */
    #endif
    #ifdef LATTICE_EMULATE_AVX512
    #define EMULATED 1
    #else
    #define EMULATED 0
    #endif
    """
    void trim_heap_now "LATTICE_TRIM_HEAP"() nogil
    int EMULATED

REFUSED = InvalidInputError
include "lattice/door.pxi"

cdef extern from "lattice/cpu.h":
    uint32_t lattice_cpu_features()

cdef extern from "tile_table.h" nogil:
    int LATTICE_TILE_COUNT
    ctypedef struct lattice_tile_sizes:
        int64_t step_tokens
    ctypedef struct lattice_tile_row:
        const char *name
        int64_t least, most

cdef extern from "step.h" nogil:
    int LATTICE_MAX_SLOTS
    int LATTICE_MAX_HEAD_DIM
    int LATTICE_PANEL
    int LATTICE_KERNEL_COUNT, LATTICE_KERNEL_LINEAR, LATTICE_KERNEL_INT8_LINEAR, LATTICE_KERNEL_BLOCK_LINEAR
    int LATTICE_KERNEL_DEQUANTIZED_LINEAR, LATTICE_KERNEL_QUANTIZE_ROWS, LATTICE_KERNEL_QUANTIZE_BLOCKS
    int LATTICE_KERNEL_ROUND_ROWS, LATTICE_KERNEL_BFLOAT16_LINEAR, LATTICE_KERNEL_TILE_ATTENTION
    int LATTICE_KERNEL_PAGED_ATTENTION, LATTICE_KERNEL_QUANTIZE_BLOCK_PAIRS, LATTICE_KERNEL_CAUSAL_ATTENTION
    int LATTICE_ACTIVATION_NONE
    ctypedef struct lattice_view:
        int32_t slot
        int32_t stride
        int64_t column
    ctypedef struct lattice_op:
        int32_t kernel, rows, pairs, activation, mode, heads, kv_heads, head_dim, layer, window, packed
        float scale, epsilon
        lattice_view input[3]
        lattice_view residual
        lattice_view output
        lattice_view quantized
        const float *range
        lattice_view rounded
        int32_t weight_type
        const void *weight
        const float *bias
        int64_t k, n
    ctypedef struct lattice_kv_layer:
        char *keys
        char *values
        char *key_scales
        char *value_scales
        int64_t page_stride
        int32_t type, kv_heads, head_dim, width
    ctypedef struct lattice_step:
        int64_t tokens, sequences, max_seqlen, logit_count
        const int32_t *ids[3]
        const int32_t *cu_seqlens
        const int32_t *cu_query_blocks
        const int32_t *logit_rows
        const lattice_tile_sizes *sizes
        const lattice_kv_layer *kv
        int64_t page_tokens
        const int32_t *context
        const int32_t *pages
        const int32_t *cu_pages
        int64_t *attention_units
        float *partials
        float *slots[512]
        char *scratch
        int64_t scratch_bytes
        int threads
        int dot
        int tiles
        int bfloat16
    ctypedef struct lattice_kernel_table:
        void (*elementwise)(int function, const float *x, float *y, int64_t count)
        uint32_t dot_feature
        uint32_t tile_features
        uint32_t bfloat16_dot_feature, bfloat16_tile_feature
    void lattice_count_query_blocks(lattice_step *step, int32_t *blocks)
    int64_t lattice_scratch_bytes(const lattice_op *op, int64_t max_seqlen, int tiles, const lattice_tile_sizes *sizes)
    int64_t lattice_partials(const lattice_op *op, int64_t sequences, const int32_t *cu_seqlens, const int32_t *context)

cdef extern from "int8_linear.h" nogil:
    int64_t LATTICE_INT8_DEPTH
    int64_t lattice_int8_panel_bytes(int64_t k)
    int64_t lattice_integer_row_floats(int64_t k)

cdef extern from "bfloat16_linear.h" nogil:
    int64_t lattice_bfloat16_panel_bytes(int64_t k)
    int64_t lattice_bfloat16_row_floats(int64_t k)

cdef extern from "block_pack.h" nogil:
    ctypedef struct lattice_block_layout:
        int blocks
        int file_bytes
    lattice_block_layout lattice_block_layout_of(int format)
    int64_t lattice_block_panel_bytes(int format, int64_t k)
    int64_t lattice_block_row_floats(int64_t k)
    int lattice_pack_block_panel(int format, const uint8_t *blocks, int64_t columns, int64_t k, uint8_t *panel)

cdef extern from "run_step.h" nogil:
    const lattice_kernel_table *lattice_kernels(int isa)
    void lattice_tile_sizes_of(int isa, lattice_tile_sizes *sizes)
    const lattice_tile_row *lattice_tile_row_of(int index)
    void lattice_step_run(const lattice_op *ops, int64_t count, const lattice_step *step,
                          const lattice_kernel_table *table, lattice_pool *)
    void lattice_pack_panels(const void *weight, int64_t n, int64_t k, int64_t element_bytes, void *panels)
    void lattice_pack_bfloat16_panels(const uint16_t *weight, int64_t n, int64_t k, uint16_t *panels)
    void lattice_pack_int8_panels(const int8_t *weight, const float *scales, int64_t n, int64_t k, char *panels)


# The numbers of kernels/step.h.
QUANTIZE_ROWS = LATTICE_KERNEL_QUANTIZE_ROWS
INT8_LINEAR = LATTICE_KERNEL_INT8_LINEAR
QUANTIZE_BLOCKS = LATTICE_KERNEL_QUANTIZE_BLOCKS
BLOCK_LINEAR = LATTICE_KERNEL_BLOCK_LINEAR
DEQUANTIZED_LINEAR = LATTICE_KERNEL_DEQUANTIZED_LINEAR
ROUND_ROWS = LATTICE_KERNEL_ROUND_ROWS
BFLOAT16_LINEAR = LATTICE_KERNEL_BFLOAT16_LINEAR
TILE_ATTENTION = LATTICE_KERNEL_TILE_ATTENTION
QUANTIZE_BLOCK_PAIRS = LATTICE_KERNEL_QUANTIZE_BLOCK_PAIRS
CAUSAL_ATTENTION = LATTICE_KERNEL_CAUSAL_ATTENTION

LINEARS = (
    LATTICE_KERNEL_LINEAR, LATTICE_KERNEL_INT8_LINEAR, LATTICE_KERNEL_BLOCK_LINEAR, LATTICE_KERNEL_DEQUANTIZED_LINEAR,
    LATTICE_KERNEL_BFLOAT16_LINEAR
)

# A build for tests has these instructions written out in others, whatever the CPU.
cdef uint32_t PRODUCT_FEATURES = 0xffffffff if EMULATED else lattice_cpu_features()

PANEL = LATTICE_PANEL
HUGE_PAGE = 2 << 20  # bytes
MAX_SLOTS = LATTICE_MAX_SLOTS
MAX_HEAD_DIM = LATTICE_MAX_HEAD_DIM
INT8_DEPTH = LATTICE_INT8_DEPTH


cdef bint has_kernels(int isa):
    return lattice_kernels(isa) != NULL


def select_isa(requested=None):
    """Return the name of the instruction set to use: ``requested``, else ``LATTICE_ISA``, else the best one.

    Raises ValueError for an unknown name and for a level that this CPU or this build cannot run.
    """
    return lattice_isa_name(level_of(requested)).decode()


def cpu_features():
    """Return the names of the instruction set extensions that kernels can make use of here."""
    names = [
        "avx2", "avx512", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_vpopcntdq", "neon", "dotprod", "i8mm", "bf16",
        "amx_int8", "amx_bf16",
    ]
    cdef uint32_t features = lattice_cpu_features()
    return [name for bit, name in enumerate(names) if features >> bit & 1]


def has_dot_products(str isa):
    """Whether this CPU has the dot product instruction that the integer kernels of a level have a body for."""
    return bool(table_of(isa).dot_feature & PRODUCT_FEATURES)


def has_tiles(str isa):
    """Whether this CPU and system have the matrix tiles (AMX) that kernels of a level have bodies for."""
    cdef uint32_t wanted = table_of(isa).tile_features
    return wanted != 0 and wanted & PRODUCT_FEATURES == wanted


# What multiplies rows of bfloat16: the numbers of kernels/step.h.
BFLOAT16_PRODUCTS = ("widened", "dot", "tiles")


def bfloat16_products(str isa):
    """What a level can multiply rows of bfloat16 by on this CPU, slowest first: the names of BFLOAT16_PRODUCTS."""
    cdef const lattice_kernel_table *table = table_of(isa)
    cdef uint32_t features = lattice_cpu_features()
    return [
        name
        for name, there in zip(
            BFLOAT16_PRODUCTS,
            (True, table.bfloat16_dot_feature & features != 0, table.bfloat16_tile_feature & features != 0),
        )
        if there
    ]


# Least and most of each size that kernels cut work by: kernels/tile_table.h, which says what they are.
TILE_BOUNDS = {
    lattice_tile_row_of(i).name.decode(): (lattice_tile_row_of(i).least, lattice_tile_row_of(i).most)
    for i in range(LATTICE_TILE_COUNT)
}


def tile_sizes(str isa):
    """Return the sizes of kernels/tile_table.h for an instruction set, by name."""
    cdef lattice_tile_sizes sizes
    lattice_tile_sizes_of(level_of(isa), &sizes)
    return dict(zip(TILE_BOUNDS, [(<int64_t *>&sizes)[i] for i in range(LATTICE_TILE_COUNT)]))


def trim_heap():
    """Make the C library give memory that is free back to the operating system."""
    with nogil:
        trim_heap_now()


cdef const lattice_kernel_table *table_of(str isa) except NULL:
    return lattice_kernels(level_of(isa))


cdef float *float32_data(object array, Py_ssize_t size, str name) except NULL:
    """The data of a C-contiguous float32 array with at least ``size`` elements."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous float32 array")
    if array.size < size:
        raise ValueError(f"{name} has {array.size} elements, {size} are needed")
    return <float *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef const int32_t *int32_data(cnp.ndarray array, Py_ssize_t size, str name) except NULL:
    if cnp.PyArray_TYPE(array) != cnp.NPY_INT32 or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise TypeError(f"{name} must be a C-contiguous int32 array")
    if cnp.PyArray_SIZE(array) != size:
        raise ValueError(f"{name} has {array.size} entries, {size} are needed")
    return <const int32_t *>cnp.PyArray_DATA(array)


cdef int64_t round_up(int64_t nbytes) noexcept:
    """The next multiple of a cache line."""
    return (nbytes + 63) // 64 * 64


cdef class Memory:
    """Zeroed memory from the operating system, aligned to a page, given back when the object goes.

    ``huge_pages`` asks for 2 MiB pages: weights are streamed, and fewer translations make that faster.
    Supports the buffer protocol (bytes, writable).
    """

    cdef char *mapping
    cdef size_t mapped
    cdef char *data
    cdef readonly Py_ssize_t nbytes

    def __cinit__(self, Py_ssize_t nbytes, bint huge_pages=False):
        cdef size_t page = HUGE_PAGE if huge_pages else 4096
        cdef size_t address
        self.mapping = NULL
        self.nbytes = nbytes
        self.mapped = (<size_t>max(nbytes, 1) + page - 1) // page * page + (page if huge_pages else 0)
        cdef void *mapping = mmap(NULL, self.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if mapping == MAP_FAILED:
            raise MemoryError(f"cannot get {nbytes} bytes of memory")
        self.mapping = <char *>mapping
        address = (<size_t>mapping + page - 1) // page * page
        self.data = <char *>address
        if huge_pages:
            madvise(self.data, self.mapped - page, MADV_HUGEPAGE)

    def __dealloc__(self):
        if self.mapping != NULL:
            munmap(self.mapping, self.mapped)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 0, flags)

    def __len__(self):
        return self.nbytes


# The numbers of kernels/step.h; bfloat16 and float16 come as the uint16 of their bits.
BLOCK_FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
WEIGHT_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "bfloat16_pairs": 4}
WEIGHT_TYPES |= {name: 16 + number for number, name in enumerate(BLOCK_FORMATS)}


cdef void *weight_data(object array, int weight_type, Py_ssize_t size, str name) except NULL:
    """The data of a C-contiguous array of at least ``size`` elements of a weight type."""
    if weight_type == 0:
        return float32_data(array, size, name)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint16 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous uint16 array")
    if array.size < size:
        raise ValueError(f"{name} has {array.size} elements, {size} are needed")
    return cnp.PyArray_DATA(<cnp.ndarray>array)


include "panels.pxi"


def elementwise(str function, x, *, str isa):
    """Apply ``exp``, ``erf``, ``tanh`` or ``log`` of the kernels to a float32 array. For tests of their accuracy."""
    cdef int index = ["exp", "erf", "tanh", "log"].index(function)
    cdef const lattice_kernel_table *table = table_of(isa)
    result = np.empty_like(x)
    table.elementwise(index, float32_data(x, x.size, "x"), float32_data(result, x.size, "result"), x.size)
    return result


cdef lattice_view view_of(object operand):
    """(slot, stride, column), or None for no operand."""
    cdef lattice_view view
    memset(&view, 0, sizeof(view))
    view.slot = -1
    if operand is not None:
        view.slot, view.stride, view.column = operand
    return view


include "kv_pages.pxi"


cdef class Plan:
    """The ops of a compiled program as C structs. Immutable once run; safe to run from several threads at once.

    ``dot`` says whether integer kernels use the CPU's dot product instruction, ``tiles`` whether kernels use its matrix
    tiles; by default if it has them, and tiles only beside dot products. ``bfloat16`` says
    what multiplies rows of bfloat16, one of :func:`bfloat16_products`. ``sizes`` are those of kernels/tile_table.h that
    shall not be the instruction set's; they change no bit.
    """

    cdef lattice_op *ops
    cdef Py_ssize_t count
    cdef const lattice_kernel_table *table
    cdef list owners
    cdef list tables
    cdef bint needs_pages
    cdef readonly str isa
    cdef readonly bint dot, tiles
    cdef int bfloat16
    cdef lattice_tile_sizes sizes

    def __cinit__(self, str isa, dot=None, tiles=None, str bfloat16="widened", sizes=None):
        self.ops = NULL
        self.count = 0
        self.isa = isa
        self.table = table_of(isa)
        self.dot = has_dot_products(isa) if dot is None else dot
        self.tiles = self.dot and has_tiles(isa) if tiles is None else tiles
        if bfloat16 not in bfloat16_products(isa):
            raise ValueError(f"{isa} has no {bfloat16!r} of bfloat16 here, it has: {', '.join(bfloat16_products(isa))}")
        self.bfloat16 = BFLOAT16_PRODUCTS.index(bfloat16)
        lattice_tile_sizes_of(level_of(isa), &self.sizes)
        names = list(TILE_BOUNDS)
        for name, size in (sizes or {}).items():
            if name not in TILE_BOUNDS:
                raise ValueError(f"there is no size {name!r}; there are {', '.join(names)}")
            least, most = TILE_BOUNDS[name]
            if not least <= size <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {size}")
            (<int64_t *>&self.sizes)[names.index(name)] = size
        self.owners = []
        self.tables = []

    def __dealloc__(self):
        free(self.ops)

    def __len__(self):
        return self.count

    @property
    def step_tokens(self):
        """Tokens that should go through the program at once."""
        return self.sizes.step_tokens

    def append(
        self, int kernel, *, int rows, inputs, output, Py_ssize_t k, Py_ssize_t n, residual=None, weight=None, bias=None,
        int activation=0, int mode=0, int heads=0, int kv_heads=0, int head_dim=0, float scale=1.0, float epsilon=0.0,
        int layer=0, int window=0, bint packed=False, str weight_type="float32", quantized=None, bounds=None,
        rounded=None, bint pairs=False,
    ):
        """Add an op. Operands are (slot, stride, column); ``weight`` is an array or (Memory, byte offset) of panels;
        ``bounds`` holds low and high, float32, that rows are quantized within; with ``pairs`` each row is two.
        """
        if not 0 <= kernel < LATTICE_KERNEL_COUNT:
            raise ValueError(f"there is no kernel {kernel}")
        for operand in (*inputs, output, residual, quantized, rounded):
            if operand is not None and not 0 <= operand[0] < LATTICE_MAX_SLOTS:
                raise ValueError(f"slot {operand[0]} is not one of the {LATTICE_MAX_SLOTS} slots of a step")
        if kernel in LINEARS and activation != LATTICE_ACTIVATION_NONE and residual is not None:
            raise ValueError("a linear takes an activation or a residual: which comes first is not said by an op with both")
        cdef lattice_op *grown = <lattice_op *>realloc(self.ops, (self.count + 1) * sizeof(lattice_op))
        if grown == NULL:
            raise MemoryError
        self.ops = grown
        cdef lattice_op *op = &self.ops[self.count]
        memset(op, 0, sizeof(lattice_op))
        op.kernel, op.rows, op.k, op.n, op.activation, op.mode = kernel, rows, k, n, activation, mode
        op.heads, op.kv_heads, op.head_dim, op.scale, op.epsilon = heads, kv_heads, head_dim, scale, epsilon
        op.layer, op.window, op.packed, op.pairs = layer, window, packed, pairs
        for i in range(3):
            op.input[i] = view_of(inputs[i] if i < len(inputs) else None)
        op.weight_type = WEIGHT_TYPES[weight_type]
        self.needs_pages = self.needs_pages or kernel == LATTICE_KERNEL_PAGED_ATTENTION
        op.residual = view_of(residual)
        op.quantized = view_of(quantized)
        op.rounded = view_of(rounded)
        op.output = view_of(output)
        cdef Memory memory
        if isinstance(weight, tuple):
            memory, offset = weight
            op.weight = memory.data + <Py_ssize_t>offset
        elif weight is not None:
            op.weight = weight_data(weight, op.weight_type, weight.size, "weight")
        if bias is not None:
            op.bias = float32_data(bias, n, "bias")
        if bounds is not None:
            op.range = float32_data(bounds, 2, "bounds")
        self.owners.append((weight, bias, bounds))
        self.count += 1

    def check_ids(self, int which, Py_ssize_t table_rows):
        """Have every run refuse ids of input ``which`` (0 token, 1 token type, 2 position) outside the table."""
        self.tables.append((which, table_rows))

    def scratch_bytes(self, Py_ssize_t max_seqlen):
        """Return the bytes of scratch that one thread needs for sequences of up to ``max_seqlen`` tokens."""
        cdef int64_t most = 0
        for i in range(self.count):
            most = max(most, lattice_scratch_bytes(&self.ops[i], max_seqlen, self.tiles, &self.sizes))
        return most

    def bookkeeping_bytes(self, cu_seqlens, context=None):
        """Return the bytes that a run needs to cut its work into tasks.

        They hold the number of query blocks before each sequence and, where ``context`` says how many tokens the pages of
        each have already, the number of parts before each and what the parts of a sequence give until they are merged.
        """
        cdef int64_t most = 0, sequences = cu_seqlens.size - 1
        cdef const int32_t *bounds = int32_data(cu_seqlens, sequences + 1, "cu_seqlens")
        cdef const int32_t *lengths
        if context is None:
            return round_up(4 * (sequences + 1))
        lengths = int32_data(context, sequences, "context")
        for i in range(self.count):
            if self.ops[i].kernel == LATTICE_KERNEL_PAGED_ATTENTION:
                most = max(most, lattice_partials(&self.ops[i], sequences, bounds, lengths))
        return round_up(4 * (sequences + 1)) + round_up(16 * (sequences + 1)) + 4 * most

    def run(
        self, cnp.ndarray token_ids not None, cnp.ndarray token_type_ids not None, cnp.ndarray positions not None,
        cnp.ndarray cu_seqlens not None, Py_ssize_t max_seqlen,
        Memory arena not None, slot_offsets, Py_ssize_t scratch_offset, Py_ssize_t scratch_bytes, int threads,
        Py_ssize_t bookkeeping_offset,
        cnp.ndarray logit_rows=None, KvPages kv=None, cnp.ndarray context=None, cnp.ndarray pages=None,
        cnp.ndarray cu_pages=None, Py_ssize_t first=0, end=None,
    ):
        """Run ops ``first`` to ``end``, by default all, on a batch. Returns (which, row) of the first id outside its table,
        else None. A run in several calls is given the same arena in each.

        ``arena`` holds the slots at ``slot_offsets``, at ``scratch_offset`` ``threads`` stretches of scratch, and at
        ``bookkeeping_offset``, a multiple of 64, ``bookkeeping_bytes``. A program that keeps keys and values is given their
        pages ``kv``, the tokens of each sequence in them before, and the numbers of its pages,
        ``pages[cu_pages[b]:cu_pages[b + 1]]``.
        """
        cdef lattice_step step
        cdef Py_ssize_t tokens = token_ids.size, i, count = (self.count if end is None else <Py_ssize_t>end) - first
        cdef int64_t limit
        cdef int which
        if not 0 <= first <= first + count <= self.count:
            raise ValueError(f"ops {first} to {first + count} are not of the {self.count} ops")
        memset(&step, 0, sizeof(step))
        step.tokens = tokens
        step.sequences = cu_seqlens.size - 1
        step.max_seqlen = max_seqlen
        step.ids[0] = int32_data(token_ids, tokens, "token_ids")
        step.ids[1] = int32_data(token_type_ids, tokens, "token_type_ids")
        step.ids[2] = int32_data(positions, tokens, "positions")
        step.cu_seqlens = int32_data(cu_seqlens, step.sequences + 1, "cu_seqlens")
        cdef char *bookkeeping = arena.data + bookkeeping_offset
        if bookkeeping_offset % 64 or bookkeeping_offset + self.bookkeeping_bytes(cu_seqlens, context) > arena.nbytes:
            raise ValueError("the arena is too small to cut this step into tasks")
        if logit_rows is not None:
            step.logit_count = logit_rows.size
            step.logit_rows = int32_data(logit_rows, step.logit_count, "logit_rows")
            for i in range(step.logit_count):
                if not 0 <= step.logit_rows[i] < tokens:
                    raise ValueError(f"logit row {step.logit_rows[i]} is not one of {tokens} rows")
        if kv is not None:
            if context is None or pages is None or cu_pages is None:
                raise TypeError("pages come with context, pages and cu_pages")
            kv.check(cu_seqlens, context, pages, cu_pages)
            step.kv = kv.layers
            step.page_tokens = kv.page_tokens
            step.context = int32_data(context, step.sequences, "context")
            step.pages = int32_data(pages, pages.size, "pages")
            step.cu_pages = int32_data(cu_pages, step.sequences + 1, "cu_pages")
            step.attention_units = <int64_t *>(bookkeeping + round_up(4 * (step.sequences + 1)))
            step.partials = <float *>(<char *>step.attention_units + round_up(16 * (step.sequences + 1)))
        elif self.needs_pages:
            raise TypeError("this program keeps keys and values: pass their pages")
        if scratch_offset + scratch_bytes * threads > arena.nbytes:
            raise ValueError("the arena is too small for the scratch of this step")
        for i, offset in enumerate(slot_offsets):
            step.slots[i] = <float *>(arena.data + <Py_ssize_t>offset)
        step.scratch = arena.data + scratch_offset
        step.scratch_bytes = scratch_bytes
        step.threads = threads
        step.sizes = &self.sizes
        step.dot = self.dot
        step.tiles = self.tiles
        step.bfloat16 = self.bfloat16
        for which, limit in self.tables:
            for i in range(tokens):
                if not 0 <= step.ids[which][i] < limit:
                    return which, i
        with nogil:
            lattice_count_query_blocks(&step, <int32_t *>bookkeeping)
            lattice_step_run(self.ops + first, count, &step, self.table, pool)
        return None
