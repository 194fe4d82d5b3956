"""Small Llama models in GGUF files as gguf-py writes them, with rows of queries and keys in llama.cpp's order."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from safetensors.numpy import load_file

__all__ = ["write_decoder_gguf"]


def write_decoder_gguf(path: Path, directory: Path) -> Path:
    """Write the weights of a directory, without a tokenizer."""
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, array in load_file(directory / "model.safetensors").items():
        count = heads if "q_proj" in name else kv_heads if "k_proj" in name else None
        if count is not None:
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
