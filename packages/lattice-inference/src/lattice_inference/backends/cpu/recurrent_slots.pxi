# The slots of recurrent layers; a part of _cpu.pyx.

def slot_offsets(states):
    """Return the byte offset of each of ``states`` in a slot, and the bytes of a slot.

    See RecurrentSlots for ``states``.
    """
    cdef Py_ssize_t offset = 0
    cdef int64_t floats
    offsets = []
    for kind, shape in states:
        if kind == "short_conv":
            columns, taps = shape
            if columns < 1 or not 2 <= taps <= LATTICE_MOST_TAPS:
                raise ValueError(f"a convolution of {columns} columns over {taps} rows cannot be kept")
            floats = lattice_short_conv_floats(columns, taps)
        else:
            heads, key_dim, value_dim = shape
            if min(shape) < 1 or max(key_dim, value_dim) > LATTICE_MAX_HEAD_DIM:
                raise ValueError(f"{heads} states of {key_dim} x {value_dim} cannot be kept")
            floats = heads * lattice_delta_layout_of(key_dim, value_dim).floats
        offsets.append(offset)
        offset += round_up(4 * floats)
    return offsets, offset


cdef class RecurrentSlots:
    """Slots of recurrent state: ``slots`` of them, each with every state of ``states``.

    ``states`` gives (kind, shape) of each: ("short_conv", (columns, taps)) or ("gated_delta_rule", (value_heads, key_dim,
    value_dim)). kernels/recurrent/slot_layout.h says how they lie. Address space is reserved at once, and memory is taken when
    a slot is first written.
    """

    cdef float **states
    cdef Memory memory
    cdef readonly Py_ssize_t count, slots, slot_bytes

    def __cinit__(self, states, Py_ssize_t slots):
        cdef Py_ssize_t i
        if slots < 1:
            raise ValueError(f"there are no {slots} slots")
        self.count, self.slots = len(states), slots
        offsets, nbytes = slot_offsets(states)
        self.states = <float **>malloc(max(1, self.count) * sizeof(float *))
        if self.states == NULL:
            raise MemoryError
        self.slot_bytes = nbytes
        self.memory = Memory(nbytes * slots, huge_pages=nbytes >= HUGE_PAGE)
        for i in range(self.count):
            self.states[i] = <float *>(self.memory.data + <Py_ssize_t>offsets[i])

    def __dealloc__(self):
        free(self.states)

    def check(
        self, cnp.ndarray cu_seqlens not None, cnp.ndarray context not None, cnp.ndarray read not None,
        cnp.ndarray write not None,
    ):
        """Raise ValueError unless each sequence's slots exist, and belong to it alone.

        A sequence that crosses the end of a block writes another slot than it reads.
        """
        cdef Py_ssize_t sequences = cu_seqlens.size - 1, i
        cdef const int32_t *bounds = int32_data(cu_seqlens, sequences + 1, "cu_seqlens")
        cdef const int32_t *before = int32_data(context, sequences, "context")
        cdef const int32_t *reads = int32_data(read, sequences, "read_slots")
        cdef const int32_t *writes = int32_data(write, sequences, "write_slots")
        cdef int64_t end
        seen = set()
        for i in range(sequences):
            end = <int64_t>before[i] + bounds[i + 1] - bounds[i]
            if before[i] < 0:
                raise ValueError(f"sequence {i} has {before[i]} tokens")
            used = [reads[i]]
            if end // LATTICE_DELTA_BLOCK != before[i] // LATTICE_DELTA_BLOCK:
                used.append(writes[i])
            for slot in used:
                if not 0 <= slot < self.slots:
                    raise ValueError(f"there is no slot {slot} among {self.slots}")
                if slot in seen:
                    raise ValueError(f"slot {slot} has two uses in this step")
                seen.add(slot)

    cdef char *slot(self, Py_ssize_t number) except NULL:
        if not 0 <= number < self.slots:
            raise ValueError(f"there is no slot {number} among {self.slots}")
        return self.memory.data + number * self.slot_bytes

    def copy(self, Py_ssize_t source, Py_ssize_t target):
        """Copy one slot over another."""
        memcpy(self.slot(target), self.slot(source), self.slot_bytes)

    def export(self, Py_ssize_t slot):
        """Return the content of a slot."""
        return self.slot(slot)[: self.slot_bytes]

    def import_(self, Py_ssize_t slot, const unsigned char[::1] content not None):
        """Write what :meth:`export` returned into a slot."""
        if content.shape[0] != self.slot_bytes:
            raise ValueError(f"a slot has {self.slot_bytes} bytes, not {content.shape[0]}")
        memcpy(self.slot(slot), &content[0], self.slot_bytes)
