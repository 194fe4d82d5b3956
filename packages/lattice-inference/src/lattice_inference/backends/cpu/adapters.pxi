# Included by _cpu.pyx as text: what adapters add to a plan's linears, and which rows of a step are whose.


cdef class Adapter:
    """What an adapter adds to the groups of ``plan``, in panels in ``memory``. Immutable.

    ``groups`` has an entry for each group of the plan: None, or (weight type, byte offset of A, parts). A part, in the order of
    columns, is (byte offset of B, rank, first column, columns, scale); see kernels/linear/low_rank.h.
    """

    cdef lattice_low_rank_group *groups
    cdef lattice_low_rank_part *parts
    cdef Memory memory
    cdef Plan plan
    cdef readonly Py_ssize_t scratch_row_bytes

    def __cinit__(self, Plan plan not None, Memory memory not None, groups):
        cdef Py_ssize_t i, j, size, next_part = 0
        cdef int64_t k, n, reached, rank, column, columns, offset
        cdef lattice_low_rank_group *group
        cdef lattice_low_rank_part *part
        self.groups, self.parts, self.memory, self.plan = NULL, NULL, memory, plan
        if len(groups) != len(plan.groups):
            raise ValueError(f"{len(groups)} groups are given for the {len(plan.groups)} of the plan")
        count = sum([0 if given is None else len(given[2]) for given in groups])
        self.groups = <lattice_low_rank_group *>calloc(max(1, len(groups)), sizeof(lattice_low_rank_group))
        self.parts = <lattice_low_rank_part *>calloc(max(1, count), sizeof(lattice_low_rank_part))
        if self.groups == NULL or self.parts == NULL:
            raise MemoryError
        for i, given in enumerate(groups):
            if given is None:
                continue
            kind, offset, parts = given
            if kind not in ("float32", "bfloat16", "float16"):
                raise ValueError(f"matrices of adapters are not kept in {kind!r}")
            size = 4 if kind == "float32" else 2
            k, n = plan.groups[i]
            group = &self.groups[i]
            group.weight_type, group.part_count, group.parts = WEIGHT_TYPES[kind], len(parts), &self.parts[next_part]
            reached = 0
            for b, rank, column, columns, scale in parts:
                part = &self.parts[next_part]
                next_part += 1
                if rank < 1 or columns < 1 or not reached <= column <= column + columns <= n:
                    raise ValueError(f"columns {column} to {column + columns} of rank {rank} are not among {n}")
                reached = column + columns
                part.b = self.at(b, panels_of(columns) * LATTICE_PANEL * rank * size)
                part.rank, part.panel, part.column, part.columns, part.scale = rank, group.panels, column, columns, scale
                group.panels += panels_of(rank)
                group.column_panels += panels_of(columns)
                group.work += rank * panels_of(columns)
            group.work += group.panels * k
            group.a = self.at(offset, group.panels * LATTICE_PANEL * k * size)
            self.scratch_row_bytes = max(self.scratch_row_bytes, 4 * (group.panels * LATTICE_PANEL + k))

    cdef const void *at(self, Py_ssize_t offset, Py_ssize_t nbytes) except NULL:
        if offset < 0 or offset % 64 or offset + nbytes > self.memory.nbytes:
            raise ValueError(f"{nbytes} bytes at {offset} are not among {self.memory.nbytes}")
        return self.memory.data + offset

    def __dealloc__(self):
        free(self.groups)
        free(self.parts)


cdef inline int64_t panels_of(int64_t columns) noexcept:
    return (columns + LATTICE_PANEL - 1) // LATTICE_PANEL


