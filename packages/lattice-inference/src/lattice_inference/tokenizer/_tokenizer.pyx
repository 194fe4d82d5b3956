"""Binding of the tokenizers' C code: checks and holds Python objects, drops the GIL, calls."""

import sys

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND
from libc.stdint cimport SIZE_MAX, int32_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy, memset

cimport numpy as cnp

import numpy as np

from lattice_inference.errors import InvalidInputError, TokenizerError

cnp.import_array()


cdef extern from "Python.h":
    ctypedef uint32_t Py_UCS4
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyUnicode_FromKindAndData(int kind, const void* data, Py_ssize_t size)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    Py_UCS4 PyUnicode_READ_CHAR(object text, Py_ssize_t index)
    void PyErr_SetObject(object type, object value)


cdef extern from "unicode.h":
    const char lt_unicode_tables_source[]
    int LT_MAX_DECOMPOSITION
    int LT_UNICODE_WHITESPACE
    bint lt_has(uint32_t code_point, uint32_t flags)


cdef extern from "step.h" nogil:
    ctypedef struct lt_step:
        uint8_t kind
        const void* argument


cdef extern from "text.h" nogil:
    int LT_OK
    int LT_NO_UNKNOWN
    int LT_TEXT_TOO_LONG
    ctypedef struct lt_input:
        const void* data
        int32_t length
        uint8_t kind
        const uint8_t* plain
    ctypedef struct lt_character:
        uint32_t code_point
        int32_t source
    ctypedef struct lt_text:
        lt_character* items
        size_t size
    ctypedef struct lt_span:
        int32_t start
        int32_t end
    ctypedef struct lt_spans:
        lt_span* items
        size_t size
    ctypedef struct lt_token:
        int32_t id
        int32_t start
        int32_t end
    ctypedef struct lt_scratch:
        lt_text text
        lt_spans spans
        const lt_text* words
    void lt_scratch_free(lt_scratch* scratch)
    int lt_spans_push(lt_spans* spans, int32_t start, int32_t end)


cdef extern from "trie.h" nogil:
    int LT_TRIE_ROOT
    int LT_TRIE_NONE
    ctypedef struct lt_trie_node:
        pass
    ctypedef struct lt_trie:
        lt_trie_node* nodes
    int lt_trie_build(lt_trie* trie, const uint8_t* data, const int32_t* offsets, const int32_t* values, int32_t count)
    int32_t lt_trie_step(const lt_trie_node* nodes, int32_t node, uint8_t byte)


cdef extern from "added_tokens.h" nogil:
    int LT_ADDED_SINGLE_WORD
    int LT_ADDED_STRIP_LEFT
    int LT_ADDED_STRIP_RIGHT
    int LT_ADDED_SPECIAL
    ctypedef struct lt_added_tokens:
        lt_trie trie
        const int32_t* ids
        const uint8_t* flags
        uint8_t* can_start


cdef extern from "step.h" nogil:
    ctypedef struct lt_step:
        uint8_t kind
        const void* argument


cdef extern from "unigram.h" nogil:
    ctypedef struct lt_unigram:
        const lt_trie_node* nodes
        const double* scores
        double unknown_score
        int32_t unknown_id
        bint byte_fallback
        int32_t* byte_ids


cdef extern from "normalize.h" nogil:
    int LT_NORMALIZE_CLEAN
    int LT_NORMALIZE_SPACE_CJK
    int LT_NORMALIZE_NFD
    int LT_NORMALIZE_NFC
    int LT_NORMALIZE_NFKD
    int LT_NORMALIZE_NFKC
    int LT_NORMALIZE_DROP_NONSPACING
    int LT_NORMALIZE_DROP_COMBINING
    int LT_NORMALIZE_LOWERCASE
    int LT_NORMALIZE_STRIP_LEFT
    int LT_NORMALIZE_STRIP_RIGHT
    int LT_NORMALIZE_NMT
    int LT_NORMALIZE_PRECOMPILED
    int LT_NORMALIZE_REPLACE
    int LT_NORMALIZE_PREPEND
    int LT_NORMALIZE_STEPS
    int lt_normalize(const lt_step* steps, size_t count, lt_scratch* scratch)


