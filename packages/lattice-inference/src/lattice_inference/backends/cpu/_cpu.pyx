"""Interface to the C kernels: argument checks and memory, then one call without the GIL."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
cimport numpy as cnp

from lattice_inference.backends.cpu.native cimport *

import numpy as np

from lattice_inference.errors import InvalidInputError

cnp.import_array()


REFUSED = InvalidInputError
include "lattice/binding.pxi"

cdef extern from "run_step.h" nogil:
    void lattice_step_run(const lattice_op *ops, int64_t count, const lattice_step *step,
                          const lattice_kernel_table *table, lattice_pool *)

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

# A build for tests emulates these instructions with others, on every CPU.
cdef uint32_t PRODUCT_FEATURES = 0xffffffff if EMULATED else lattice_cpu_features()

PANEL = LATTICE_PANEL
HUGE_PAGE = 2 << 20  # bytes
MAX_SLOTS = LATTICE_MAX_SLOTS
MAX_HEAD_DIM = LATTICE_MAX_HEAD_DIM
INT8_DEPTH = LATTICE_INT8_DEPTH


cdef bint has_kernels(int isa):
    return lattice_kernels(isa) != NULL


def select_isa(requested=None):
    """Return the name of the instruction set to use.

    It is ``requested`` or, if that is None, ``LATTICE_ISA``. If neither is set, it is the best one here.
    Raises ValueError for an unknown name and for a level that this CPU or this build cannot run.
    """
    return lattice_isa_name(level_of(requested)).decode()


def cpu_features():
    """Return the names of the instruction set extensions that kernels can use here."""
    names = [
        "avx2", "avx512", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_vpopcntdq", "neon", "dotprod", "i8mm", "bf16",
        "amx_int8", "amx_bf16",
    ]
    cdef uint32_t features = lattice_cpu_features()
    return [name for bit, name in enumerate(names) if features >> bit & 1]


def has_dot_products(str isa):
    """Whether this CPU has the dot product instruction of a level's integer kernels."""
    return bool(table_of(isa).dot_feature & PRODUCT_FEATURES)


def has_amx(str isa):
    """Whether this CPU and system have the kinds of AMX that a level's kernels use."""
    cdef uint32_t wanted = table_of(isa).amx_features
    return wanted != 0 and wanted & PRODUCT_FEATURES == wanted


def bfloat16_products(str isa):
    """Return the ways in which a level multiplies rows of bfloat16 on this CPU.

    They are names of BFLOAT16_PRODUCTS, slowest first.
    """
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


# Least and most of each size by which kernels cut work; kernels/tile_table.h explains the sizes.
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
    """Make the C library return free memory to the operating system."""
    with nogil:
        trim_heap_now()


cdef const lattice_kernel_table *table_of(str isa) except NULL:
    return lattice_kernels(level_of(isa))


