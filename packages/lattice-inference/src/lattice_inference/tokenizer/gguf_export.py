"""A WordPiece tokenizer as the metadata of a GGUF file, which gguf_tokenizer.py reads."""

from __future__ import annotations

import numpy as np

from lattice_inference.errors import UnsupportedError
from lattice_inference.tokenizer.gguf_tokenizer import knows_capitals
from lattice_inference.tokenizer.metaspace import SPACE
from lattice_inference.tokenizer.normalizers import bert_normalizer
from lattice_inference.tokenizer.post_processors import bert_post_processor
from lattice_inference.tokenizer.pre_tokenizers import BERT_PRE_TOKENIZER
from lattice_inference.tokenizer.sentencepiece_file import CONTROL, NORMAL, UNUSED, USER_DEFINED
from lattice_inference.tokenizer.tokenizer import Tokenizer
from lattice_inference.tokenizer.wordpiece import WordPiece

__all__ = ["wordpiece_metadata"]


def wordpiece_metadata(tokenizer: Tokenizer, type_count: int) -> dict[str, object]:
    """Return the metadata of BERT's tokenizer, for a model with ``type_count`` token types.

    Raises:
        UnsupportedError: it is of another kind, or has settings that a GGUF file has no place for.
    """
    definition = tokenizer.definition
    model = definition.model
    if not isinstance(model, WordPiece) or model.prefix != "##":
        raise UnsupportedError(f"{tokenizer!r}: only WordPiece tokenizers with the prefix '##' are written as GGUF")
    ids = {**model.vocabulary, **definition.added_token_ids}
    size = max(ids.values()) + 1
    tokens = [f"[PAD{token_id}]" for token_id in range(size)]
    types = np.full(size, UNUSED, np.int32)
    kinds = {token.content: CONTROL if token.special else USER_DEFINED for token in definition.added_tokens}
    for token, token_id in ids.items():
        tokens[token_id] = token if token in kinds else _written(token)
        types[token_id] = kinds.get(token, NORMAL)
    lower = not knows_capitals(token for token in model.vocabulary if token not in kinds)
    parts = definition.post_processor.single
    if (
        definition.normalizer
        != bert_normalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower)
        or definition.pre_tokenizer != BERT_PRE_TOKENIZER
        or len(parts) != 3
        or definition.post_processor != bert_post_processor(parts[0].id, parts[2].id)
    ):
        raise UnsupportedError(
            f"{tokenizer!r}: its settings are not BERT's own, and a GGUF file has no place for others"
        )
    metadata: dict[str, object] = {
        "tokenizer.ggml.token_type_count": type_count,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": ids[model.unknown_token],
        "tokenizer.ggml.cls_token_id": parts[0].id,
        "tokenizer.ggml.seperator_token_id": parts[2].id,
    }
    for key, token in (("padding_token_id", "[PAD]"), ("mask_token_id", "[MASK]")):
        if token in ids:
            metadata[f"tokenizer.ggml.{key}"] = ids[token]
    return metadata


def _written(piece: str) -> str:
    """Return what a file writes for a piece."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece.removeprefix("##") if piece.startswith("##") else SPACE + piece
