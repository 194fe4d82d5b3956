"""Reads a tokenizer.json: the pieces of a Unigram model by our scanner, the rest as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lattice_inference.tokenizer._tokenizer import read_pieces
from lattice_inference.tokenizer.fields import parse_json_object, read_file
from lattice_inference.tokenizer.wordpiece import MAX_TOKEN_CHARACTERS, MAX_VOCABULARY_BYTES

__all__ = ["read_tokenizer_file"]

_MAX_PIECE_BYTES = 4 * MAX_TOKEN_CHARACTERS


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """Return the object in a tokenizer.json.

    An array ``model.vocab`` becomes a ``PieceTable``. The array has a pair for each of some 250,000 pieces, for which
    JSON's general reader takes more time than all the rest of loading. Raises :class:`TokenizerError` for a file that
    is too large, or not such an object.
    """
    data = read_file(path)
    found = read_pieces(data, _MAX_PIECE_BYTES, MAX_VOCABULARY_BYTES)
    if found is None:
        return parse_json_object(data, path)
    table, start, end = found
    value = parse_json_object(data[:start] + b"null" + data[end:], path)
    value["model"]["vocab"] = table
    return value
