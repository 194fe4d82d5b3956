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
DELTA_BLOCK = LATTICE_DELTA_BLOCK
MOST_TAPS = LATTICE_MOST_TAPS
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


include "kv_pages.pxi"
include "recurrent_slots.pxi"


include "op_records.pxi"
include "adapters.pxi"
include "training.pxi"


cdef class Step:
    """A batch, and the memory that a plan's ops take for it.

    ``arena`` holds the slots at ``slot_offsets``. At ``scratch_offset`` it holds scratch memory for each of ``threads``. At
    ``bookkeeping_offset``, a multiple of 64, it holds the plan's ``bookkeeping_bytes``. A program that keeps keys and values
    takes their pages ``kv`` and, as ``context``, the tokens that they hold already of each sequence. The pages of sequence b
    are ``pages[cu_pages[b]:cu_pages[b + 1]]``. One with recurrent layers takes their slots ``recurrent`` and each sequence's
    numbers. Arrays are int32. ``adapters`` belong to the plan that runs the step. ``inputs`` are float32 arrays, the rows of
    each input_rows of the plan. A program for training takes ``training``.
    """

    cdef lattice_step step
    cdef float *few_slots[LATTICE_FEW_SLOTS]
    cdef float **many_slots
    cdef const float **inputs
    cdef Py_ssize_t slot_count
    cdef Memory arena
    cdef Py_ssize_t bookkeeping_offset
    cdef object cu_seqlens, context
    cdef StepAdapters adapters
    cdef RecurrentSlots recurrent
    cdef StepTraining training
    cdef tuple given, owners

    def __cinit__(
        self, *, cnp.ndarray token_ids not None, cnp.ndarray token_type_ids not None, cnp.ndarray positions not None,
        cnp.ndarray cu_seqlens not None, Py_ssize_t max_seqlen, cnp.ndarray logit_rows=None,
        Memory arena not None, slot_offsets, Py_ssize_t scratch_offset, Py_ssize_t scratch_bytes, int threads,
        Py_ssize_t bookkeeping_offset,
        KvPages kv=None, cnp.ndarray context=None, cnp.ndarray pages=None, cnp.ndarray cu_pages=None,
        StepAdapters adapters=None,
        RecurrentSlots recurrent=None, cnp.ndarray read_slots=None, cnp.ndarray write_slots=None,
        tuple inputs=(), StepTraining training=None,
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
            step.pages = int32_data(pages, pages.size, "pages")
            step.cu_pages = int32_data(cu_pages, step.sequences + 1, "cu_pages")
        if context is not None:
            step.context = int32_data(context, step.sequences, "context")
        if recurrent is not None:
            if context is None or read_slots is None or write_slots is None:
                raise TypeError("slots come with context, read_slots and write_slots")
            recurrent.check(cu_seqlens, context, read_slots, write_slots)
            step.recurrent, step.slot_floats = recurrent.states, recurrent.slot_bytes // 4
            step.read_slots = int32_data(read_slots, step.sequences, "read_slots")
            step.write_slots = int32_data(write_slots, step.sequences, "write_slots")
        if adapters is not None:
            step.adapters = adapters.adapters
            if scratch_bytes < adapters.scratch_bytes(tokens):
                raise ValueError("the scratch is too small for the adapters of this step")
        self.given = inputs
        if inputs:
            self.inputs = <const float **>malloc(len(inputs) * sizeof(float *))
            if self.inputs == NULL:
                raise MemoryError
            for i, rows in enumerate(inputs):
                self.inputs[i] = float32_data(rows, 0, "inputs")
            step.inputs = self.inputs
        if training is not None:
            step.training = &training.training
            self.training = training
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
        self.cu_seqlens, self.context, self.adapters, self.recurrent = cu_seqlens, context, adapters, recurrent
        self.owners = (token_ids, token_type_ids, positions, logit_rows, kv, pages, cu_pages, recurrent, read_slots, write_slots)

    def __dealloc__(self):
        free(self.many_slots)
        free(self.inputs)


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
    cdef Py_ssize_t needed_states
    cdef bint needs_pages, trains
    cdef readonly list inputs_used
    cdef list losses
    cdef dict sites
    cdef readonly tuple shapes
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
        self.inputs_used, self.losses = [], []  # names, rows and columns; outputs, and whether there is a gradient
        self.sites, self.shapes = {}, ()
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
        self.note_views((*inputs, output, rounded, *owners))
        if RECORDS[kernel] == "factors":
            parameters["site"] = self.sites[parameters["site"]]
        elif RECORDS[kernel] == "input_rows":
            self.inputs_used.append((parameters.pop("name"), op.rows, n))
            parameters["number"] = len(self.inputs_used) - 1
        fill_record(&op, RECORDS[kernel], parameters, owners)
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
        self.needs_pages = self.needs_pages or op.kernel == LATTICE_KERNEL_PAGED_ATTENTION
        if op.kernel == LATTICE_KERNEL_SHORT_CONV:
            self.needed_states = max(self.needed_states, op.short_conv.state + 1)
        elif op.kernel == LATTICE_KERNEL_DELTA_RULE:
            self.needed_states = max(self.needed_states, op.delta.state + 1)
        if op.kernel >= LATTICE_KERNEL_ADD_NOISE:
            self.note_training(&op, RECORDS[kernel])

    cdef note_views(self, tuple operands):
        """Note the slots of the operands among ``operands``, which are (slot, stride, column)."""
        for view in operands:
            if isinstance(view, tuple) and len(view) == 3:
                self.slots_needed = max(self.slots_needed, <Py_ssize_t>view[0] + 1)

    cdef note_training(self, const lattice_op *op, str record):
        """Note what steps must have for an op of a program for training."""
        self.trains = True
        if record == "loss":
            self.losses.append((op.loss.outputs, op.loss.dx.slot >= 0))
        elif record == "factors":
            rank, inputs, outputs = self.shapes[op.factors.site]
            sizes = {
                LATTICE_KERNEL_LOW_RANK_INNER: (inputs, rank), LATTICE_KERNEL_LOW_RANK_OUTER: (rank, outputs),
                LATTICE_KERNEL_LOW_RANK_INNER_GRAD: (outputs, rank), LATTICE_KERNEL_LOW_RANK_INPUT_GRAD: (rank, inputs),
                LATTICE_KERNEL_LOW_RANK_GRAD: (inputs, outputs),
            }
            if op.factors.rank != rank or (op.k, op.n) != sizes[op.kernel]:
                raise ValueError(f"an op reads {op.k} and writes {op.n} columns by factors of {rank, inputs, outputs}")

    def use_factors(self, sites):
        """Name the sites whose factors later ops read, in order.

        Their shapes are (rank, inputs, outputs).
        """
        self.sites = {name: number for number, name in enumerate(sites)}
        self.shapes = tuple(sites.values())

    def check_ids(self, str which, Py_ssize_t table_rows):
        """Make every run refuse ids of input ``which``, one of IDS, outside the table."""
        self.tables.append((IDS[which], which, table_rows))

    def scratch_bytes(self, Py_ssize_t max_seqlen):
        """Return the scratch bytes of one thread, for sequences of at most ``max_seqlen`` tokens."""
        cdef int64_t most = 0
        for i in range(self.count):
            most = max(most, lattice_scratch_bytes(&self.ops[i], max_seqlen, self.amx, &self.sizes))
        if self.trains:
            for i in range(self.count):
                most = max(most, lattice_reverse_scratch_bytes(&self.ops[i]))
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
        if self.needed_states and (given.recurrent is None or given.recurrent.count < self.needed_states):
            raise TypeError("this program keeps recurrent state: pass its slots")
        if given.adapters is not None:
            for adapter in given.adapters.owners:
                if (<Adapter>adapter).plan is not self:
                    raise ValueError("an adapter of another plan")
        if len(given.given) != len(self.inputs_used):
            raise ValueError(f"{len(given.given)} inputs are given to a program that reads {len(self.inputs_used)}")
        for rows, (_, kind, columns) in zip(given.given, self.inputs_used):
            i = (step.tokens, step.sequences, step.logit_count)[<int>kind]
            if rows.size != i * <Py_ssize_t>columns:
                raise ValueError(f"an input has {rows.size} elements, not {i} rows of {columns}")
        if self.trains:
            check_training(self, given)
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
