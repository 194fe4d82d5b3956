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
    int LATTICE_KERNEL_PAGED_ATTENTION
    int LATTICE_ACTIVATION_NONE, LATTICE_WEIGHT_FLOAT32, LATTICE_WEIGHT_BFLOAT16, LATTICE_WEIGHT_BLOCKS
    ctypedef struct lattice_view:
        int32_t slot
        int32_t stride
        int64_t column
    ctypedef struct lattice_embed_record:
        int32_t ids, weight_type, packed
        const void *table
        lattice_view residual
    ctypedef struct lattice_linear_record:
        int32_t weight_type, activation
        const void *weight
        const float *bias
        lattice_view residual
    ctypedef struct lattice_norm_record:
        float epsilon
        const float *weight
        const float *bias
        lattice_view quantized
        const float *range
    ctypedef struct lattice_quantize_record:
        const float *range
    ctypedef struct lattice_attention_record:
        int32_t heads, kv_heads, head_dim
        float scale
    ctypedef struct lattice_paged_record:
        int32_t heads, kv_heads, head_dim, layer, window
        float scale
    ctypedef struct lattice_kv_write_record:
        int32_t layer, kv_heads, attention_heads
    ctypedef struct lattice_angles_record:
        const float *frequencies
        float scale
    ctypedef struct lattice_rope_record:
        int32_t heads, head_dim, width, pairing
    ctypedef struct lattice_op:
        int32_t kernel, rows, pairs
        lattice_view input[3]
        lattice_view output
        lattice_view rounded
        int64_t k, n
        lattice_embed_record embed
        lattice_linear_record linear
        lattice_norm_record norm
        lattice_quantize_record quantize
        lattice_attention_record attention
        lattice_paged_record paged
        lattice_kv_write_record kv_write
        lattice_angles_record angles
        lattice_rope_record rope
        int32_t activation, pool
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
        int amx
        int bfloat16
    ctypedef struct lattice_kernel_table:
        void (*elementwise)(int function, const float *x, float *y, int64_t count)
        uint32_t dot_feature
        uint32_t amx_features
        uint32_t bfloat16_dot_feature, bfloat16_amx_feature
    void lattice_count_query_blocks(lattice_step *step, int32_t *blocks)
    int64_t lattice_scratch_bytes(const lattice_op *op, int64_t max_seqlen, int amx, const lattice_tile_sizes *sizes)
    int64_t lattice_kv_bytes(int type)
    int64_t lattice_partials(const lattice_op *op, int64_t sequences, const int32_t *cu_seqlens, const int32_t *context)

cdef extern from "names.h" nogil:
    const char *const *lattice_kernel_names
    const char *const *lattice_kernel_records
    const char *const *lattice_row_kind_names
    const char *const *lattice_ids_names
    const char *const *lattice_activation_names
    const char *const *lattice_weight_type_names
    const char *const *lattice_bfloat16_products_names
    const char *const *lattice_kv_type_names
    const char *const *lattice_pairing_names
    const char *const *lattice_pool_names
    const char *const *lattice_function_names
    const char *const *lattice_block_format_names

cdef extern from "linear/int8_linear.h" nogil:
    int64_t LATTICE_INT8_DEPTH
    int64_t lattice_int8_panel_bytes(int64_t k)
    int64_t lattice_integer_row_floats(int64_t k)

cdef extern from "linear/bfloat16_linear.h" nogil:
    int64_t lattice_bfloat16_panel_bytes(int64_t k)
    int64_t lattice_bfloat16_row_floats(int64_t k)

cdef extern from "linear/block_pack.h" nogil:
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


cdef dict numbers_of(const char *const *names):
    """The number of each name of a list in kernels/names.h."""
    cdef int number = 0
    numbers = {}
    while names[number] != NULL:
        numbers[names[number].decode()] = number
        number += 1
    return numbers


KERNELS = numbers_of(lattice_kernel_names)
RECORDS = {name: lattice_kernel_records[number].decode() for name, number in KERNELS.items()}
ROW_KINDS = numbers_of(lattice_row_kind_names)
IDS = numbers_of(lattice_ids_names)
ACTIVATIONS = numbers_of(lattice_activation_names)
PAIRINGS = numbers_of(lattice_pairing_names)
POOLS = numbers_of(lattice_pool_names)
FUNCTIONS = numbers_of(lattice_function_names)
BFLOAT16_PRODUCTS = numbers_of(lattice_bfloat16_products_names)
KV_TYPES = numbers_of(lattice_kv_type_names)
BLOCK_FORMATS = tuple(numbers_of(lattice_block_format_names))
WEIGHT_TYPES = numbers_of(lattice_weight_type_names)
WEIGHT_TYPES |= {name: LATTICE_WEIGHT_BLOCKS + number for number, name in enumerate(BLOCK_FORMATS)}

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


def has_amx(str isa):
    """Whether this CPU and system have the kinds of AMX that kernels of a level have bodies for."""
    cdef uint32_t wanted = table_of(isa).amx_features
    return wanted != 0 and wanted & PRODUCT_FEATURES == wanted


