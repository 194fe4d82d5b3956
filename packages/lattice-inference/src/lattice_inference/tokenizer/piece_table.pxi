# Included by _tokenizer.pyx: the vocabulary of a Unigram model, and the arguments of steps that have some.


cdef extern from "pieces.h" nogil:
    int LT_PIECES_MALFORMED
    int LT_PIECES_BAD_TEXT
    int LT_PIECES_BAD_SCORE
    int LT_PIECES_TOO_LONG
    int LT_PIECES_TOO_MANY
    int LT_PIECES_REPEATED
    ctypedef struct lt_pieces:
        uint8_t* text
        int32_t* ends
        double* scores
        int32_t count
        double lowest_score
        lt_trie trie
        int32_t failed_piece
    int32_t lt_piece_start(const lt_pieces* pieces, int32_t id)
    int lt_pieces_push(lt_pieces* pieces, const uint8_t* text, size_t size, double score)
    int lt_pieces_index(lt_pieces* pieces)
    int32_t lt_pieces_find(const lt_pieces* pieces, const uint8_t* text, size_t size)
    void lt_pieces_free(lt_pieces* pieces)
    int lt_pieces_read(lt_pieces* pieces, const uint8_t* json, size_t size, size_t max_piece_bytes,
                       size_t max_text_bytes, size_t* start, size_t* end)
    bint lt_pieces_read_protobuf(lt_pieces* pieces, const uint8_t* data, size_t size, int32_t max_pieces,
                                 uint8_t* types, uint8_t* rest, size_t* rest_size)


cdef extern from "charsmap.h":
    ctypedef struct lt_charsmap:
        const uint32_t* units
        size_t unit_count
        const uint8_t* replacements
        size_t replacement_bytes


cdef extern from "replace.h":
    ctypedef struct lt_replacement:
        const uint32_t* literal
        size_t literal_size
        uint32_t character
        bint is_whitespace
        bint at_start
        bint at_end
        size_t minimum
        size_t maximum
        const uint32_t* content
        size_t content_size


cdef extern from "metaspace.h":
    int LT_PREPEND_ALWAYS
    int LT_PREPEND_FIRST
    int LT_PREPEND_NEVER
    int LT_PREPEND_SCHEMES
    ctypedef struct lt_metaspace:
        uint32_t replacement
        uint8_t scheme
        bint split


NORMALIZE_NMT = LT_NORMALIZE_NMT
NORMALIZE_PRECOMPILED = LT_NORMALIZE_PRECOMPILED
NORMALIZE_REPLACE = LT_NORMALIZE_REPLACE
NORMALIZE_PREPEND = LT_NORMALIZE_PREPEND
SPLIT_METASPACE = LT_SPLIT_METASPACE
_NORMALIZE_ARGUMENTS = {LT_NORMALIZE_PRECOMPILED, LT_NORMALIZE_REPLACE, LT_NORMALIZE_PREPEND}
_SPLIT_ARGUMENTS = {LT_SPLIT_EXTERNAL, LT_SPLIT_METASPACE}
PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER = LT_PREPEND_ALWAYS, LT_PREPEND_FIRST, LT_PREPEND_NEVER


