"""multilingual-e5 and its kin as llama.cpp's converter writes them: XLM-RoBERTa is BERT with fewer positions there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import UnsupportedError
from lattice_inference.models.bert import find_names
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.models.bert_gguf import gguf_names

CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
TEXTS = ["the cat sat on the mat", "", "  dogs and   cats , are they ?  ", "☃ 猫", "the " * 200]


def convert(directory: Path, path: Path) -> None:
    """Write the encoder in ``directory`` with its positions cut, and its Unigram tokenizer."""
    config = BertConfig.from_directory(directory)
    offset = 0 if config.position_padding_id is None else config.position_padding_id + 1
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    pieces, scores = zip(*tokenizer["model"]["vocab"], strict=True)
    with open_checkpoint(directory) as checkpoint:
        prefix = find_names(checkpoint.names()).prefix
        arrays = {
            theirs: checkpoint.float32(prefix + ours) for ours, theirs in gguf_names(config.num_hidden_layers).items()
        }
    arrays["position_embd.weight"] = arrays["position_embd.weight"][offset:]
    metadata = {
        "general.architecture": "bert",
        "bert.block_count": config.num_hidden_layers,
        "bert.context_length": config.max_position_embeddings - offset,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.scores": [float(score) for score in scores],
        "tokenizer.ggml.token_type": [2 if p == "<unk>" else 3 if p in special else 1 for p in pieces],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    tensors = [
        TensorToWrite(name, array.shape, "F32", lambda array=array: [array.tobytes()]) for name, array in arrays.items()
    ]
    write_gguf(path, metadata, tensors)


@pytest.mark.parametrize("name", ["multilingual-e5-small", "multilingual-e5-base"])
def test_vectors_are_the_bits_of_the_directory(tmp_path, name):
    from test_unigram_encoders import write_unigram

    directory = write_directory(tmp_path, CASES[name])
    write_unigram(directory / "tokenizer.json")
    convert(directory, tmp_path / "model.gguf")
    with load_encoder(directory) as one, load_encoder(tmp_path / "model.gguf", max_tokens=one.max_tokens) as other:
        want, got = one.encode(TEXTS), other.encode(TEXTS)
        assert got.vectors.tobytes() == want.vectors.tobytes()
        assert np.array_equal(got.token_counts, want.token_counts)
        assert np.array_equal(got.truncated, want.truncated)


def test_a_cross_encoder_is_not_read_from_a_gguf_file(tmp_path):
    from test_unigram_encoders import write_unigram

    directory = write_directory(tmp_path, CASES["multilingual-e5-small"])
    write_unigram(directory / "tokenizer.json")
    convert(directory, tmp_path / "model.gguf")
    with pytest.raises(UnsupportedError, match="BERT cross-encoders in GGUF files are not built"):
        load_cross_encoder(tmp_path / "model.gguf")
