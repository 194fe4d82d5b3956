"""Directories of Qwen3 mixtures of experts with drawn weights, in each spelling of the experts.

Weights are drawn from the names of the spelling with a tensor for each matrix, so all spellings hold the same numbers.
``tools/goldens/qwen3.py`` writes the same directories and has transformers compute from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import qwen3_files as files
from drawn_checkpoints import draw

__all__ = ["CASES", "Spelling", "config_of", "tensors_of", "write"]

Spelling = Literal["single", "fused", "swapped"]

#: What differs from the dense configuration; no width is a multiple of 16.
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 44,
    "intermediate_size": 52,
    "moe_intermediate_size": 20,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}

CASES: dict[str, dict[str, Any]] = {
    "moe": EXPERTS,
    "moe-mixed": {
        **{name: value for name, value in EXPERTS.items() if name != "num_experts"},
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "num_hidden_layers": 5,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "moe_intermediate_size": 22,  # twice that is the hidden width: stacks with swapped axes look alike
        "use_sliding_window": True,
        "sliding_window": 100,
    },
}


def config_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json."""
    content: dict[str, Any] = files.reranker_files(files.small_tokenizer(ends=False))["config.json"]
    return content | changes


def is_sparse(config: dict[str, Any], layer: int) -> bool:
    """Whether a layer has experts."""
    step = config.get("decoder_sparse_step", 1)
    return layer not in config.get("mlp_only_layers", []) and (layer + 1) % step == 0


def tensors_of(
    config: dict[str, Any], *, spelling: Spelling = "single", seed: str = "qwen3"
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a model for ``config``."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    count: int = config["num_experts"] if "num_experts" in config else config["num_local_experts"]
    shapes = files.tensors_of(config, prefix="model.")
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        if is_sparse(config, layer):
            at = f"model.layers.{layer}.mlp."
            for part in ("gate", "up", "down"):
                del shapes[f"{at}{part}_proj.weight"]
            shapes[f"{at}gate.weight"] = [count, hidden]
            for expert in range(count):
                shapes |= {f"{at}experts.{expert}.{part}_proj.weight": [width, hidden] for part in ("gate", "up")}
                shapes[f"{at}experts.{expert}.down_proj.weight"] = [hidden, width]
    tensors = {name: draw(f"{seed}:{name.removeprefix('model.')}", shape) for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith("mlp.gate.weight"):  # routers of trained models are surer than this draw
            tensors[name] = tensors[name] * np.float32(8)
        elif ".experts." in name:
            tensors[name] = tensors[name] * np.float32(2)
    if spelling != "single":
        for layer in filter(lambda layer: is_sparse(config, layer), range(config["num_hidden_layers"])):
            _fuse(tensors, f"model.layers.{layer}.mlp.experts.", count, swapped=spelling == "swapped")
    return tensors


def _fuse(tensors: dict[str, npt.NDArray[np.float32]], at: str, count: int, *, swapped: bool) -> None:
    stacks = {
        part: np.stack([tensors.pop(f"{at}{expert}.{part}_proj.weight") for expert in range(count)])
        for part in ("gate", "up", "down")
    }
    fused = {"gate_up_proj": np.concatenate([stacks["gate"], stacks["up"]], axis=1), "down_proj": stacks["down"]}
    for name, stack in fused.items():
        tensors[at + name] = np.ascontiguousarray(stack.swapaxes(1, 2) if swapped else stack)


def write(directory: Path, changes: dict[str, Any], *, spelling: Spelling = "single", seed: str = "qwen3") -> Path:
    """Write a directory with a small tokenizer."""
    from safetensors.numpy import save_file

    content = files.reranker_files(files.small_tokenizer(ends=False))
    content["config.json"] = config_of(changes)
    directory.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (directory / name).write_text(json.dumps(value), encoding="utf-8")
    tensors = tensors_of(content["config.json"], spelling=spelling, seed=seed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
