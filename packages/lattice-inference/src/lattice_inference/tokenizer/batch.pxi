"""Batches: what the C code takes and gives, its errors as exceptions, its tokens as arrays."""

cdef extern from "batch.h" nogil:
    int LT_TRUNCATION_TOO_SHORT
    int LT_LONE_SURROGATE
    int LT_TOO_MANY_TOKENS
    int LT_NO_ROOM
    ctypedef struct lt_template_part:
        int32_t sequence
        int32_t id
        int32_t type_id
    ctypedef struct lt_template:
        const lt_template_part* parts
        size_t count
    ctypedef enum lt_truncation_strategy:
        pass
    ctypedef struct lt_truncation:
        int32_t max_tokens
        lt_truncation_strategy strategy
        bint cut_left
    ctypedef struct lt_batch:
        lt_token* tokens
        int32_t* type_ids
        size_t size


cdef extern from "lattice/pool_capsule.h":
    int LATTICE_MAX_THREADS
    ctypedef struct lattice_pool:
        pass
    lattice_pool* lattice_pool_shared() except NULL


cdef extern from "parallel_batch.h" nogil:
    ctypedef struct lt_batches:
        lt_batch* chunks
        size_t count
        size_t size
        size_t failed_text
        int32_t failed_character
    int lt_encode_texts(const lt_pipeline* pipeline, lattice_pool* pool, int threads, const lt_input* texts,
                        const lt_input* seconds, size_t count, lt_template single, lt_template pair,
                        lt_truncation truncation, bint find_special, lt_batches* batches, int32_t* boundaries,
                        int32_t* token_counts, uint8_t* truncated)
    void lt_batches_free(lt_batches* batches)


cdef lattice_pool* shared_pool() except NULL:
    """The process's pool; what LATTICE_NUM_THREADS says wrongly is refused as arguments are."""
    try:
        return lattice_pool_shared()
    except ValueError as error:
        raise InvalidInputError(str(error)) from None


cdef lattice_pool* pool = shared_pool()
MAX_THREADS = LATTICE_MAX_THREADS


cdef object _new_array(Py_ssize_t rows, Py_ssize_t columns, int dtype):
    cdef cnp.npy_intp shape[2]
    shape[0] = rows
    shape[1] = columns
    return cnp.PyArray_SimpleNew(2 if columns else 1, shape, dtype)


cdef int _pass_on_error() except -1:
    """Raise the exception that an external splitter left behind."""
    return -1


cdef _raise(int status, lt_batches* batch, Py_ssize_t max_tokens):
    if status == LT_LONE_SURROGATE:
        raise InvalidInputError(
            f"text {batch.failed_text} has a lone surrogate at character {batch.failed_character}, which no "
            "Unicode text contains; decode the bytes with errors='replace'"
        )
    if status == LT_EXTERNAL_FAILED:
        try:
            _pass_on_error()
        except InvalidInputError as error:
            raise InvalidInputError(f"text {batch.failed_text}: {error}") from None
    if status == LT_TRUNCATION_TOO_SHORT:
        raise InvalidInputError(
            f"text {batch.failed_text}: dropping every token of the side that may be cut does not reach the limit"
        )
    if status == LT_NO_UNKNOWN:
        raise InvalidInputError(
            f"text {batch.failed_text} has a character that is in no piece, and the tokenizer has no unknown token"
        )
    if status == LT_TEXT_TOO_LONG:
        raise InvalidInputError(f"text {batch.failed_text} has more than 2,147,483,647 characters once normalized: split it")
    if status == LT_TOO_MANY_TOKENS:
        raise InvalidInputError("the texts have more than 2,147,483,647 tokens together; split them")
    if status == LT_NO_ROOM:
        raise InvalidInputError(
            f"text {batch.failed_text}: a limit of {max_tokens} tokens leaves no room for the special tokens; raise it or "
            "pass add_special_tokens=False"
        )
    raise MemoryError


cdef tuple _arrays(lt_batches* batches, bint want_offsets):
    cdef Py_ssize_t size = <Py_ssize_t>batches.size, i, start = 0
    cdef size_t chunk
    cdef lt_batch* batch
    ids = _new_array(size, 0, cnp.NPY_INT32)
    type_ids = _new_array(size, 0, cnp.NPY_INT32)
    offsets = _new_array(size if want_offsets else 0, 2, cnp.NPY_INT32)
    cdef int32_t* id_data = <int32_t*>cnp.PyArray_DATA(ids)
    cdef int32_t* type_data = <int32_t*>cnp.PyArray_DATA(type_ids)
    cdef int32_t* offset_data = <int32_t*>cnp.PyArray_DATA(offsets)
    for chunk in range(batches.count):
        batch = &batches.chunks[chunk]
        if batch.size:
            memcpy(type_data + start, batch.type_ids, batch.size * sizeof(int32_t))
        for i in range(<Py_ssize_t>batch.size):
            id_data[start + i] = batch.tokens[i].id
        if want_offsets:
            for i in range(<Py_ssize_t>batch.size):
                offset_data[2 * (start + i)] = batch.tokens[i].start
                offset_data[2 * (start + i) + 1] = batch.tokens[i].end
        start += <Py_ssize_t>batch.size
    return ids, offsets, type_ids
