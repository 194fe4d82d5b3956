"""Qwen3 in GGUF files as gguf-py writes them: its names, keys and quantizers, none of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tiny_decoders import byte_alphabet

__all__ = ["stacked", "write_gguf_py"]


def write_gguf_py(
    path: Path,
    directory: Path,
    *,
    quantized: str | None = None,
    pooling: gguf.PoolingType | None = None,
    classifier: np.ndarray | None = None,
    adds_eos: bool | None = None,
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    with_tokenizer: bool = True,
    joined: bool = False,
) -> Path:
    """Write the model of a directory, whose experts have a tensor for each matrix, if there are some.

    ``quantized``: the type of matrices whose rows hold whole blocks; else all are F32. ``joined``: gates and ups of experts
    lie in one tensor.
    """
    config = json.loads((directory / "config.json").read_text())
    has_experts = config["model_type"] == "qwen3_moe"
    writer = gguf.GGUFWriter(path, "qwen3moe" if has_experts else "qwen3")
    if has_experts:
        writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if with_tokenizer:
        _add_tokenizer(writer, json.loads((directory / "tokenizer.json").read_text()), config["eos_token_id"], adds_eos)
    for key, value in (keys or {}).items():
        writer.add_uint32(key, value)
    architecture = gguf.MODEL_ARCH.QWEN3MOE if has_experts else gguf.MODEL_ARCH.QWEN3
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    tensors = stacked(load_file(directory / "model.safetensors"), joined=joined)
    if classifier is not None:
        tensors["cls.output.weight"] = classifier
    kind = None if quantized is None else gguf.GGMLQuantizationType[quantized]
    for name, array in tensors.items():
        known = names.get_name(name, try_suffixes=(".weight",)) or names.get_name(f"model.{name}", (".weight",))
        target = name if name.startswith("cls.") else known
        if name.endswith("experts.gate_up_proj.weight"):
            target = f"blk.{name.split('.')[2]}.ffn_gate_up_exps.weight"
        assert target is not None, name
        if target in drop:
            continue
        block = 1 if kind is None else gguf.GGML_QUANT_SIZES[kind][0]
        is_router = target.endswith("ffn_gate_inp.weight")  # llama.cpp leaves these in F32
        if kind is not None and array.ndim >= 2 and array.shape[-1] % block == 0 and not is_router:
            writer.add_tensor(target, _blocks(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stacked(tensors: dict[str, np.ndarray], *, joined: bool) -> dict[str, np.ndarray]:
    """Lay the matrices of experts on top of one another, as llama.cpp's converter does."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for name in [name for name in tensors if ".mlp.experts." in name]:
        at, _, rest = name.partition(".experts.")
        number, _, part = rest.partition(".")
        found.setdefault(f"{at}.experts.{part}", {})[int(number)] = tensors.pop(name)
    stacks = {name: np.stack([matrices[n] for n in range(len(matrices))]) for name, matrices in found.items()}
    if joined:
        for name in [name for name in stacks if name.endswith("gate_proj.weight")]:
            both = [stacks.pop(name), stacks.pop(name.replace("gate_proj", "up_proj"))]
            stacks[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(both, axis=1)
    return tensors | stacks


def _blocks(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return rows of blocks: gguf-py's of the array, or drawn ones of Q4_K, which it only reads."""
    if array.ndim == 3:
        return np.stack([_blocks(matrix, kind) for matrix in array])
    if kind is not gguf.GGMLQuantizationType.Q4_K:
        return gguf.quants.quantize(array, kind)
    rng = np.random.default_rng(array.size)
    blocks = rng.integers(0, 256, (array.size // 256, 144), np.uint8)
    blocks[:, 0:2] = rng.uniform(2e-5, 6e-5, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    blocks[:, 2:4] = rng.uniform(3e-4, 4e-4, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(len(array), -1)


def _add_tokenizer(writer: gguf.GGUFWriter, definition: dict[str, Any], eos: int, adds_eos: bool | None) -> None:
    model, added = definition["model"], definition["added_tokens"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    assert tokens[:3] == byte_alphabet()[:3]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    for token in added:
        tokens.append(token["content"])
        kinds.append(gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(False)
    if adds_eos is not None:
        writer.add_add_eos_token(adds_eos)
