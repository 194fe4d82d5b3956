"""Qwen3.5 in GGUF files as gguf-py writes them: its names and keys, and the orders of llama.cpp's converter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from qwen3_gguf import _add_tokenizer, _blocks, stacked

__all__ = ["write_gguf_py"]

MTP_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def write_gguf_py(
    path: Path,
    directory: Path,
    *,
    quantized: str | None = None,
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    with_tokenizer: bool = True,
    with_interval: bool = True,
) -> Path:
    """Write the model of a directory that qwen35_files.py wrote, whose experts have a tensor for each matrix.

    ``quantized``: the type of matrices whose rows hold whole blocks; else all are F32. ``with_interval``: the file names
    an interval of layers with attention, and else lists the others.
    """
    config = json.loads((directory / "config.json").read_text())
    text = config.get("text_config", config)
    has_experts = "num_experts" in text
    architecture = gguf.MODEL_ARCH.QWEN35MOE if has_experts else gguf.MODEL_ARCH.QWEN35
    is_next = text["model_type"] == "qwen3_next"
    if is_next:
        architecture = gguf.MODEL_ARCH.QWEN3NEXT
    tensors = {
        name.replace("model.language_model.", "model."): array
        for name, array in load_file(directory / "model.safetensors").items()
        if "visual" not in name
    }
    if is_next:
        tensors = _split_products(tensors, text)
    layers = text["num_hidden_layers"]
    extra = text["mtp_num_hidden_layers"] * any(name.startswith("mtp.") for name in tensors)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, text, layers + extra, extra)
    linear = [_is_linear(text, layer) for layer in range(layers)]
    if with_interval and all(is_linear == bool((layer + 1) % 4) for layer, is_linear in enumerate(linear)):
        writer.add_full_attention_interval(4)
    else:
        flags = [*linear, *[False] * extra]
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", flags)
    for key, value in (keys or {}).items():
        writer.add_array(key, value) if isinstance(value, list) else writer.add_uint32(key, value)
    if with_tokenizer:
        _add_tokenizer(writer, json.loads((directory / "tokenizer.json").read_text()), text["eos_token_id"], None)
    names = gguf.get_tensor_name_map(architecture, layers + extra)
    kind = None if quantized is None else gguf.GGMLQuantizationType[quantized]
    joined = stacked(tensors, joined=False)
    placed: list[tuple[str, str]] = []
    for name in joined:
        if name in MTP_NAMES:  # each extra block has a copy of what these layers share
            placed += [(f"blk.{number}.{MTP_NAMES[name]}", name) for number in range(layers, layers + extra)]
            continue
        plain = re.sub(r"^mtp\.layers\.(\d+)\.", lambda match: f"model.layers.{layers + int(match[1])}.", name)
        known = names.get_name(plain.replace("dt_bias", "dt_proj.bias"), try_suffixes=(".weight", ".bias"))
        assert known is not None, name
        placed.append((known, name))
    for target, name in placed:
        if target in drop:
            continue
        array = _converted(name, joined[name], text, tiled=not is_next)
        block = 1 if kind is None else gguf.GGML_QUANT_SIZES[kind][0]
        is_kept = "ffn_gate_inp" in target or "conv1d" in target  # llama.cpp leaves these in F32
        if kind is not None and array.ndim >= 2 and array.shape[-1] % block == 0 and not is_kept:
            writer.add_tensor(target, _blocks(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, text: dict[str, Any], blocks: int, extra: int) -> None:
    writer.add_block_count(blocks)
    if extra:
        writer.add_nextn_predict_layers(extra)
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    rope = text["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(text["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_ssm_conv_kernel(text["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(text["linear_key_head_dim"])
    writer.add_ssm_group_count(text["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(text["linear_num_value_heads"])
    writer.add_ssm_inner_size(text["linear_num_value_heads"] * text["linear_value_head_dim"])
    if "num_experts" in text:
        writer.add_expert_count(text["num_experts"])
        writer.add_expert_used_count(text["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(text["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(text["shared_expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(text["intermediate_size"])


def _is_linear(text: dict[str, Any], layer: int) -> bool:
    if "layer_types" in text:
        return bool(text["layer_types"][layer] == "linear_attention")
    return bool((layer + 1) % text["full_attention_interval"])


def _split_products(tensors: dict[str, np.ndarray], text: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a Qwen3-Next with queries, keys and values of all heads together, and z by itself."""
    heads, key, hidden = text["linear_num_key_heads"], text["linear_key_head_dim"], text["hidden_size"]
    found = {}
    for name, array in tensors.items():
        if "in_proj_qkvz" not in name:
            found[name] = array
            continue
        by_head = array.reshape(heads, -1, hidden)
        wide = (by_head.shape[1] - 2 * key) // 2
        q, k, v, z = np.split(by_head, [key, 2 * key, 2 * key + wide], axis=1)
        found[name.replace("qkvz", "qkv")] = np.concatenate([part.reshape(-1, hidden) for part in (q, k, v)])
        found[name.replace("qkvz", "z")] = z.reshape(-1, hidden)
    return found


def _converted(name: str, array: np.ndarray, text: dict[str, Any], *, tiled: bool) -> np.ndarray:
    """Return a tensor as llama.cpp's converter writes it; ``tiled``: with value heads in its order."""
    groups, heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    width = text["linear_value_head_dim"]
    others = 2 * groups * text["linear_key_head_dim"]
    if name.endswith("A_log"):
        array = -np.exp(array)
    elif "conv1d" in name:
        array = array.squeeze(1)
    elif not name.endswith("linear_attn.norm.weight") and ("norm.weight" in name or "_norm_" in name):
        array = array + np.float32(1)
    if "linear_attn." not in name or not tiled:
        return array
    if "in_proj_qkv." in name or "conv1d" in name:
        return np.concatenate([array[:others], _tiled(array[others:], groups, heads, width)])
    if "in_proj_z" in name:
        return _tiled(array, groups, heads, width)
    if "out_proj" in name:
        return _tiled(array.T, groups, heads, width).T
    if "norm" in name:
        return array
    return _tiled(array, groups, heads, 1)


def _tiled(rows: np.ndarray, groups: int, heads: int, width: int) -> np.ndarray:
    """Reorder the rows of value heads: those that share a key head lie ``groups`` heads apart."""
    shape = rows.shape
    return rows.reshape(groups, heads // groups, width, -1).swapaxes(0, 1).reshape(shape)
