"""What is trained in tests, drawn from names: small models, sites, factors and batches.

``tools/goldens/lora_gradients.py`` has PyTorch and PEFT compute the gradients of the same cases.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from drawn_checkpoints import draw, draw_ids

__all__ = ["CASES", "RANK", "Case", "DrawnBatch", "base_case", "drawn_batch", "drawn_factors", "path_stem", "sample"]

DATA = Path(__file__).parents[1] / "data"
BASES = {
    **json.loads((DATA / "decoders" / "cases.json").read_text())["cases"],
    **json.loads((DATA / "architectures" / "cases.json").read_text())["cases"],
}
RANK = 3
VOCABULARY = 128
BOUNDS = (0, 17, 18, 40)


@dataclass(frozen=True)
class Case:
    """A base, the sites of its adapter, and what the loss reads."""

    base: str
    loss: Literal["tokens", "vectors", "scores"]
    sites: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    scaling: float = 2.0
    pooling: Literal["cls", "mean", "last"] = "mean"
    normalize: bool = True


CASES = {
    "llama": Case("llama", "tokens"),
    "llama-tied": Case("llama-tied", "tokens", ("q_proj", "v_proj"), 0.5),
    "mistral": Case("mistral", "tokens", ("k_proj", "down_proj")),
    "qwen2": Case("qwen2", "tokens"),
    "qwen3": Case("qwen3", "tokens"),
    "qwen3-vectors": Case("qwen3", "vectors", ("self_attn.o_proj", "up_proj"), pooling="last"),
    "qwen3-upper": Case("qwen3", "tokens", ("layers.1.self_attn.v_proj", "layers.2.mlp.gate_proj")),
    "bert": Case("cross-encoder-bert-logits", "vectors"),
    "bert-cls": Case("cross-encoder-bert-logits", "vectors", ("query", "value"), pooling="cls", normalize=False),
    "bert-scores": Case("cross-encoder-bert-logits", "scores", ("key", "output.dense")),
    "roberta": Case("roberta", "vectors", ("attention.self.key", "intermediate.dense"), pooling="last"),
}


@dataclass(frozen=True)
class DrawnBatch:
    """A packed batch of three sequences, one of a single token, with targets, weights and a gradient of vectors."""

    token_ids: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    d_vectors: npt.NDArray[np.float32]


def base_case(base: str) -> dict[str, Any]:
    """Return the files of a base."""
    found: dict[str, Any] = BASES[base]
    return found


def drawn_factors(path: str, inputs: int, outputs: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return A and B of a site."""
    stem = path_stem(path)
    return draw(f"{stem}.a", (RANK, inputs)), draw(f"{stem}.b", (outputs, RANK))


def path_stem(path: str) -> str:
    """Return a path without the class around the layers, which differs with the file that a model is in."""
    return path.removeprefix("bert.").removeprefix("model.")


def drawn_batch(name: str) -> DrawnBatch:
    """Return the batch of a case."""
    tokens = BOUNDS[-1]
    # above the special tokens, as padding would change RoBERTa's positions
    ids = np.array(draw_ids(f"{name}.ids", tokens, VOCABULARY - 8), np.int32) + 8
    targets = np.array(draw_ids(f"{name}.targets", tokens, VOCABULARY), np.int32)
    targets[5:9] = -100
    weights = np.linspace(0, 2, tokens, dtype=np.float32)
    return DrawnBatch(ids, np.array(BOUNDS, np.int32), targets, weights, draw(f"{name}.gradient", (3, 64)) * 5)


def sample(gradient: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return every eleventh number of a matrix: what is stored of a gradient."""
    return np.asarray(gradient.reshape(-1)[::11], np.float32)
