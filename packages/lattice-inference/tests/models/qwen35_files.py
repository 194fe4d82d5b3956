"""Qwen3.5 directories with drawn weights: dense models and mixtures, for text only and beside a vision part.

Weights are drawn from their names (``drawn_checkpoints``); decays a token go from nearly 1 to exp(-20) and beyond.
``tools/goldens/qwen35.py`` writes the same directories and has transformers compute from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import qwen3_files
from drawn_checkpoints import draw

__all__ = ["CASES", "VOCAB", "config_of", "is_linear", "tensors_of", "text_of", "write"]

VOCAB = 32

#: Changes of the text configuration by name; value heads are twice, three times and as many as key heads.
CASES: dict[str, dict[str, Any]] = {
    "double": {},
    "triple": {
        "num_hidden_layers": 5,  # the last layer has a rule
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"],
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 2,
        "tie_word_embeddings": False,
    },
    "wide": {
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "tie_word_embeddings": False,
    },
    "experts": {
        "model_type": "qwen3_5_moe_text",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "linear_key_head_dim": 32,
        "tie_word_embeddings": False,
    },
}
#: Qwen3-Next: the same network with other names, and a layer without experts.
NEXT: dict[str, Any] = CASES["experts"] | {
    "model_type": "qwen3_next",
    "intermediate_size": 56,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 24,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
}

#: Changes for llama.cpp, which takes keys and values of one width.
FOR_LLAMA_CPP = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "vocab_size": qwen3_files.SMALL_VOCAB}


def text_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a text model."""
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "eos_token_id": 3,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        **changes,
    }
    if text["model_type"] == "qwen3_5_moe_text":
        del text["intermediate_size"]
    return text