cdef class PieceTable:
    """The pieces of a vocabulary, whose ids are their places, with their scores; immutable.

    Behaves like a mapping of pieces to ids as far as tokenizers need one. Of two equal pieces the later one counts.
    """

    cdef lt_pieces pieces

    def __cinit__(self):
        memset(&self.pieces, 0, sizeof(lt_pieces))

    def __init__(self, bytes text, ends, scores):
        """Make a table of concatenated UTF-8 pieces, with each end (int32) and score (float64)."""
        cdef const int32_t[::1] end_view = np.ascontiguousarray(ends, np.int32)
        cdef const double[::1] score_view = np.ascontiguousarray(scores, np.float64)
        cdef Py_ssize_t count = end_view.shape[0], i
        cdef const uint8_t* data = <const uint8_t*><const char*>text
        cdef int32_t start = 0, end
        cdef int status = LT_OK
        if score_view.shape[0] != count:
            raise ValueError(f"{count} ends and {score_view.shape[0]} scores")
        text.decode()  # raises if it is not UTF-8
        if self.pieces.count:
            raise ValueError("the table is made already")
        for i in range(count):
            end = end_view[i]
            if not start <= end <= len(text):
                raise ValueError(f"piece {i} ends at {end}, outside {start} to {len(text)}")
            status = lt_pieces_push(&self.pieces, data + start, end - start, score_view[i])
            if status != LT_OK:
                raise MemoryError
            start = end
        self._index()

    def __dealloc__(self):
        lt_pieces_free(&self.pieces)

    def __reduce__(self):
        return PieceTable, (self.text, self.ends, self.scores)

    cdef int _index(self) except -1:
        cdef int status
        with nogil:
            status = lt_pieces_index(&self.pieces)
        if status != LT_OK:
            raise MemoryError
        return 0

    @property
    def text(self):
        """The pieces in UTF-8, laid end to end."""
        cdef int32_t size = self.pieces.ends[self.pieces.count - 1] if self.pieces.count else 0
        return (<const char*>self.pieces.text)[:size] if size else b""

    @property
    def ends(self):
        """(n,) int32: where in the text each piece ends."""
        result = _new_array(self.pieces.count, 0, cnp.NPY_INT32)
        if self.pieces.count:
            memcpy(cnp.PyArray_DATA(result), self.pieces.ends, self.pieces.count * sizeof(int32_t))
        return result

    @property
    def scores(self):
        """(n,) float64: the pieces' scores."""
        result = _new_array(self.pieces.count, 0, cnp.NPY_FLOAT64)
        if self.pieces.count:
            memcpy(cnp.PyArray_DATA(result), self.pieces.scores, self.pieces.count * sizeof(double))
        return result

    @property
    def lowest_score(self):
        """The lowest score of a piece; infinity if there are none."""
        return self.pieces.lowest_score

    def __len__(self):
        return self.pieces.count

    def get(self, str piece, default=None):
        """Return the id of a piece, or default."""
        try:
            encoded = piece.encode()
        except UnicodeEncodeError:
            return default
        cdef int32_t found = lt_pieces_find(&self.pieces, <const uint8_t*><const char*>encoded, len(encoded))
        return default if found < 0 else found

    def values(self):
        """The ids."""
        return range(self.pieces.count)

    def __getitem__(self, str piece):
        found = self.get(piece)
        if found is None:
            raise KeyError(piece)
        return found

    def __contains__(self, piece):
        return isinstance(piece, str) and self.get(piece) is not None

    def piece(self, Py_ssize_t piece_id):
        """Return the piece with an id, or None if there is none."""
        if not 0 <= piece_id < self.pieces.count:
            return None
        cdef int32_t start = lt_piece_start(&self.pieces, <int32_t>piece_id)
        return (<const char*>self.pieces.text)[start : self.pieces.ends[piece_id]].decode()


_PIECE_FAILURES = {
    LT_PIECES_MALFORMED: "is not a pair of a string and a number",
    LT_PIECES_BAD_TEXT: "has a text that is not Unicode: invalid UTF-8, or half of a surrogate pair",
    LT_PIECES_BAD_SCORE: "has a score that is too large a number",
}


def read_pieces(bytes json, Py_ssize_t max_piece_bytes, Py_ssize_t max_text_bytes):
    """Take the pieces of a Unigram model out of a tokenizer.json's bytes.

    Returns the table and where the array stands, (table, start, end), or None if there is no such array. Raises
    TokenizerError for an array that is not of [string, number], or beyond the limits.
    """
    cdef PieceTable table = PieceTable.__new__(PieceTable)
    cdef size_t start, end, size = len(json)
    cdef const uint8_t* data = <const uint8_t*><const char*>json
    cdef int status
    with nogil:
        status = lt_pieces_read(&table.pieces, data, size, max_piece_bytes, max_text_bytes, &start, &end)
    if status == LT_PIECES_REPEATED:
        raise TokenizerError("model.vocab is there twice")
    if status == LT_PIECES_TOO_LONG:
        raise TokenizerError(f"model.vocab[{table.pieces.failed_piece}] has more than {max_piece_bytes:,} bytes")
    if status == LT_PIECES_TOO_MANY:
        raise TokenizerError(f"model.vocab has more than {max_text_bytes:,} bytes of tokens, the limit")
    if status in _PIECE_FAILURES:
        raise TokenizerError(f"model.vocab[{table.pieces.failed_piece}] {_PIECE_FAILURES[status]}")
    if status != LT_OK:
        raise MemoryError
    if end == 0:
        return None
    table._index()
    return table, start, end


