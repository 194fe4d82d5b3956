"""Hugging Face tokenizers as GGUF files, written by the reference writer as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_gguf_vocabulary(path: Path, model: str, **fields: Any) -> Path:
    """Write a GGUF file with a tokenizer only; arrays are written as their values' types."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for key, value in fields.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def bpe_fields(tokenizer: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """Return the fields of a byte-level BPE tokenizer."""
    value = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = value["model"]["vocab"]
    tokens = dict(vocabulary)
    types = dict.fromkeys(vocabulary, NORMAL)
    for added in value["added_tokens"]:
        tokens[added["content"]] = added["id"]
        types[added["content"]] = CONTROL if added["special"] else USER_DEFINED
    order = sorted(tokens, key=tokens.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in value["model"]["merges"]]
    return {"pre": pre, "tokens": order, "token_type": [types[token] for token in order], "merges": merges}


def llama_fields(pieces: list[str]) -> dict[str, Any]:
    """Return the fields of Llama's SentencePiece model; its scores fall with the ids, but for two spaces."""
    types = [BYTE if piece.startswith("<0x") else NORMAL for piece in pieces]
    types[:3] = [UNKNOWN, CONTROL, CONTROL]
    scores = [0.0] * 259 + [float(259 - i) for i in range(259, len(pieces))]
    scores[259] = -1e9
    return {
        "tokens": pieces,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