cdef extern from "pre_tokenize.h" nogil:
    int LT_SPLIT_WHITESPACE
    int LT_SPLIT_WORD_RUNS
    int LT_SPLIT_PUNCTUATION_ISOLATED
    int LT_SPLIT_PUNCTUATION_REMOVED
    int LT_SPLIT_PUNCTUATION_CONTIGUOUS
    int LT_SPLIT_PUNCTUATION_TO_PREVIOUS
    int LT_SPLIT_PUNCTUATION_TO_NEXT
    int LT_SPLIT_METASPACE
    int LT_SPLIT_GPT2
    int LT_SPLIT_QWEN2
    int LT_SPLIT_QWEN35
    int LT_SPLIT_LLAMA3
    int LT_SPLIT_DIGITS
    int LT_SPLIT_DIGIT_RUNS
    int LT_SPLIT_EXTERNAL
    int LT_SPLIT_PREFIX_SPACE
    int LT_SPLIT_BYTE_LEVEL
    int LT_SPLIT_STEPS
    int LT_EXTERNAL_FAILED
    ctypedef struct lt_external_splitter:
        int (*function)(void* context, const lt_character* characters, int32_t size, int32_t offset,
                        lt_spans* out) noexcept
        void* context
    int lt_pre_tokenize(const lt_step* steps, size_t count, const lt_text* text, int32_t start, int32_t end,
                        lt_scratch* scratch)


include "bpe_model.pxi"


cdef extern from "pipeline.h" nogil:
    int LT_MAX_STEPS
    int LT_TRIM_BY_TEXT
    ctypedef enum lt_model_kind:
        LT_MODEL_WORDPIECE
        LT_MODEL_UNIGRAM
        LT_MODEL_BPE
    ctypedef struct lt_trim:
        uint16_t leading
        uint16_t trailing
    ctypedef struct lt_wordpiece:
        lt_trie vocabulary
        int32_t continuation_root
        int32_t unknown_id
        int32_t max_word_characters
    ctypedef struct lt_pipeline:
        lt_added_tokens raw_added
        lt_added_tokens normalized_added
        lt_step* normalize_steps
        size_t normalize_count
        lt_step* split_steps
        size_t split_count
        lt_model_kind kind
        lt_wordpiece model
        lt_bpe bpe
        lt_trim* trims
        bint trim_keeps_prefix
        lt_unigram unigram
    int lt_pipeline_finish(lt_pipeline* pipeline, lt_scratch* scratch)
    void lt_pipeline_free(lt_pipeline* pipeline)
    int lt_load(const lt_input* text, int32_t start, int32_t end, lt_scratch* scratch)


include "constants.pxi"

LONGEST_FIRST, ONLY_FIRST, ONLY_SECOND = 0, 1, 2


cdef int _describe(object text, lt_input* out, Py_ssize_t index) except -1:
    """Point out at the characters of text, which the caller keeps alive."""
    if not isinstance(text, str):
        raise InvalidInputError(f"text {index} is of type {type(text).__name__}; expected str")
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(text)
    if length > MAX_TEXT_CHARACTERS:
        raise InvalidInputError(
            f"text {index} has {length:,} characters; the limit is {MAX_TEXT_CHARACTERS:,}: split it"
        )
    out.data = PyUnicode_DATA(text)
    out.length = <int32_t>length
    out.kind = <uint8_t>PyUnicode_KIND(text)
    out.plain = NULL
    return 0


include "batch.pxi"


cdef int _split_outside(void* context, const lt_character* characters, int32_t size, int32_t offset,
                        lt_spans* out) noexcept with gil:
    """Call context, a function from a text to its words' ranges.

    An exception is left set for the binding to pass on.
    """
    try:
        text = "".join([chr(characters[i].code_point) for i in range(size)])
        for start, end in (<object>context)(text):
            if not 0 <= start <= end <= size:
                raise ValueError(f"a splitter gives the range {start} to {end} of {size} characters")
            if start < end and lt_spans_push(out, offset + <int32_t>start, offset + <int32_t>end) != LT_OK:
                raise MemoryError
    except BaseException as error:
        PyErr_SetObject(type(error), error)
        return LT_EXTERNAL_FAILED
    return LT_OK


include "piece_table.pxi"


cdef class Template:
    """Where special tokens stand around one text or a pair, with the token types."""

    cdef lt_template_part* parts
    cdef Py_ssize_t count
    cdef readonly Py_ssize_t special_count

    def __cinit__(self, parts):
        self.count = len(parts)
        self.special_count = 0
        self.parts = <lt_template_part*>PyMem_Malloc(max(1, self.count) * sizeof(lt_template_part))
        if self.parts == NULL:
            raise MemoryError
        for i, (sequence, token_id, type_id) in enumerate(parts):
            if not -1 <= sequence <= 1:
                raise ValueError(f"template part {i} names sequence {sequence}; expected -1, 0 or 1")
            self.parts[i] = lt_template_part(sequence, token_id, type_id)
            self.special_count += sequence < 0

    def __dealloc__(self):
        PyMem_Free(self.parts)