def read_protobuf_pieces(bytes data, Py_ssize_t max_pieces):
    """Take the pieces out of a SentencePiece model's bytes.

    Returns (text, ends, scores, types, the other fields' bytes), or None if there is anything unusual in the message.
    """
    cdef PieceTable table = PieceTable.__new__(PieceTable)
    cdef size_t size = len(data), rest_size = 0
    cdef const uint8_t* start = <const uint8_t*><const char*>data
    cdef int32_t limit = <int32_t>min(max_pieces, <Py_ssize_t>(size // 2))  # a piece's field takes two bytes at least
    cdef bytearray types = bytearray(limit)
    cdef bytearray rest = bytearray(size)
    cdef uint8_t* type_data = <uint8_t*><char*>types
    cdef uint8_t* rest_data = <uint8_t*><char*>rest
    cdef bint good
    with nogil:
        good = lt_pieces_read_protobuf(&table.pieces, start, size, limit, type_data, rest_data, &rest_size)
    if not good:
        return None
    text = table.text
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text, table.ends, table.scores, bytes(types[: table.pieces.count]), bytes(rest[:rest_size])


cdef bytes _code_points(str text):
    return text.encode("utf-32-le" if sys.byteorder == "little" else "utf-32-be")


cdef bytes _normalize_argument(int kind, tuple values, list kept_alive):
    """Return the C struct of a normalizer step's argument as bytes.

    kept_alive gets what it points to.
    """
    cdef lt_charsmap charsmap
    cdef lt_replacement replacement
    memset(&replacement, 0, sizeof(lt_replacement))
    if kind == LT_NORMALIZE_PRECOMPILED:
        units, replacements = values
        kept_alive += [units, replacements]
        charsmap.units = <const uint32_t*><const char*><bytes>units
        charsmap.unit_count = len(units) // 4
        charsmap.replacements = <const uint8_t*><const char*><bytes>replacements
        charsmap.replacement_bytes = len(replacements)
        return (<const char*>&charsmap)[:sizeof(lt_charsmap)]
    literal, character, minimum, maximum, at_start, at_end, content = values
    content, literal = _code_points(content), _code_points(literal)
    kept_alive += [literal, content]
    replacement.literal = <const uint32_t*><const char*><bytes>literal
    replacement.literal_size = len(literal) // 4
    replacement.character = ord(character) if character else 0
    replacement.is_whitespace = not character
    replacement.minimum = max(1, minimum)
    replacement.maximum = SIZE_MAX if maximum is None else max(1, maximum)
    replacement.at_start = at_start
    replacement.at_end = at_end
    replacement.content = <const uint32_t*><const char*><bytes>content
    replacement.content_size = len(content) // 4
    return (<const char*>&replacement)[:sizeof(lt_replacement)]


cdef bytes _split_argument(int kind, tuple values, list kept_alive):
    """Return the C struct of a pre-tokenizer step's argument as bytes.

    kept_alive gets what it points to.
    """
    cdef lt_metaspace metaspace
    cdef lt_external_splitter external
    if kind == LT_SPLIT_EXTERNAL:
        kept_alive.append(values)
        external.function = _split_outside
        external.context = <void*>values[0]
        return (<const char*>&external)[:sizeof(lt_external_splitter)]
    character, scheme, split = values
    if not 0 <= scheme < LT_PREPEND_SCHEMES:
        raise ValueError(f"prepend scheme {scheme} does not exist")
    metaspace.replacement = ord(character)
    metaspace.scheme = scheme
    metaspace.split = split
    return (<const char*>&metaspace)[:sizeof(lt_metaspace)]


cdef int _set_steps(lt_step* out, steps, bint normalize, list kept_alive) except -1:
    """Fill in steps: an int, or a tuple of an int and what it works with."""
    if len(steps) > LT_MAX_STEPS:
        raise ValueError(f"at most {LT_MAX_STEPS} steps, got {len(steps)}")
    limit, with_argument = (LT_NORMALIZE_STEPS, _NORMALIZE_ARGUMENTS) if normalize else (LT_SPLIT_STEPS, _SPLIT_ARGUMENTS)
    for i, step in enumerate(steps):
        kind, values = (step[0], step[1:]) if isinstance(step, tuple) else (step, ())
        if not 0 <= kind < limit or (kind in with_argument) != bool(values):
            raise ValueError(f"{step!r} is not a known step")
        out[i].kind = kind
        out[i].argument = NULL
        if values:
            if normalize:
                argument = _normalize_argument(kind, values, kept_alive)
            else:
                argument = _split_argument(kind, values, kept_alive)
            kept_alive.append(argument)
            out[i].argument = <const char*><bytes>argument
    return 0
