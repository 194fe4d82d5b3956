"""Types of the tokenizers' C code."""

from collections.abc import Sequence
from typing import Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

UNICODE_TABLES_SOURCE: Final[str]
MAX_TEXT_CHARACTERS: Final[int]
MAX_STEPS: Final[int]

NORMALIZE_CLEAN: Final[int]
NORMALIZE_SPACE_CJK: Final[int]
NORMALIZE_NFD: Final[int]
NORMALIZE_NFC: Final[int]
NORMALIZE_NFKD: Final[int]
NORMALIZE_NFKC: Final[int]
NORMALIZE_DROP_NONSPACING: Final[int]
NORMALIZE_DROP_COMBINING: Final[int]
NORMALIZE_LOWERCASE: Final[int]
NORMALIZE_STRIP_LEFT: Final[int]
NORMALIZE_STRIP_RIGHT: Final[int]

NORMALIZE_NMT: Final[int]
NORMALIZE_PRECOMPILED: Final[int]
NORMALIZE_REPLACE: Final[int]
NORMALIZE_PREPEND: Final[int]

SPLIT_METASPACE: Final[int]
PREPEND_ALWAYS: Final[int]
PREPEND_FIRST: Final[int]
PREPEND_NEVER: Final[int]

SPLIT_WHITESPACE: Final[int]
SPLIT_WORD_RUNS: Final[int]
SPLIT_PUNCTUATION_ISOLATED: Final[int]
SPLIT_PUNCTUATION_REMOVED: Final[int]
SPLIT_PUNCTUATION_CONTIGUOUS: Final[int]
SPLIT_PUNCTUATION_TO_PREVIOUS: Final[int]
SPLIT_PUNCTUATION_TO_NEXT: Final[int]
SPLIT_GPT2: Final[int]
SPLIT_QWEN2: Final[int]
SPLIT_QWEN35: Final[int]
SPLIT_LLAMA3: Final[int]
SPLIT_DIGITS: Final[int]
SPLIT_DIGIT_RUNS: Final[int]
SPLIT_EXTERNAL: Final[int]
SPLIT_PREFIX_SPACE: Final[int]
SPLIT_BYTE_LEVEL: Final[int]

BYTE_CHARACTERS: Final[str]

ADDED_SINGLE_WORD: Final[int]
ADDED_STRIP_LEFT: Final[int]
ADDED_STRIP_RIGHT: Final[int]
ADDED_SPECIAL: Final[int]

LONGEST_FIRST: Final[int]
ONLY_FIRST: Final[int]
ONLY_SECOND: Final[int]
MAX_THREADS: Final[int]

Encoded = tuple[
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.bool_],
]

class PieceTable:
    """The pieces of a vocabulary, whose ids are their places, with their scores; immutable."""

    text: bytes
    ends: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float64]
    lowest_score: float
    def __init__(self, text: bytes, ends: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, piece: object) -> bool: ...
    def __getitem__(self, piece: str) -> int: ...
    @overload
    def get(self, piece: str) -> int | None: ...
    @overload
    def get(self, piece: str, default: T) -> int | T: ...
    def values(self) -> range: ...
    def piece(self, piece_id: int) -> str | None: ...

def read_pieces(json: bytes, max_piece_bytes: int, max_text_bytes: int) -> tuple[PieceTable, int, int] | None: ...
def read_protobuf_pieces(
    data: bytes, max_pieces: int
) -> tuple[bytes, npt.NDArray[np.int32], npt.NDArray[np.float64], bytes, bytes] | None: ...

class Template:
    """Where special tokens stand around one text or a pair, with the token types."""

    special_count: int
    def __init__(self, parts: list[tuple[int, int, int]]) -> None: ...

class Pipeline:
    """Normalizer, pre-tokenizer, model and added tokens; immutable once finished.

    A step is one of this module's constants, or a tuple of one and what it works with.
    """

    def __init__(
        self, normalize_steps: Sequence[int | tuple[object, ...]], split_steps: Sequence[int | tuple[object, ...]]
    ) -> None: ...
    def set_unigram(self, pieces: PieceTable, unknown_id: int, unknown_score: float, byte_fallback: bool) -> None: ...
    def set_bpe(
        self,
        vocabulary: dict[str, int],
        merges: list[str] | list[list[str]],
        *,
        unknown_id: int,
        prefix: str,
        suffix: str,
        fuse_unknown: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        byte_level: bool,
    ) -> None: ...
    def has_all_bytes(self) -> bool: ...
    def set_trimming(self, tokens: dict[str, int], highest_id: int, by_text: list[int], keeps_prefix: bool) -> None: ...
    def set_wordpiece(
        self, vocabulary: dict[str, int], unknown_id: int, prefix: str, max_word_characters: int
    ) -> None: ...
    def finish(self, raw_tokens: list[tuple[str, int, int]], normalized_tokens: list[tuple[str, int, int]]) -> None: ...
    def normalize(self, text: str) -> str: ...
    def split(self, text: str) -> tuple[str, list[int], list[tuple[int, int]]]: ...
    def encode(
        self,
        texts: tuple[str, ...],
        seconds: tuple[str | None, ...] | None,
        single: Template,
        pair: Template,
        max_tokens: int,
        strategy: int,
        cut_left: bool,
        find_special: bool,
        want_offsets: bool,
        threads: int,
        plain: bytes | None = None,
    ) -> Encoded: ...
