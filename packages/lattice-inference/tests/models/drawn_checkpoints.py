"""Model directories with drawn weights: nothing is stored but what to draw, so every architecture costs some kilobytes.

``tests/data/architectures/cases.json`` says which files a directory has and which tensors, by name and shape as
transformers names them. A tensor's numbers come from Philox keyed by its name: the same on every machine.
``tools/goldens/architectures.py`` writes the same directories and has sentence-transformers compute from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["draw", "draw_ids", "small_tokenizer", "write_directory"]

WORDS = (
    "the a cat cats dog dogs and are not same animal they sat on mat , ? . zebra words again is was it to of in that he she "
    "we you for with as at by from this have or one had but what all were when your can said there query passage :"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# The special tokens of a family in the order of their ids: start, padding, end, unknown, or BERT's.
SPECIAL_TOKENS = {
    "bert": {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]"},
    "xlmr": {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
}


def draw(name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Draw a tensor: norms' scales about 1, other vectors within 0.2, matrices with the spread of trained ones."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    raw = np.random.Philox(key=key).random_raw(int(np.prod(shape))).reshape(shape)
    unit = (raw >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)  # [-1, 1), exactly
    if len(shape) > 1:
        return np.float32(0.14) * unit
    is_scale = ("LayerNorm" in name or "norm." in name) and name.endswith("weight")
    return np.float32(0.2) * unit + np.float32(is_scale)


def draw_ids(name: str, length: int, vocab_size: int) -> list[int]:
    """Draw token ids."""
    key = int.from_bytes(hashlib.sha256(f"{name}:ids".encode()).digest()[:16], "little")
    return [int(value % vocab_size) for value in np.random.Philox(key=key).random_raw(length)]


def small_tokenizer(family: str) -> dict[str, Any]:
    """Return a small WordPiece tokenizer.json with the special tokens, ids and templates of ``"bert"`` or ``"xlmr"``."""
    special = SPECIAL_TOKENS[family]
    tokens = [*special.values(), *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    start, end = special["start"], special["end"]

    def piece(token: str, type_id: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def text(which: str, type_id: int = 0) -> dict[str, Any]:
        return {"Sequence": {"id": which, "type_id": type_id}}

    second = int(family == "bert")
    between = [piece(end)] if family == "bert" else [piece(end), piece(end)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in special.values()
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece(start), text("A"), piece(end)],
            "pair": [piece(start), text("A"), *between, text("B", second), piece(end, second)],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in (start, end)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": special["unknown"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def write_directory(directory: Path, case: Mapping[str, Any]) -> Path:
    """Write the model of a case: its JSON files, its tokenizer, and its weights."""
    from safetensors.numpy import save_file

    for name, content in {**case["files"], "tokenizer.json": small_tokenizer(case["tokenizer"])}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    for name, tensors in case["tensors"].items():
        drawn = {tensor: draw(f"{name}:{tensor}", shape) for tensor, shape in tensors.items()}
        save_file(drawn, directory / name, metadata={"format": "pt"})
    return directory
