"""The normalizer Precompiled: SentencePiece's replacement rules, compiled to a trie."""

from __future__ import annotations

import base64
import binascii

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.tokenizer.replacements import Step

__all__ = ["parse_precompiled", "precompiled"]


def precompiled(charsmap: bytes, where: str = "precompiled_charsmap") -> Step:
    """Return the step of a compiled map: its trie's size in bytes, the trie, the replacements.

    Each replacement ends with a NUL.

    Raises:
        TokenizerError: the sizes do not fit, or the replacements are not UTF-8.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or size > len(charsmap) - 4:
        raise TokenizerError(f"{where} states a trie of {size:,} bytes in {max(0, len(charsmap) - 4):,}")
    units, replacements = charsmap[4 : 4 + size], charsmap[4 + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{where} has replacements that are not UTF-8: {error}") from None
    return (native.NORMALIZE_PRECOMPILED, units, replacements)


def parse_precompiled(fields: Fields) -> tuple[Step, ...]:
    """Return the step of a ``Precompiled`` entry."""
    where = f"{fields.where}.precompiled_charsmap"
    try:
        charsmap = base64.b64decode(fields.string("precompiled_charsmap"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenizerError(f"{where} is not base64: {error}") from None
    return (precompiled(charsmap, where),)