def config_of(changes: dict[str, Any], *, with_vision: bool = False) -> dict[str, Any]:
    """Return a config.json."""
    text = text_of(changes)
    stem = "Qwen3_5Moe" if "_moe" in text["model_type"] else "Qwen3_5"
    stem = "Qwen3Next" if text["model_type"] == "qwen3_next" else stem
    if not with_vision:
        return text | {"architectures": [f"{stem}ForCausalLM"]}
    outer = text["model_type"].removesuffix("_text")
    return {
        "architectures": [f"{stem}ForConditionalGeneration"],
        "model_type": outer,
        "text_config": text,
        "vision_config": {"model_type": outer, "depth": 1},  # the name that old files have
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def changes_for_llama_cpp(name: str) -> dict[str, Any]:
    """Return the changes of a case that llama.cpp runs, with the small tokenizer's vocabulary."""
    every = {**CASES, "next": NEXT | {"mlp_only_layers": []}}
    return every[name] | FOR_LLAMA_CPP


def is_linear(text: dict[str, Any], layer: int) -> bool:
    """Whether a layer has the gated delta rule."""
    if text.get("layer_types") is not None:
        return bool(text["layer_types"][layer] == "linear_attention")
    return bool((layer + 1) % text["full_attention_interval"])


def _shapes(text: dict[str, Any], prefix: str) -> dict[str, list[int]]:
    hidden = text["hidden_size"]
    shapes = {f"{prefix}embed_tokens.weight": [text["vocab_size"], hidden], f"{prefix}norm.weight": [hidden]}
    if not text["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [text["vocab_size"], hidden]
    for layer in range(text["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        shapes |= _linear_shapes(text, at) if is_linear(text, layer) else _attention_shapes(text, at)
        is_dense = "num_experts" in text and layer in text.get("mlp_only_layers", [])
        shapes |= _block_shapes(text if not is_dense else {**text, "num_experts": 0}, at)
    return shapes


def _linear_shapes(text: dict[str, Any], at: str) -> dict[str, list[int]]:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    inner = heads * text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + inner
    products = {
        f"{at}linear_attn.in_proj_qkv.weight": [channels, hidden],
        f"{at}linear_attn.in_proj_z.weight": [inner, hidden],
        f"{at}linear_attn.in_proj_a.weight": [heads, hidden],
        f"{at}linear_attn.in_proj_b.weight": [heads, hidden],
    }
    if text["model_type"] == "qwen3_next":
        products = {
            f"{at}linear_attn.in_proj_qkvz.weight": [channels + inner, hidden],
            f"{at}linear_attn.in_proj_ba.weight": [2 * heads, hidden],
        }
    return {
        **products,
        f"{at}linear_attn.conv1d.weight": [channels, 1, text["linear_conv_kernel_dim"]],
        f"{at}linear_attn.A_log": [heads],
        f"{at}linear_attn.dt_bias": [heads],
        f"{at}linear_attn.norm.weight": [text["linear_value_head_dim"]],
        f"{at}linear_attn.out_proj.weight": [hidden, inner],
    }


def _attention_shapes(text: dict[str, Any], at: str) -> dict[str, list[int]]:
    hidden, dim = text["hidden_size"], text["head_dim"]
    rows, kv_rows = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    return {
        f"{at}self_attn.q_proj.weight": [2 * rows, hidden],
        f"{at}self_attn.k_proj.weight": [kv_rows, hidden],
        f"{at}self_attn.v_proj.weight": [kv_rows, hidden],
        f"{at}self_attn.o_proj.weight": [hidden, rows],
        f"{at}self_attn.q_norm.weight": [dim],
        f"{at}self_attn.k_norm.weight": [dim],
    }


def _block_shapes(text: dict[str, Any], at: str) -> dict[str, list[int]]:
    hidden = text["hidden_size"]
    shapes = {f"{at}input_layernorm.weight": [hidden], f"{at}post_attention_layernorm.weight": [hidden]}
    if not text.get("num_experts"):
        return shapes | _feed_forward(f"{at}mlp.", hidden, text["intermediate_size"])
    for expert in range(text["num_experts"]):
        shapes |= _feed_forward(f"{at}mlp.experts.{expert}.", hidden, text["moe_intermediate_size"])
    shapes |= _feed_forward(f"{at}mlp.shared_expert.", hidden, text["shared_expert_intermediate_size"])
    gates = {f"{at}mlp.gate.weight": [text["num_experts"], hidden], f"{at}mlp.shared_expert_gate.weight": [1, hidden]}
    return shapes | gates


def _feed_forward(at: str, hidden: int, inner: int) -> dict[str, list[int]]:
    return {
        f"{at}gate_proj.weight": [inner, hidden],
        f"{at}up_proj.weight": [inner, hidden],
        f"{at}down_proj.weight": [hidden, inner],
    }


def mtp_shapes(text: dict[str, Any]) -> dict[str, list[int]]:
    """Return the tensors of the layers that predict further tokens, which share all but their blocks."""
    hidden = text["hidden_size"]
    shapes = {
        "mtp.fc.weight": [hidden, 2 * hidden],
        "mtp.pre_fc_norm_embedding.weight": [hidden],
        "mtp.pre_fc_norm_hidden.weight": [hidden],
        "mtp.norm.weight": [hidden],
    }
    for layer in range(text["mtp_num_hidden_layers"]):
        at = f"mtp.layers.{layer}."
        shapes |= _attention_shapes(text, at) | _block_shapes(text, at)
    return shapes


def drawn(name: str, shape: list[int], seed: str) -> npt.NDArray[np.float32]:
    """Draw a tensor of transformers' name, with the spread of a trained one."""
    array = draw(f"{seed}:{name}", shape)
    if name.endswith("A_log"):  # decays are -exp of it
        return np.float32(20) * array - np.float32(0.8)
    if name.endswith("linear_attn.norm.weight"):
        return array
    if name.endswith("norm.weight") or "_norm_" in name or "layernorm" in name:
        return array - np.float32(1) if array.mean() > 0.5 else array
    if name.endswith("conv1d.weight"):
        return np.float32(5) * array
    if name.endswith("mlp.gate.weight"):  # routers of trained models are surer than this draw
        return np.float32(8) * array
    return array


def tensors_of(
    text: dict[str, Any], *, prefix: str = "model.", seed: str = "qwen3.5", with_mtp: bool = False
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a model; those of the same name are the same below every prefix."""
    shapes = _shapes(text, prefix) | (mtp_shapes(text) if with_mtp else {})
    return {name: drawn(name.removeprefix(prefix), shape, seed) for name, shape in shapes.items()}


def fuse_experts(tensors: dict[str, npt.NDArray[np.float32]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors with the experts of each layer in two stacks, as Qwen3.5's files on the hub have them."""
    found: dict[str, dict[int, npt.NDArray[np.float32]]] = {}
    rest = {}
    for name, array in tensors.items():
        at, separator, number = name.partition(".mlp.experts.")
        if separator:
            expert, _, part = number.partition(".")
            found.setdefault(f"{at}.mlp.experts.{part.removesuffix('.weight')}", {})[int(expert)] = array
        else:
            rest[name] = array
    stacks = {name: np.stack([arrays[number] for number in range(len(arrays))]) for name, arrays in found.items()}
    for name in [name for name in stacks if name.endswith("gate_proj")]:
        both = [stacks.pop(name), stacks.pop(name.replace("gate_proj", "up_proj"))]
        stacks[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(both, axis=1)
    return rest | stacks


def write(
    directory: Path,
    changes: dict[str, Any],
    *,
    with_vision: bool = False,
    with_mtp: bool = False,
    fused: bool = False,
    seed: str = "qwen3.5",
    tokenizer: dict[str, Any] | None = None,
) -> Path:
    """Write a directory; ``fused``: experts lie in stacks."""
    from safetensors.numpy import save_file

    config = config_of(changes, with_vision=with_vision)
    prefix = "model.language_model." if with_vision else "model."
    tensors = tensors_of(text_of(changes), prefix=prefix, seed=seed, with_mtp=with_mtp)
    if with_vision:
        tensors["model.visual.patch_embed.proj.weight"] = np.zeros((4, 3), np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    definition = qwen3_files.small_tokenizer(ends=False) if tokenizer is None else tokenizer
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    save_file(fuse_experts(tensors) if fused else tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
