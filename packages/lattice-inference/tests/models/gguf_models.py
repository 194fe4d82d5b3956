"""Small Llama models in GGUF files as gguf-py writes them, with rows of queries and keys in llama.cpp's order."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from safetensors.numpy import load_file

from tiny_decoders import byte_alphabet

__all__ = ["write_decoder_gguf"]


def write_decoder_gguf(path: Path, directory: Path, *, with_tokenizer: bool = False) -> Path:
    """Write the weights of a directory. The tokenizer, if asked for, has the characters of ASCII and one merge."""
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
    if with_tokenizer:
        assert config["vocab_size"] == 128
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([*byte_alphabet()[:127], "th"])
        writer.add_token_types([gguf.TokenType.NORMAL] * 128)
        writer.add_token_merges(["t h"])
        writer.add_eos_token_id(config["eos_token_id"])
        writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, array in load_file(directory / "model.safetensors").items():
        count = heads if "q_proj" in name else kv_heads if "k_proj" in name else None
        if count is not None:
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        target = names.get_name(name, try_suffixes=(".weight",))
        assert target is not None, name
        writer.add_tensor(target, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