cdef inline bint _is_trimmed(Py_UCS4 character):
    return character == 0x120 or lt_has(character, LT_UNICODE_WHITESPACE)


cdef class Pipeline:
    """Normalizer, pre-tokenizer, model and added tokens, ready to run; immutable once finished.

    A step is one of this module's constants, or a tuple of one and what it works with.
    """

    cdef lt_pipeline pipeline
    cdef list kept_alive  # what the pipeline points into
    cdef object splitter  # the first external splitter, which is told of each call, or None
    cdef bint finished
    cdef bint has_model

    def __cinit__(self, normalize_steps, split_steps):
        memset(&self.pipeline, 0, sizeof(lt_pipeline))
        self.kept_alive = []
        _set_steps(self.pipeline.normalize_steps, normalize_steps, True, self.kept_alive)
        _set_steps(self.pipeline.split_steps, split_steps, False, self.kept_alive)
        self.pipeline.normalize_count = len(normalize_steps)
        self.pipeline.split_count = len(split_steps)
        self.splitter = next((step[1] for step in split_steps if isinstance(step, tuple) and step[0] == LT_SPLIT_EXTERNAL), None)

    def __dealloc__(self):
        lt_pipeline_free(&self.pipeline)

    cdef int _build(self, lt_trie* trie, dict values) except -1:
        """Build a trie from strings with their values."""
        keys = sorted(values)  # str compares by code point, which is the bytewise order of UTF-8 too
        encoded = [key.encode() for key in keys]
        data = b"".join(encoded)
        cdef Py_ssize_t count = len(keys), i, end = 0
        cdef int32_t* numbers = <int32_t*>malloc((2 * count + 1) * sizeof(int32_t))
        if numbers == NULL:
            raise MemoryError
        try:
            numbers[0] = 0
            for i in range(count):
                end += len(<bytes>encoded[i])
                numbers[i + 1] = <int32_t>end
                numbers[count + 1 + i] = values[keys[i]]
            if lt_trie_build(trie, <const uint8_t*><const char*>data, numbers, numbers + count + 1, <int32_t>count) != LT_OK:
                raise MemoryError
        finally:
            free(numbers)
        return 0

    cdef int _take_model(self, lt_model_kind kind) except -1:
        if self.has_model:
            raise ValueError("the model is set already")
        self.has_model = True
        self.pipeline.kind = kind
        return 0

    def set_unigram(self, PieceTable pieces not None, Py_ssize_t unknown_id, double unknown_score, bint byte_fallback):
        """Set the model: the pieces, the id (-1: none) and the score of an unknown token."""
        if not -1 <= unknown_id < len(pieces):
            raise ValueError(f"unknown id {unknown_id} among {len(pieces)} pieces")
        self._take_model(LT_MODEL_UNIGRAM)
        self.kept_alive.append(pieces)
        self.pipeline.unigram.nodes = pieces.pieces.trie.nodes
        self.pipeline.unigram.scores = pieces.pieces.scores
        self.pipeline.unigram.unknown_id = <int32_t>unknown_id
        self.pipeline.unigram.unknown_score = unknown_score
        self.pipeline.unigram.byte_fallback = byte_fallback
        for byte in range(256):
            self.pipeline.unigram.byte_ids[byte] = pieces.get(f"<0x{byte:02X}>", -1)

    def set_bpe(self, dict vocabulary, list merges, *, int unknown_id, str prefix, str suffix, bint fuse_unknown,
                bint byte_fallback, bint ignore_merges, bint byte_level):
        """Set the model: tokens with their ids, and merges by rank; unknown_id -1 is none."""
        self._take_model(LT_MODEL_BPE)
        cdef lt_bpe* model = &self.pipeline.bpe
        model.unknown_id = unknown_id
        model.fuse_unknown = fuse_unknown
        model.byte_fallback = byte_fallback
        model.ignore_merges = ignore_merges
        model.byte_level = byte_level
        _build_bpe(model, vocabulary, merges, prefix.encode(), suffix.encode())

    def has_all_bytes(self):
        """Say whether every byte is a token of a byte-level model, so that it knows every text."""
        cdef int byte
        for byte in range(256):
            if any([self.pipeline.bpe.byte_ids[variant][byte] < 0 for variant in range(4)]):
                return False
        return bool(self.pipeline.bpe.byte_level)

    def set_trimming(self, dict tokens, Py_ssize_t highest_id, by_text, bint keeps_prefix):
        """Trim white space from the ranges of tokens (token -> id, up to highest_id).

        by_text: ids whose matches vary.
        """
        cdef lt_trim* trims = <lt_trim*>calloc(highest_id + 1, sizeof(lt_trim))
        cdef Py_ssize_t size, start, end
        cdef int32_t token_id
        if trims == NULL:
            raise MemoryError
        free(self.pipeline.trims)
        self.pipeline.trims = trims
        self.pipeline.trim_keeps_prefix = keeps_prefix
        for token, number in tokens.items():
            token_id = number
            size = PyUnicode_GET_LENGTH(token)
            start, end = 0, size
            while start < size and _is_trimmed(PyUnicode_READ_CHAR(token, start)):
                start += 1
            while end > 0 and _is_trimmed(PyUnicode_READ_CHAR(token, end - 1)):
                end -= 1
            trims[token_id].leading = <uint16_t>start
            trims[token_id].trailing = <uint16_t>(size - end)
        for number in by_text:
            trims[<int32_t>number].leading = LT_TRIM_BY_TEXT

    def set_wordpiece(self, dict vocabulary, Py_ssize_t unknown_id, str prefix, Py_ssize_t max_word_characters):
        """Set the model: non-empty pieces with their ids, and the prefix of continuing pieces."""
        self._take_model(LT_MODEL_WORDPIECE)
        self._build(&self.pipeline.model.vocabulary, vocabulary)
        cdef int32_t node = LT_TRIE_ROOT
        for byte in prefix.encode():
            if node >= 0:
                node = lt_trie_step(self.pipeline.model.vocabulary.nodes, node, byte)
        self.pipeline.model.continuation_root = node
        self.pipeline.model.unknown_id = <int32_t>unknown_id
        self.pipeline.model.max_word_characters = <int32_t>min(max_word_characters, MAX_TEXT_CHARACTERS)

    cdef int _set_added(self, lt_added_tokens* added, list tokens) except -1:
        ids = bytearray()
        flags = bytearray()
        for content, token_id, token_flags in tokens:
            ids += (<int>token_id).to_bytes(4, "little")
            flags.append(token_flags)
            added.can_start[ord(content[0]) & 0xFF] = 1
        kept_ids, kept_flags = bytes(ids), bytes(flags)
        self.kept_alive += [kept_ids, kept_flags]
        added.ids = <const int32_t*><const char*>kept_ids
        added.flags = <const uint8_t*><const char*>kept_flags
        return self._build(&added.trie, {content: i for i, (content, _, _) in enumerate(tokens)})

    def finish(self, list raw_tokens, list normalized_tokens):
        """Set the added tokens, (content, id, flags), and make the pipeline usable.

        Contents are distinct and not empty.
        """
        if self.finished or not self.has_model:
            raise ValueError("a pipeline is finished once, with a model")
        self._set_added(&self.pipeline.raw_added, raw_tokens)
        self._set_added(&self.pipeline.normalized_added, normalized_tokens)
        cdef lt_scratch scratch
        memset(&scratch, 0, sizeof(lt_scratch))
        cdef int status = lt_pipeline_finish(&self.pipeline, &scratch)
        lt_scratch_free(&scratch)
        if status != LT_OK:
            raise MemoryError
        self.finished = True

    def normalize(self, str text):
        """Return the normalized text."""
        cdef lt_input view
        _describe(text, &view, 0)
        cdef lt_scratch scratch
        memset(&scratch, 0, sizeof(lt_scratch))
        cdef size_t i
        try:
            if (lt_load(&view, 0, view.length, &scratch) != LT_OK
                    or lt_normalize(self.pipeline.normalize_steps, self.pipeline.normalize_count, &scratch) != LT_OK):
                raise MemoryError
            return "".join([chr(scratch.text.items[i].code_point) for i in range(scratch.text.size)])
        finally:
            lt_scratch_free(&scratch)

    def split(self, str text):
        """Normalize and pre-tokenize text.

        Returns the changed text, each character's source, and the words' ranges in it.
        """
        cdef lt_input view
        _describe(text, &view, 0)
        cdef lt_scratch scratch
        memset(&scratch, 0, sizeof(lt_scratch))
        cdef size_t i
        cdef int status
        if self.splitter is not None:
            self.splitter.begin()
        try:
            if (lt_load(&view, 0, view.length, &scratch) != LT_OK
                    or lt_normalize(self.pipeline.normalize_steps, self.pipeline.normalize_count, &scratch) != LT_OK):
                raise MemoryError
            status = lt_pre_tokenize(self.pipeline.split_steps, self.pipeline.split_count, &scratch.text, 0,
                                     <int32_t>scratch.text.size, &scratch)
            if status == LT_EXTERNAL_FAILED:
                _pass_on_error()
            if status != LT_OK:
                raise MemoryError
            normalized = "".join([chr(scratch.words.items[i].code_point) for i in range(scratch.words.size)])
            sources = [scratch.words.items[i].source for i in range(scratch.words.size)]
            words = [(scratch.spans.items[i].start, scratch.spans.items[i].end) for i in range(scratch.spans.size)]
            return normalized, sources, words
        finally:
            lt_scratch_free(&scratch)

    def encode(self, tuple texts, tuple seconds, Template single not None, Template pair not None,
               Py_ssize_t max_tokens, int strategy, bint cut_left, bint find_special, bint want_offsets,
               int threads, bytes plain=None):
        """Encode texts: ids, offsets, type ids, boundaries, full counts, truncated.

        Offsets are None unless wanted; full counts are before truncation. seconds is None, or as long as texts and
        holds None where a text stands alone. max_tokens counts the template's special tokens; -1 is no limit. At most
        threads threads work on it. plain says of each character of the first text whether it can be no part of a
        special token.
        """
        if not self.finished:
            raise ValueError("the pipeline is not finished")
        cdef Py_ssize_t count = len(texts), i
        if seconds is not None and len(seconds) != count:
            raise ValueError("as many second texts as texts are needed")
        if not 0 <= strategy <= 2:
            raise ValueError(f"truncation strategy {strategy} does not exist")
        cdef lt_input few[4]
        cdef lt_input* inputs = few
        cdef lt_input* paired = NULL
        cdef lt_batches batches
        cdef lt_truncation truncation
        cdef lt_template single_parts
        cdef lt_template pair_parts
        cdef int status
        memset(&batches, 0, sizeof(lt_batches))
        truncation.max_tokens = <int32_t>min(max_tokens, 2**31 - 1)
        truncation.strategy = <lt_truncation_strategy>strategy
        truncation.cut_left = cut_left
        single_parts = lt_template(single.parts, single.count)
        pair_parts = lt_template(pair.parts, pair.count)
        boundaries = _new_array(count + 1, 0, cnp.NPY_INT32)
        counts = _new_array(count, 0, cnp.NPY_INT32)
        truncated = _new_array(count, 0, cnp.NPY_BOOL)
        cdef int32_t* boundary_data = <int32_t*>cnp.PyArray_DATA(boundaries)
        cdef int32_t* count_data = <int32_t*>cnp.PyArray_DATA(counts)
        cdef uint8_t* truncated_data = <uint8_t*>cnp.PyArray_DATA(truncated)
        if count > 2:
            inputs = <lt_input*>PyMem_Malloc(2 * count * sizeof(lt_input))
            if inputs == NULL:
                raise MemoryError
        try:
            for i in range(count):
                _describe(texts[i], &inputs[i], i)
            if plain is not None:
                if count != 1 or len(plain) != inputs[0].length:
                    raise ValueError("plain is for one text, a byte a character")
                inputs[0].plain = <const uint8_t*><const char*>plain
            if seconds is not None:
                paired = inputs + count
                for i in range(count):
                    if seconds[i] is None:
                        memset(&paired[i], 0, sizeof(lt_input))
                    else:
                        _describe(seconds[i], &paired[i], i)
            if self.splitter is not None:
                self.splitter.begin()
            with nogil:
                status = lt_encode_texts(&self.pipeline, pool, threads, inputs, paired, count, single_parts, pair_parts,
                                         truncation, find_special, &batches, boundary_data, count_data, truncated_data)
            if status != LT_OK:
                _raise(status, &batches, max_tokens)
            return (*_arrays(&batches, want_offsets), boundaries, counts, truncated)
        finally:
            lt_batches_free(&batches)
            if inputs != few:
                PyMem_Free(inputs)