cdef class Memory:
    """Zeroed memory from the operating system, aligned to a page.

    The operating system gets it back when the object is deleted. ``huge_pages`` asks for 2 MiB pages, which need fewer
    address translations when weights are read. Supports the buffer protocol (bytes, writable).
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
    """Return the data of a C-contiguous array of at least ``size`` elements of a weight type.

    Types of 16 bits come as uint16.
    """
    if weight_type == LATTICE_WEIGHT_FLOAT32:
        return float32_data(array, size, name)
    if not isinstance(array, np.ndarray) or array.dtype != np.uint16 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous uint16 array")
    if array.size < size:
        raise ValueError(f"{name} has {array.size} elements, {size} are needed")
    return cnp.PyArray_DATA(<cnp.ndarray>array)


def routes_floats(Py_ssize_t experts, Py_ssize_t chosen):
    """Return the size in floats of a row in the routing table of a mixture of experts."""
    return lattice_routes_floats(experts, chosen)


include "panels.pxi"


def elementwise(str function, x, *, str isa):
    """Apply one of FUNCTIONS to a float32 array. For tests of their accuracy."""
    cdef int index = FUNCTIONS[function]
    cdef const lattice_kernel_table *table = table_of(isa)
    result = np.empty_like(x)
    table.elementwise(index, float32_data(x, x.size, "x"), float32_data(result, x.size, "result"), x.size)
    return result


cdef class KvPages:
    """Pages of keys and values: ``pages`` pages of ``page_tokens`` tokens.

    ``layers`` gives (kv_heads, head_dim, type) of each layer. A page is contiguous memory: for each layer its keys, values
    and scales (kernels/step.h), each aligned to 64 bytes. Address space is reserved at once, and memory is taken when a page
    is first written. Huge pages are used if the system has them, because attention reads all of the memory in an order that
    a processor cannot predict.
    """

    cdef lattice_kv_layer *layers
    cdef Memory memory
    cdef readonly Py_ssize_t count, page_tokens, pages, page_bytes

    def __cinit__(self, layers, Py_ssize_t page_tokens, Py_ssize_t pages):
        cdef Py_ssize_t i, j, offset = 0
        cdef char *base
        if page_tokens not in (16, 32, 64) or pages < 1:
            raise ValueError(f"there are no pages of {page_tokens} tokens, or {pages} of them")
        self.count, self.page_tokens, self.pages = len(layers), page_tokens, pages
        self.layers = <lattice_kv_layer *>malloc(max(1, self.count) * sizeof(lattice_kv_layer))
        if self.layers == NULL:
            raise MemoryError
        offsets = []
        for kv_heads, head_dim, kind in layers:
            element = lattice_kv_bytes(KV_TYPES[kind])
            width = (head_dim + LATTICE_PANEL - 1) // LATTICE_PANEL * LATTICE_PANEL
            if not 1 <= head_dim <= LATTICE_MAX_HEAD_DIM or kv_heads < 1:
                raise ValueError(f"{kv_heads} heads of {head_dim} dimensions cannot be kept")
            scale_bytes = 4 if kind == "int8" else 0
            for vector_bytes in (head_dim * element, width * element, scale_bytes, scale_bytes):
                offsets.append(offset)
                offset += round_up(kv_heads * page_tokens * vector_bytes)
        self.page_bytes = offset
        self.memory = Memory(offset * pages, huge_pages=offset * pages >= 4 << 20)
        base = self.memory.data
        for i, (kv_heads, head_dim, kind) in enumerate(layers):
            self.layers[i].keys = base + <Py_ssize_t>offsets[4 * i]
            self.layers[i].values = base + <Py_ssize_t>offsets[4 * i + 1]
            self.layers[i].key_scales = base + <Py_ssize_t>offsets[4 * i + 2]
            self.layers[i].value_scales = base + <Py_ssize_t>offsets[4 * i + 3]
            self.layers[i].page_stride = self.page_bytes
            self.layers[i].type = KV_TYPES[kind]
            self.layers[i].kv_heads, self.layers[i].head_dim = kv_heads, head_dim
            self.layers[i].width = (head_dim + LATTICE_PANEL - 1) // LATTICE_PANEL * LATTICE_PANEL

    def __dealloc__(self):
        free(self.layers)

    def check(
        self, cnp.ndarray cu_seqlens not None, cnp.ndarray context not None, cnp.ndarray pages not None,
        cnp.ndarray cu_pages not None,
    ):
        """Raise ValueError unless each sequence's pages exist and hold all its tokens.

        These are the tokens that the pages hold already and those that the step adds.
        """
        cdef Py_ssize_t sequences = cu_seqlens.size - 1
        cdef const int32_t *bounds_of_rows = int32_data(cu_seqlens, sequences + 1, "cu_seqlens")
        cdef const int32_t *before = int32_data(context, sequences, "context")
        cdef const int32_t *numbers = int32_data(pages, pages.size, "pages")
        cdef const int32_t *bounds = int32_data(cu_pages, sequences + 1, "cu_pages")
        cdef Py_ssize_t i
        cdef int64_t length
        if bounds[0] != 0 or bounds[sequences] != pages.size:
            raise ValueError("cu_pages does not span pages")
        for i in range(sequences):
            length = <int64_t>before[i] + bounds_of_rows[i + 1] - bounds_of_rows[i]
            if before[i] < 0 or (bounds[i + 1] - <int64_t>bounds[i]) * self.page_tokens < length:
                raise ValueError(f"sequence {i} needs room for {length} tokens and has {bounds[i + 1] - bounds[i]} pages")
        for i in range(pages.size):
            if not 0 <= numbers[i] < self.pages:
                raise ValueError(f"there is no page {numbers[i]} among {self.pages}")

    cdef char *page(self, Py_ssize_t number) except NULL:
        if not 0 <= number < self.pages:
            raise ValueError(f"there is no page {number} among {self.pages}")
        return self.memory.data + number * self.page_bytes

    def copy_page(self, Py_ssize_t source, Py_ssize_t target):
        """Copy one page over another."""
        memcpy(self.page(target), self.page(source), self.page_bytes)

    def export(self, Py_ssize_t page):
        """Return the content of a page."""
        return self.page(page)[: self.page_bytes]

    def import_(self, Py_ssize_t page, const unsigned char[::1] content not None):
        """Write what :meth:`export` returned into a page."""
        if content.shape[0] != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, not {content.shape[0]}")
        memcpy(self.page(page), &content[0], self.page_bytes)


cdef lattice_view view_of(object operand) except *:
    """Return the view of an operand, (slot, stride, column), or None for no operand."""
    cdef lattice_view view
    memset(&view, 0, sizeof(view))
    view.slot = -1
    if operand is not None:
        view.slot, view.stride, view.column = operand
        if not 0 <= view.slot < LATTICE_MAX_SLOTS:
            raise ValueError(f"slot {view.slot} is not one of the {LATTICE_MAX_SLOTS} slots of a step")
    return view


cdef const void *weight_at(object weight, int weight_type) except NULL:
    """Return the data of an array, or of panels given as (Memory, byte offset)."""
    cdef Memory memory
    if isinstance(weight, tuple):
        memory, offset = weight
        return memory.data + <Py_ssize_t>offset
    return weight_data(weight, weight_type, weight.size, "weight")


cdef const float *floats_or_none(object array, Py_ssize_t size, str name) except? NULL:
    return NULL if array is None else float32_data(array, size, name)


cdef int fill_record(lattice_op *op, str record, dict given) except -1:
    """Fill the record of an op, and remove its fields from ``given``.

    The fields are names, such as weight types and activations, and arrays. ``bounds`` are low and high of the range, in
    float32, within which rows are quantized.
    """
    if record == "linear":
        op.linear.weight_type = WEIGHT_TYPES[given.pop("weight_type")]
        op.linear.activation = ACTIVATIONS[given.pop("activation", "none")]
        residual = given.pop("residual", None)
        if op.linear.activation != LATTICE_ACTIVATION_NONE and residual is not None:
            raise ValueError("a linear takes an activation or a residual: which comes first is not said by an op with both")
        op.linear.residual = view_of(residual)
        op.linear.weight = weight_at(given.pop("weight"), op.linear.weight_type)
        op.linear.bias = floats_or_none(given.pop("bias", None), op.n, "bias")
    elif record == "embed":
        op.embed.ids = IDS[given.pop("ids")]
        op.embed.weight_type = WEIGHT_TYPES[given.pop("weight_type")]
        op.embed.packed = given.pop("packed", False)
        op.embed.table = weight_at(given.pop("table"), op.embed.weight_type)
        op.embed.residual = view_of(given.pop("residual", None))
    elif record == "norm":
        op.norm.epsilon, op.norm.heads = given.pop("epsilon"), given.pop("heads", 1)
        op.norm.weight = float32_data(given.pop("weight"), op.n // op.norm.heads, "weight")
        op.norm.bias = floats_or_none(given.pop("bias", None), op.n, "bias")
        op.norm.quantized = view_of(given.pop("quantized", None))
        op.norm.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "quantize":
        op.quantize.range = floats_or_none(given.pop("bounds", None), 2, "bounds")
    elif record == "attention":
        op.attention.heads, op.attention.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.attention.head_dim, op.attention.scale = given.pop("head_dim"), given.pop("scale")
    elif record == "paged":
        op.paged.heads, op.paged.kv_heads = given.pop("heads"), given.pop("kv_heads")
        op.paged.head_dim, op.paged.scale = given.pop("head_dim"), given.pop("scale")
        op.paged.layer, op.paged.window = given.pop("layer", 0), given.pop("window")
    elif record == "kv_write":
        op.kv_write.layer, op.kv_write.kv_heads = given.pop("layer"), given.pop("kv_heads")
        op.kv_write.attention_heads = given.pop("attention_heads", 0)
    elif record == "angles":
        op.angles.frequencies = float32_data(given.pop("frequencies"), op.n // 2, "frequencies")
        op.angles.scale = given.pop("scale")
    elif record == "rope":
        op.rope.heads, op.rope.head_dim = given.pop("heads"), given.pop("head_dim")
        op.rope.width, op.rope.pairing = given.pop("width"), PAIRINGS[given.pop("pairing")]
    elif record == "low_rank":
        op.low_rank.group = given.pop("group")
    elif record == "activation":
        op.activation = ACTIVATIONS[given.pop("activation")]
    elif record == "pool":
        op.pool = POOLS[given.pop("pool")]
    return 0


include "adapters.pxi"


cdef class Step:
    """A batch, and the memory that a plan's ops take for it.

    ``arena`` holds the slots at ``slot_offsets``. At ``scratch_offset`` it holds scratch memory for each of ``threads``. At
    ``bookkeeping_offset``, a multiple of 64, it holds the plan's ``bookkeeping_bytes``. A program that keeps keys and values
    takes their pages ``kv`` and, as ``context``, the tokens that they hold already of each sequence. The pages of sequence b
    are ``pages[cu_pages[b]:cu_pages[b + 1]]``. Arrays are int32. ``adapters`` belong to the plan that runs the step.
    """

    cdef lattice_step step
    cdef float *few_slots[LATTICE_FEW_SLOTS]
    cdef float **many_slots
    cdef Py_ssize_t slot_count
    cdef Memory arena
    cdef Py_ssize_t bookkeeping_offset
    cdef object cu_seqlens, context
    cdef StepAdapters adapters
    cdef tuple owners

    def __cinit__(
        self, *, cnp.ndarray token_ids not None, cnp.ndarray token_type_ids not None, cnp.ndarray positions not None,
        cnp.ndarray cu_seqlens not None, Py_ssize_t max_seqlen, cnp.ndarray logit_rows=None,
        Memory arena not None, slot_offsets, Py_ssize_t scratch_offset, Py_ssize_t scratch_bytes, int threads,
        Py_ssize_t bookkeeping_offset,
        KvPages kv=None, cnp.ndarray context=None, cnp.ndarray pages=None, cnp.ndarray cu_pages=None,
        StepAdapters adapters=None,
    ):
        cdef lattice_step *step = &self.step
        cdef Py_ssize_t tokens = token_ids.size, i
        step.tokens = tokens
        step.sequences = cu_seqlens.size - 1
        step.max_seqlen = max_seqlen
        step.ids[0] = int32_data(token_ids, tokens, "token_ids")
        step.ids[1] = int32_data(token_type_ids, tokens, "token_type_ids")
        step.ids[2] = int32_data(positions, tokens, "positions")
        step.cu_seqlens = int32_data(cu_seqlens, step.sequences + 1, "cu_seqlens")
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
        if adapters is not None:
            step.adapters = adapters.adapters
            if scratch_bytes < adapters.scratch_bytes(tokens):
                raise ValueError("the scratch is too small for the adapters of this step")
        if bookkeeping_offset % 64 or scratch_offset + scratch_bytes * threads > arena.nbytes:
            raise ValueError("the arena is too small for the scratch of this step")
        if len(slot_offsets) > LATTICE_MAX_SLOTS:
            raise ValueError(f"{len(slot_offsets)} slots are more than the {LATTICE_MAX_SLOTS} of a step")
        self.slot_count = len(slot_offsets)
        step.slots = &self.few_slots[0]
        if self.slot_count > LATTICE_FEW_SLOTS:
            self.many_slots = <float **>malloc(self.slot_count * sizeof(float *))
            if self.many_slots == NULL:
                raise MemoryError
            step.slots = self.many_slots
        for i, offset in enumerate(slot_offsets):
            step.slots[i] = <float *>(arena.data + <Py_ssize_t>offset)
        step.scratch = arena.data + scratch_offset
        step.scratch_bytes = scratch_bytes
        step.threads = threads
        self.arena = arena
        self.bookkeeping_offset = bookkeeping_offset
        self.cu_seqlens, self.context, self.adapters = cu_seqlens, context, adapters
        self.owners = (token_ids, token_type_ids, positions, logit_rows, kv, pages, cu_pages)

    def __dealloc__(self):
        free(self.many_slots)


cdef class Plan:
    """The ops of a compiled program as C structs.

    It is immutable once run, and several threads may run it at once. ``dot`` says whether integer kernels use the CPU's dot
    product instruction, and ``amx`` whether kernels use AMX. By default they use what the CPU has, and AMX only with dot
    products. ``bfloat16``, one of :func:`bfloat16_products`, says how rows of bfloat16 are multiplied. ``sizes`` override
    sizes of kernels/tile_table.h; they change no bit.
    """

    cdef lattice_op *ops
    cdef Py_ssize_t count
    cdef const lattice_kernel_table *table
    cdef list owners
    cdef list tables
    cdef readonly list groups
    cdef bint needs_pages
    cdef Py_ssize_t slots_needed
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
        self.groups = []  # for linears that adapters change: columns read, columns of the changed rows

    def __dealloc__(self):
        free(self.ops)

    def __len__(self):
        return self.count

    @property
    def step_tokens(self):
        """The best number of tokens for a step."""
        return self.sizes.step_tokens

    def append(
        self, str kernel, *, str rows, inputs, output, Py_ssize_t k, Py_ssize_t n, rounded=None, bint pairs=False,
        int each=1, dict experts=None, **parameters,
    ):
        """Add an op of KERNELS. Operands are (slot, stride, column).

        ``k`` and ``n`` are the columns read and written. With ``pairs``, two consecutive input rows are added to one output
        row. The op has ``each`` rows for a row of the step. ``parameters`` belong to the kernel's record: see fill_record.
        An op of a mixture of experts has ``experts``: ``table``, ``count``, ``chosen``, ``normalized`` and ``matrix_bytes``,
        of kernels/step.h.
        """
        cdef lattice_op op
        memset(&op, 0, sizeof(op))
        op.kernel, op.rows, op.pairs, op.k, op.n = KERNELS[kernel], ROW_KINDS[rows], pairs, k, n
        for i in range(3):
            op.input[i] = view_of(inputs[i] if i < len(inputs) else None)
        op.each, op.number = each, self.count
        op.experts.table = view_of(None if experts is None else experts["table"])
        if experts is not None:
            op.experts.count, op.experts.chosen = experts["count"], experts["chosen"]
            op.experts.normalized, op.experts.matrix_bytes = experts["normalized"], experts["matrix_bytes"]
            if not 1 <= op.experts.chosen <= op.experts.count:
                raise ValueError(f"{op.experts.chosen} of {op.experts.count} experts cannot be chosen")
        op.output = view_of(output)
        op.rounded = view_of(rounded)
        owners = list(parameters.values())
        fill_record(&op, RECORDS[kernel], parameters)
        if parameters:
            raise TypeError(f"{kernel} takes no {', '.join(parameters)}")
        if op.kernel == LATTICE_KERNEL_LOW_RANK:
            if op.low_rank.group != len(self.groups):
                raise ValueError(f"group {op.low_rank.group} is appended as group {len(self.groups)}")
            self.groups.append((k, op.output.stride - op.output.column))
        cdef lattice_op *grown = <lattice_op *>realloc(self.ops, (self.count + 1) * sizeof(lattice_op))
        if grown == NULL:
            raise MemoryError
        self.ops = grown
        self.ops[self.count] = op
        self.count += 1
        self.owners.append(owners)
        for view in (*inputs, output, rounded):
            if view is not None:
                self.slots_needed = max(self.slots_needed, <Py_ssize_t>view[0] + 1)
        self.needs_pages = self.needs_pages or op.kernel == LATTICE_KERNEL_PAGED_ATTENTION

    def check_ids(self, str which, Py_ssize_t table_rows):
        """Make every run refuse ids of input ``which``, one of IDS, outside the table."""
        self.tables.append((IDS[which], which, table_rows))

    def scratch_bytes(self, Py_ssize_t max_seqlen):
        """Return the scratch bytes of one thread, for sequences of at most ``max_seqlen`` tokens."""
        cdef int64_t most = 0
        for i in range(self.count):
            most = max(most, lattice_scratch_bytes(&self.ops[i], max_seqlen, self.amx, &self.sizes))
        return most

    def bookkeeping_bytes(self, cu_seqlens, context=None):
        """Return the bytes that a run needs to cut its work into tasks.

        They hold the number of query blocks before each sequence. With ``context``, the tokens that each sequence's pages
        hold already, they also hold the number of parts before each sequence, and the parts' results until they are merged.
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

    def run(self, Step given not None, Py_ssize_t first=0, end=None):
        """Run ops ``first`` to ``end`` on a step; by default run all.

        Returns (which of IDS, row) of the first id outside its table, or None. A run in several calls needs the same step in
        each.
        """
        cdef lattice_step step = given.step
        cdef char *bookkeeping = given.arena.data + given.bookkeeping_offset
        cdef Py_ssize_t needed = self.bookkeeping_bytes(given.cu_seqlens, given.context), i
        cdef Py_ssize_t count = (self.count if end is None else <Py_ssize_t>end) - first
        cdef int64_t limit
        cdef int which
        cdef object adapter
        if not 0 <= first <= first + count <= self.count:
            raise ValueError(f"ops {first} to {first + count} are not of the {self.count} ops")
        if given.slot_count < self.slots_needed:
            raise ValueError(f"a step with {given.slot_count} slots is given to ops that need {self.slots_needed}")
        if given.bookkeeping_offset + needed > given.arena.nbytes:
            raise ValueError("the arena is too small to cut this step into tasks")
        if step.kv != NULL:
            step.attention_units = <int64_t *>(bookkeeping + round_up(4 * (step.sequences + 1)))
            step.partials = <float *>(<char *>step.attention_units + round_up(16 * (step.sequences + 1)))
        elif self.needs_pages:
            raise TypeError("this program keeps keys and values: pass their pages")
        if given.adapters is not None:
            for adapter in given.adapters.owners:
                if (<Adapter>adapter).plan is not self:
                    raise ValueError("an adapter of another plan")
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
            lattice_step_run(self.ops + first, count, &step, self.table, pool)
        return None
