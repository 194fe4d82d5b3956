"""Which tokenization models exist here, by their ``type`` in a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable

from lattice_inference.errors import UnsupportedError
from lattice_inference.tokenizer.bpe import BPE, parse_bpe
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.unigram import Unigram, parse_unigram
from lattice_inference.tokenizer.wordpiece import WordPiece, parse_wordpiece

__all__ = ["Model", "parse_model"]

Model = WordPiece | BPE | Unigram

_PARSERS: dict[str, Callable[[Fields], Model]] = {
    "BPE": parse_bpe,
    "Unigram": parse_unigram,
    "WordPiece": parse_wordpiece,
}


def parse_model(value: object, where: str = "model") -> Model:
    """Return the model of a ``model`` entry.

    Raises :class:`UnsupportedError` for a type that is not built.
    """
    fields = Fields(value, where)
    # older files do not say what they are when it shows: only BPE has merges
    kind = "BPE" if fields.has("merges") and not fields.has("type") else fields.string("type")
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is of type {kind!r:.80}; supported are {', '.join(sorted(_PARSERS))}")
    return _PARSERS[kind](fields)