def bfloat16_products(str isa):
    """What a level can multiply rows of bfloat16 by on this CPU, slowest first: the names of BFLOAT16_PRODUCTS."""
    cdef const lattice_kernel_table *table = table_of(isa)
    cdef uint32_t features = lattice_cpu_features()
    return [
        name
        for name, there in zip(
            BFLOAT16_PRODUCTS,
            (True, table.bfloat16_dot_feature & features != 0, table.bfloat16_amx_feature & features != 0),
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


cdef void *weight_data(object array, int weight_type, Py_ssize_t size, str name) except NULL:
    """The data of a C-contiguous array of at least ``size`` elements of a weight type; halves are the uint16 of their bits."""
    if weight_type == LATTICE_WEIGHT_FLOAT32:
        return float32_data(array, size, name)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint16 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous uint16 array")
    if array.size < size:
        raise ValueError(f"{name} has {array.size} elements, {size} are needed")
    return cnp.PyArray_DATA(<cnp.ndarray>array)


include "panels.pxi"


def elementwise(str function, x, *, str isa):
    """Apply one of FUNCTIONS to a float32 array. For tests of their accuracy."""
    cdef int index = FUNCTIONS[function]
    cdef const lattice_kernel_table *table = table_of(isa)
    result = np.empty_like(x)
    table.elementwise(index, float32_data(x, x.size, "x"), float32_data(result, x.size, "result"), x.size)
    return result


include "kv_pages.pxi"
include "ops.pxi"
include "steps.pxi"


cdef class Plan:
    """The ops of a compiled program as C structs. Immutable once run; safe to run from several threads at once.

    ``dot`` says whether integer kernels use the CPU's dot product instruction, ``amx`` whether kernels use AMX; by default if
    it has them, and AMX only beside dot products. ``bfloat16`` says what multiplies rows of bfloat16, one of
    :func:`bfloat16_products`. ``sizes`` override sizes of kernels/tile_table.h; they change no bit.
    """

    cdef lattice_op *ops
    cdef Py_ssize_t count
    cdef const lattice_kernel_table *table
    cdef list owners
    cdef list tables
    cdef bint needs_pages
    cdef readonly str isa
    cdef readonly bint dot, amx
    cdef int bfloat16
    cdef lattice_tile_sizes sizes

    def __cinit__(self, str isa, dot=None, amx=None, str bfloat16="widened", sizes=None):
        self.ops = NULL
        self.count = 0
        self.isa = isa
        self.table = table_of(isa)
        self.dot = has_dot_products(isa) if dot is None else dot
        self.amx = self.dot and has_amx(isa) if amx is None else amx
        if bfloat16 not in bfloat16_products(isa):
            raise ValueError(f"{isa} has no {bfloat16!r} of bfloat16 here, it has: {', '.join(bfloat16_products(isa))}")
        self.bfloat16 = BFLOAT16_PRODUCTS[bfloat16]
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

    @property
    def step_tokens(self):
        """Tokens that should go through the program at once."""
        return self.sizes.step_tokens

    def append(
        self, str kernel, *, str rows, inputs, output, Py_ssize_t k, Py_ssize_t n, rounded=None, bint pairs=False,
        **parameters,
    ):
        """Add an op of KERNELS. Operands are (slot, stride, column); ``k`` and ``n`` are the columns read and written; with
        ``pairs`` each row is two. ``parameters`` are those of the kernel's record: see ops.pxi.
        """
        cdef lattice_op op
        memset(&op, 0, sizeof(op))
        op.kernel, op.rows, op.pairs, op.k, op.n = KERNELS[kernel], ROW_KINDS[rows], pairs, k, n
        for i in range(3):
            op.input[i] = view_of(inputs[i] if i < len(inputs) else None)
        op.output = view_of(output)
        op.rounded = view_of(rounded)
        owners = list(parameters.values())
        fill_record(&op, RECORDS[kernel], parameters)
        if parameters:
            raise TypeError(f"{kernel} takes no {', '.join(parameters)}")
        cdef lattice_op *grown = <lattice_op *>realloc(self.ops, (self.count + 1) * sizeof(lattice_op))
        if grown == NULL:
            raise MemoryError
        self.ops = grown
        self.ops[self.count] = op
        self.count += 1
        self.owners.append(owners)
        self.needs_pages = self.needs_pages or op.kernel == LATTICE_KERNEL_PAGED_ATTENTION

    def check_ids(self, str which, Py_ssize_t table_rows):
        """Have every run refuse ids of input ``which``, one of IDS, outside the table."""
        self.tables.append((IDS[which], which, table_rows))

    def scratch_bytes(self, Py_ssize_t max_seqlen):
        """Return the bytes of scratch that one thread needs for sequences of up to ``max_seqlen`` tokens."""
        cdef int64_t most = 0
        for i in range(self.count):
            most = max(most, lattice_scratch_bytes(&self.ops[i], max_seqlen, self.amx, &self.sizes))
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

    def run(self, Step given not None):
        """Run every op on a step. Returns (which of IDS, row) of the first id outside its table, else None."""
        cdef lattice_step step = given.step
        cdef char *bookkeeping = given.arena.data + given.bookkeeping_offset
        cdef Py_ssize_t needed = self.bookkeeping_bytes(given.cu_seqlens, given.context), i
        cdef int64_t limit
        cdef int which
        if given.bookkeeping_offset + needed > given.arena.nbytes:
            raise ValueError("the arena is too small to cut this step into tasks")
        if step.kv != NULL:
            step.attention_units = <int64_t *>(bookkeeping + round_up(4 * (step.sequences + 1)))
            step.partials = <float *>(<char *>step.attention_units + round_up(16 * (step.sequences + 1)))
        elif self.needs_pages:
            raise TypeError("this program keeps keys and values: pass their pages")
        step.sizes = &self.sizes
        step.dot = self.dot
        step.amx = self.amx
        step.bfloat16 = self.bfloat16
        for which, name, limit in self.tables:
            for i in range(step.tokens):
                if not 0 <= step.ids[which][i] < limit:
                    return name, i
        with nogil:
            lattice_count_query_blocks(&step, <int32_t *>bookkeeping)
            lattice_step_run(self.ops, self.count, &step, self.table, pool)
        return None