cdef void list_rows(const int32_t *of_row, int64_t rows, int64_t adapters, int32_t *listed, int32_t *bounds) noexcept nogil:
    """The rows of each adapter one after the other, ascending: a counting sort.

    Rows of no adapter, -1, are left out.
    """
    cdef int64_t i
    for i in range(adapters + 1):
        bounds[i] = 0
    for i in range(rows):
        if of_row[i] >= 0:
            bounds[of_row[i] + 1] += 1
    for i in range(adapters):
        bounds[i + 1] += bounds[i]
    for i in range(rows):
        if of_row[i] >= 0:
            listed[bounds[of_row[i]]] = <int32_t>i
            bounds[of_row[i]] += 1
    for i in range(adapters, 0, -1):  # each was moved on to where the next one began
        bounds[i] = bounds[i - 1]
    bounds[0] = 0


cdef class StepAdapters:
    """The adapters of a step, and which of them each sequence has.

    ``numbers`` is int32 [sequences], with -1 for none.
    """

    cdef lattice_step_adapters adapters
    cdef const lattice_low_rank_group **groups
    cdef int32_t *lists
    cdef readonly tuple owners
    cdef readonly Py_ssize_t scratch_row_bytes

    def __cinit__(
        self, tuple adapters not None, cnp.ndarray numbers not None, cnp.ndarray cu_seqlens not None,
        cnp.ndarray logit_rows=None,
    ):
        cdef Py_ssize_t count = len(adapters), sequences = cu_seqlens.size - 1, logits = 0, i, row
        cdef const int32_t *number = int32_data(numbers, sequences, "numbers")
        cdef const int32_t *bounds = int32_data(cu_seqlens, sequences + 1, "cu_seqlens")
        cdef const int32_t *wanted = NULL
        cdef Py_ssize_t tokens = bounds[sequences]
        cdef int32_t *of_token
        cdef int32_t *of_logit
        cdef int32_t *place
        cdef Adapter adapter
        self.groups, self.lists, self.owners = NULL, NULL, adapters
        if logit_rows is not None:
            logits = logit_rows.size
            wanted = int32_data(logit_rows, logits, "logit_rows")
        self.groups = <const lattice_low_rank_group **>malloc(max(1, count) * sizeof(void *))
        self.lists = <int32_t *>malloc((2 * (tokens + logits) + sequences + 3 * (count + 1)) * sizeof(int32_t))
        if self.groups == NULL or self.lists == NULL:
            raise MemoryError
        for i, adapter in enumerate(adapters):
            self.groups[i] = adapter.groups
            self.scratch_row_bytes = max(self.scratch_row_bytes, adapter.scratch_row_bytes)
        of_token, of_logit = self.lists, self.lists + tokens
        for i in range(sequences):
            if not -1 <= number[i] < count:
                raise ValueError(f"sequence {i} has the adapter {number[i]}, and there are {count}")
            if not 0 <= bounds[i] <= bounds[i + 1] <= tokens:
                raise ValueError("cu_seqlens does not ascend")
            for row in range(bounds[i], bounds[i + 1]):
                of_token[row] = number[i]
        for i in range(logits):
            if not 0 <= wanted[i] < tokens:
                raise ValueError(f"logit row {wanted[i]} is not one of {tokens} rows")
            of_logit[i] = of_token[wanted[i]]
        place = of_logit + logits
        for kind, of_row, rows in ((0, <size_t>of_token, tokens), (1, <size_t>number, sequences), (2, <size_t>of_logit, logits)):
            self.adapters.rows[<int>kind], self.adapters.bounds[<int>kind] = place, place + <Py_ssize_t>rows
            list_rows(<const int32_t *><size_t>of_row, rows, count, place, place + <Py_ssize_t>rows)
            place += <Py_ssize_t>rows + count + 1
        self.adapters.count = count
        self.adapters.groups = self.groups

    def __dealloc__(self):
        free(self.groups)
        free(self.lists)

    def scratch_bytes(self, Py_ssize_t tokens):
        """Return the bytes of scratch that a thread needs for them in a step of so many tokens."""
        return round_up(min(tokens, LATTICE_BLOCK_ROWS) * self.scratch_row_bytes)
