# Included by _cpu.pyx: what a batch gives the ops of a plan, as a C struct.


cdef class Step:
    """A batch, and the memory that a plan's ops take for it.

    ``arena`` holds the slots at ``slot_offsets``, at ``scratch_offset`` ``threads`` stretches of scratch, and at
    ``bookkeeping_offset``, a multiple of 64, ``bookkeeping_bytes`` of the plan. A program that keeps keys and values is given
    their pages ``kv``, the tokens of each sequence in them before, and the numbers of its pages,
    ``pages[cu_pages[b]:cu_pages[b + 1]]``. Arrays are int32.
    """

    cdef lattice_step step
    cdef Memory arena
    cdef Py_ssize_t bookkeeping_offset
    cdef object cu_seqlens, context
    cdef tuple owners

    def __cinit__(
        self, *, cnp.ndarray token_ids not None, cnp.ndarray token_type_ids not None, cnp.ndarray positions not None,
        cnp.ndarray cu_seqlens not None, Py_ssize_t max_seqlen, cnp.ndarray logit_rows=None,
        Memory arena not None, slot_offsets, Py_ssize_t scratch_offset, Py_ssize_t scratch_bytes, int threads,
        Py_ssize_t bookkeeping_offset,
        KvPages kv=None, cnp.ndarray context=None, cnp.ndarray pages=None, cnp.ndarray cu_pages=None,
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
        if bookkeeping_offset % 64 or scratch_offset + scratch_bytes * threads > arena.nbytes:
            raise ValueError("the arena is too small for the scratch of this step")
        if len(slot_offsets) > LATTICE_MAX_SLOTS:
            raise ValueError(f"{len(slot_offsets)} slots are more than the {LATTICE_MAX_SLOTS} of a step")
        for i, offset in enumerate(slot_offsets):
            step.slots[i] = <float *>(arena.data + <Py_ssize_t>offset)
        step.scratch = arena.data + scratch_offset
        step.scratch_bytes = scratch_bytes
        step.threads = threads
        self.arena = arena
        self.bookkeeping_offset = bookkeeping_offset
        self.cu_seqlens, self.context = cu_seqlens, context
        self.owners = (token_ids, token_type_ids, positions, logit_rows, kv, pages, cu_pages)
