"""Static models with drawn vectors, in the form that model2vec writes.

``tools/goldens/static.py`` has model2vec load the same directories and writes what it gives for ``TEXTS``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drawn_checkpoints import draw, draw_ids, small_tokenizer

__all__ = ["CASES", "TEXTS", "write_static"]

WIDTH = 32
SHARED_ROWS = 20

#: What ``config.json`` says of each case besides ``model_type``.
CASES: dict[str, dict[str, Any]] = {
    "plain": {"normalize": True, "hidden_dim": WIDTH},
    "weights": {"normalize": False, "max_length": 512},
    "mapping": {"normalize": True, "max_length": 8},
    "unlimited": {"normalize": True, "max_length": None},
    "float16": {"normalize": True},
    "float64": {"normalize": True},
    "int8": {},
}

# model2vec also cuts a text to 512 times the median length of its tokens in characters, which is 3 here: with the space
# after each, words of two letters reach both limits together.
_WORDS = [token for token in small_tokenizer("bert")["model"]["vocab"] if token.isalpha() and len(token) == 2]

TEXTS = [
    "the cat sat on the mat",
    "dogs",
    "",
    "zebra 日本 cats?",
    "日本",
    "[CLS] dogs [UNK] [SEP]",
    " ".join(_WORDS[token % len(_WORDS)] for token in draw_ids("static text", 700, 1000)),
]


def _tensors(name: str) -> dict[str, npt.NDArray[Any]]:
    tokens = len(small_tokenizer("bert")["model"]["vocab"])
    vectors = draw("static embeddings", (tokens, WIDTH))
    weights = np.abs(draw("static weights", (tokens,)).astype(np.float64))
    match name:
        case "weights":
            return {"embeddings": vectors, "weights": weights}
        case "mapping":
            rows = np.array(draw_ids("static mapping", tokens, SHARED_ROWS), np.int64)
            return {"embeddings": vectors[:SHARED_ROWS], "weights": weights, "mapping": rows}
        case "float16":
            return {"embeddings": vectors.astype(np.float16)}
        case "float64":
            return {"embeddings": vectors.astype(np.float64)}
        case "int8":
            return {"embeddings": np.rint(vectors * 900).astype(np.int8)}
    return {"embeddings": vectors}


def write_static(directory: Path, name: str, **changes: npt.NDArray[Any] | None) -> Path:
    """Write the model of a case; ``changes`` are tensors to write instead, or None for one to leave out."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    if CASES[name].get("normalize"):
        kind = "sentence_transformers.models.Normalize"
        modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": kind})
    # model2vec leaves its limits in the tokenizer's file
    truncation = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    files = {
        "config.json": {"model_type": "model2vec", "architectures": ["StaticModel"], **CASES[name]},
        "modules.json": modules,
        "tokenizer.json": {**small_tokenizer("bert"), "truncation": truncation},
    }
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    tensors = {key: value for key, value in {**_tensors(name), **changes}.items() if value is not None}
    save_file(tensors, directory / "model.safetensors")
    return directory
