# Included by _cpu.pyx as text: pages of keys and values.


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
