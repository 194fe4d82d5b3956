"""The bytes that each token writes, as an engine of grammars needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lattice_inference.errors import GrammarError
from lattice_inference.tokenizer.decoders import (
    ByteFallbackDecoder,
    ByteLevelDecoder,
    FuseDecoder,
    ReplaceDecoder,
    SequenceDecoder,
    StripDecoder,
    fallback_byte,
)
from lattice_inference.tokenizer.metaspace import MetaspaceDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.decoders import Decoder

__all__ = ["token_bytes"]


def token_bytes(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[bytes], list[int]]:
    """Return what each id below ``vocab_size`` writes inside a text, and the special ids.

    A special token, and an id that no token has, writes nothing: no grammar allows it. A token that holds a part of a
    character writes that part.

    Raises:
        GrammarError: the tokenizer's text depends on more than its tokens' own bytes, as WordPiece's does.
    """
    write = _writer(tokenizer.definition.decoder)
    special = tokenizer.special_ids
    texts: list[bytes] = []
    for token_id in range(vocab_size):
        token = None if token_id in special else tokenizer.id_to_token(token_id)
        texts.append(b"" if token is None else write(token))
    return texts, sorted(token_id for token_id in special if token_id < vocab_size)


def _writer(decoder: Decoder) -> Callable[[str], bytes]:
    if isinstance(decoder, ByteLevelDecoder):
        return decoder.token_bytes
    stages = decoder.decoders if isinstance(decoder, SequenceDecoder) else (decoder,)
    if len(stages) == 1 and isinstance(stages[0], ByteLevelDecoder):
        return stages[0].token_bytes
    known = (ByteFallbackDecoder, FuseDecoder, MetaspaceDecoder, ReplaceDecoder, StripDecoder)
    if not all(isinstance(stage, known) for stage in stages):
        raise GrammarError(
            "grammars need a byte-level or SentencePiece tokenizer; this one writes texts in another way"
        )
    return _SentencePieceWriter(stages)


class _SentencePieceWriter:
    """Writes tokens of a decoder for SentencePiece: blanks for U+2581, bytes for ``<0x0A>``."""

    def __init__(self, stages: tuple[Decoder, ...]) -> None:
        self._bytes = any(isinstance(stage, ByteFallbackDecoder) for stage in stages)
        replaces: list[tuple[str, str]] = []
        for stage in stages:
            if isinstance(stage, MetaspaceDecoder):
                replaces.append((stage.replacement, " "))
            elif isinstance(stage, ReplaceDecoder):
                replaces.append((stage.pattern, stage.content))
            # Fuse joins what is joined anyhow; Strip takes the blank that begins a text, and a grammar's text goes on.
        self._replaces = replaces

    def __call__(self, token: str) -> bytes:
        byte = fallback_byte(token) if self._bytes else None
        if byte is not None:
            return bytes([byte])
        for old, new in self._replaces:
            token = token.replace(old, new)
        return token.encode("utf-8", "surrogatepass")
