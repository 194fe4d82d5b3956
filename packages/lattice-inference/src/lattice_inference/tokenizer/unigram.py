"""The Unigram (SentencePiece) model: pieces with scores, and its form in a tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer._tokenizer import PieceTable
from lattice_inference.tokenizer.fields import Fields

__all__ = ["UNKNOWN_PENALTY", "Unigram", "parse_unigram"]

UNKNOWN_PENALTY = 10.0
"""How far the score of an unknown token lies below the lowest score of a piece (SentencePiece's constant)."""


@dataclass(frozen=True)
class Unigram:
    """A Unigram model: it splits a word into the pieces whose scores have the highest sum.

    What no piece covers becomes the piece ``unknown_id`` (``None``: a text with such a character is refused), or with
    ``byte_fallback`` the pieces ``<0x00>`` to ``<0xFF>`` of its bytes.
    """

    vocabulary: PieceTable
    unknown_id: int | None
    byte_fallback: bool = False

    def __post_init__(self) -> None:
        size = len(self.vocabulary)
        if size == 0:
            raise TokenizerError("model.vocab is empty")
        if self.unknown_id is not None and not 0 <= self.unknown_id < size:
            raise TokenizerError(f"model.unk_id is {self.unknown_id}; the vocabulary has ids 0 to {size - 1}")


def parse_unigram(fields: Fields) -> Unigram:
    """Return the model of a ``model`` entry of type Unigram."""
    vocabulary = fields.raw("vocab")
    if not isinstance(vocabulary, PieceTable):
        raise TokenizerError(
            f"{fields.where}.vocab is a {type(vocabulary).__name__}; expected an array of [piece, score]"
        )
    unknown_id = fields.raw("unk_id", None)
    if unknown_id is not None:
        unknown_id = fields.integer("unk_id", 0, 2**31 - 1)
    model = Unigram(vocabulary, unknown_id, fields.boolean("byte_fallback", False))
    fields.finish()
    return model
