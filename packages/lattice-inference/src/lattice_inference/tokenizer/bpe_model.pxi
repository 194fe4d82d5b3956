# Included by _tokenizer.pyx: from a vocabulary and merges as Python has them to a BPE model.


cdef extern from "bpe.h" nogil:
    int LT_BPE_LEFT_MISSING
    int LT_BPE_RIGHT_MISSING
    int LT_BPE_MERGED_MISSING
    int LT_BPE_SHORT_RIGHT
    ctypedef struct lt_bpe_merge:
        pass
    ctypedef struct lt_bpe:
        lt_bpe_merge* merges
        bint byte_level
        bint byte_fallback
        int32_t unknown_id
        bint fuse_unknown
        bint ignore_merges
        int32_t byte_ids[4][256]
    ctypedef struct lt_bpe_token:
        const uint8_t* data
        int32_t length
        int32_t id
    ctypedef struct lt_bpe_pair:
        const uint8_t* left
        const uint8_t* right
        int32_t left_length
        int32_t right_length
    ctypedef struct lt_bpe_source:
        const lt_bpe_token* tokens
        size_t token_count
        const lt_bpe_pair* merges
        size_t merge_count
        const uint8_t* prefix
        const uint8_t* suffix
        int32_t prefix_length
        int32_t suffix_length
    int lt_bpe_build(lt_bpe* model, const lt_bpe_source* source, size_t* failed)
    uint32_t lt_byte_character(uint8_t byte)


cdef int _merge_sides(object merge, Py_ssize_t index, lt_bpe_pair* out) except -1:
    """Point out at the two sides of a merge, written "left right" or ["left", "right"]."""
    cdef Py_ssize_t size = 0
    cdef const uint8_t* data
    cdef const uint8_t* space
    try:
        if type(merge) is str:
            data = <const uint8_t*>PyUnicode_AsUTF8AndSize(merge, &size)
            space = <const uint8_t*>memchr(data, 32, size)
            if space == NULL or memchr(space + 1, 32, size - (space + 1 - data)) != NULL:
                raise TokenizerError(f"model.merges[{index}] is {merge[:60]!r}; expected two tokens with a space between")
            out.left, out.left_length = data, <int32_t>(space - data)
            out.right, out.right_length = space + 1, <int32_t>(size - (space + 1 - data))
            return 0
        if type(merge) is list and len(merge) == 2 and type(merge[0]) is str and type(merge[1]) is str:
            out.left = <const uint8_t*>PyUnicode_AsUTF8AndSize(merge[0], &size)
            out.left_length = <int32_t>size
            out.right = <const uint8_t*>PyUnicode_AsUTF8AndSize(merge[1], &size)
            out.right_length = <int32_t>size
            return 0
    except UnicodeEncodeError:
        raise TokenizerError(f"model.merges[{index}] has a lone surrogate") from None
    raise TokenizerError(f"model.merges[{index}] is {merge!r:.60}; expected two tokens")


cdef int _build_bpe(lt_bpe* model, dict vocabulary, list merges, bytes prefix, bytes suffix) except -1:
    """Build a model whose flags are set."""
    cdef lt_bpe_source source
    cdef size_t failed = 0
    cdef Py_ssize_t count = len(vocabulary), merge_count = len(merges), i = 0, size = 0
    cdef lt_bpe_token* tokens = <lt_bpe_token*>malloc((count + 1) * sizeof(lt_bpe_token))
    cdef lt_bpe_pair* pairs = <lt_bpe_pair*>malloc((merge_count + 1) * sizeof(lt_bpe_pair))
    cdef int status
    try:
        if tokens == NULL or pairs == NULL:
            raise MemoryError
        for token, token_id in vocabulary.items():
            tokens[i].data = <const uint8_t*>PyUnicode_AsUTF8AndSize(token, &size)
            tokens[i].length = <int32_t>size
            tokens[i].id = token_id
            i += 1
        for i in range(merge_count):
            _merge_sides(merges[i], i, &pairs[i])
        source.tokens, source.token_count = tokens, count
        source.merges, source.merge_count = pairs, merge_count
        source.prefix, source.prefix_length = <const uint8_t*><const char*>prefix, <int32_t>len(prefix)
        source.suffix, source.suffix_length = <const uint8_t*><const char*>suffix, <int32_t>len(suffix)
        with nogil:
            status = lt_bpe_build(model, &source, &failed)
    finally:
        free(tokens)
        free(pairs)
    if status == LT_OK:
        return 0
    if status == LT_BPE_SHORT_RIGHT:
        raise TokenizerError(f"model.merges[{failed}] is {merges[failed]!r:.60}: its right side is shorter than the prefix")
    for wrong, part in (
        (LT_BPE_LEFT_MISSING, "left side"), (LT_BPE_RIGHT_MISSING, "right side"), (LT_BPE_MERGED_MISSING, "result")
    ):
        if status == wrong:
            raise TokenizerError(f"model.merges[{failed}] is {merges[failed]!r:.60}: its {part} is not in model.vocab")
    raise MemoryError
