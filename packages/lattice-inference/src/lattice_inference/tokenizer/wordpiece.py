"""The WordPiece model: its vocabulary and how a tokenizer.json describes it."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer.fields import Fields

__all__ = ["MAX_TOKEN_CHARACTERS", "MAX_VOCABULARY_BYTES", "WordPiece", "check_vocabulary", "parse_wordpiece"]

MAX_TOKEN_CHARACTERS = 1024
"""Longest entry of a vocabulary; finding a piece looks at no more characters."""

MAX_VOCABULARY_BYTES = 16 * 2**20
"""All entries of a vocabulary together, in UTF-8; published ones have 0.2 to 3 million."""


@dataclass(frozen=True)
class WordPiece:
    """A WordPiece model: pieces that begin a word; those with ``prefix`` continue one.

    Words of more than ``max_word_characters`` characters, and words with a part in no piece, become ``unknown_token``.
    """

    vocabulary: dict[str, int]
    unknown_token: str
    prefix: str = "##"
    max_word_characters: int = 100

    def __post_init__(self) -> None:
        check_vocabulary(self.vocabulary, "model.vocab")
        if self.unknown_token not in self.vocabulary:
            raise TokenizerError(f"the unknown token {self.unknown_token!r:.80} is not in model.vocab")


def check_vocabulary(vocabulary: dict[str, int], where: str) -> None:
    """Raise :class:`TokenizerError` unless tokens have distinct, dense ids.

    An id may be missing here and there (a vocab.txt with a repeated line leaves such a hole), but fewer than half.
    """
    if not vocabulary:
        raise TokenizerError(f"{where} is empty")
    ids = vocabulary.values()
    if set(map(type, ids)) != {int}:
        token, token_id = next(item for item in vocabulary.items() if type(item[1]) is not int)
        raise TokenizerError(f"{where}[{token[:60]!r}] is {token_id!r:.60}; expected an integer id")
    limit = 2 * len(vocabulary)
    if min(ids) < 0 or max(ids) >= limit:
        token, token_id = next(item for item in vocabulary.items() if not 0 <= item[1] < limit)
        raise TokenizerError(
            f"{where}[{token[:60]!r}] is {token_id!r:.60}; {len(vocabulary):,} entries may have ids 0 to {limit - 1:,}"
        )
    if len(set(ids)) != len(vocabulary):
        by_id: dict[int, str] = {}
        for token, token_id in vocabulary.items():
            other = by_id.setdefault(token_id, token)
            if other != token:
                raise TokenizerError(f"{where} gives the id {token_id} to {other[:60]!r} and to {token[:60]!r}")
    longest = max(map(len, vocabulary))
    if longest > MAX_TOKEN_CHARACTERS:
        raise TokenizerError(f"{where} has a token of {longest:,} characters; the limit is {MAX_TOKEN_CHARACTERS:,}")
    try:
        total = len("".join(vocabulary).encode())
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{where} has a token with the lone surrogate {error.object[error.start]!r}") from None
    if total > MAX_VOCABULARY_BYTES:
        raise TokenizerError(f"{where} has {total:,} bytes of tokens; the limit is {MAX_VOCABULARY_BYTES:,}")


def parse_wordpiece(fields: Fields) -> WordPiece:
    """Return the model of a ``model`` entry of type WordPiece."""
    vocabulary = fields.raw("vocab")
    if not isinstance(vocabulary, dict):
        raise TokenizerError(f"{fields.where}.vocab is a {type(vocabulary).__name__}; expected an object of token: id")
    model = WordPiece(
        vocabulary=vocabulary,
        unknown_token=fields.string("unk_token"),
        prefix=fields.string("continuing_subword_prefix"),
        max_word_characters=fields.integer("max_input_chars_per_word", 0, 2**64 - 1),
    )
    fields.finish()
    return model
