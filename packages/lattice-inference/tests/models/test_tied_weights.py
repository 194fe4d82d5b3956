"""A tensor that a model has twice and a file once is found under either name; what cannot be used is refused at load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from changed_checkpoints import change_gguf, change_tensors
from drawn_checkpoints import write_directory
from lattice_inference import Extension, Session, load_encoder, load_model
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import CheckpointError, TokenizerError, UnsupportedError
from lattice_inference.quantize import Calibrator, quantize_int8
from tiny_decoders import write_drawn_model

DATA = Path(__file__).parents[1] / "data"
ENCODERS = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def logits(path, **options):
    with load_model(path, **options) as model, model.open_cache() as cache:
        return model.forward([Extension(cache.sequence(), [1, 2, 3], "all")])


def move(path, name, other, *, says_so=True):
    """Store a tensor under another name, as safetensors' ``save_model`` does, which leaves a word in the metadata."""
    tensor = load_file(path)[name]
    change_tensors(path, {name: None, other: tensor}, metadata={name: other} if says_so else None)


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "qwen3"])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_tied_embedding_may_be_stored_as_the_output_matrix(tmp_path, name, says_so):
    directory = write_directory(tmp_path / "m", DECODERS[name])
    before, as_int8 = logits(directory), logits(directory, precision="int8")
    move(directory / "model.safetensors", EMBEDDING, OUTPUT, says_so=says_so)
    assert np.array_equal(logits(directory), before)
    assert np.array_equal(logits(directory, precision="int8"), as_int8)
    quantized = quantize_int8(directory, tmp_path / "int8").path
    assert np.array_equal(logits(quantized, precision="int8"), as_int8)
    with Calibrator(directory) as calibrator:
        calibrator.observe(["a cat"])


def test_a_file_of_save_model_loads(tmp_path):
    """What safetensors 0.8 writes for a model with one matrix under two names: the first by the alphabet, and an alias."""
    directory = write_directory(tmp_path / "m", DECODERS["llama-tied"])
    before = logits(directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors[OUTPUT] = tensors.pop(EMBEDDING)
    save_file(tensors, path, metadata={"format": "pt", EMBEDDING: OUTPUT})
    with open_checkpoint(directory) as checkpoint:
        assert dict(checkpoint.aliases) == {EMBEDDING: OUTPUT}
        assert EMBEDDING in checkpoint
        assert EMBEDDING not in checkpoint.names()
        assert np.array_equal(checkpoint.array(EMBEDDING), tensors[OUTPUT])
        assert checkpoint.info(EMBEDDING) == checkpoint.info(OUTPUT)
    assert np.array_equal(logits(directory), before)


def test_an_embedding_that_is_not_tied_must_be_there(tmp_path):
    directory = write_directory(tmp_path / "m", DECODERS["llama"])
    change_tensors(directory / "model.safetensors", {EMBEDDING: None})
    with pytest.raises(CheckpointError, match=r"no tensor model\.embed_tokens\.weight"):
        load_model(directory)


def test_an_encoder_whose_words_are_stored_with_its_head_loads(tmp_path):
    directory = write_directory(tmp_path / "m", ENCODERS["roberta"])
    with load_encoder(directory) as encoder:
        before = encoder.encode(["a cat"]).vectors
    name = next(name for name in load_file(directory / "model.safetensors") if name.endswith("word_embeddings.weight"))
    move(directory / "model.safetensors", name, "lm_head.decoder.weight")
    with load_encoder(directory) as encoder:
        assert np.array_equal(encoder.encode(["a cat"]).vectors, before)


def test_an_alias_of_nothing_is_a_word_like_any_other(tmp_path):
    directory = write_directory(tmp_path / "m", DECODERS["llama"])
    change_tensors(directory / "model.safetensors", {}, metadata={"x": "y", EMBEDDING: OUTPUT, "format": "pt"})
    with open_checkpoint(directory) as checkpoint:
        assert dict(checkpoint.aliases) == {}
    load_model(directory).close()


def test_a_tokenizer_that_cannot_be_read_is_refused_by_the_loader(tmp_path):
    directory = write_drawn_model(tmp_path / "m")
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError):
        load_model(directory)


def test_special_tokens_that_cannot_be_read_are_refused_by_the_loader(tmp_path):
    directory = write_drawn_model(tmp_path / "m")
    (directory / "special_tokens_map.json").write_text("[")
    with pytest.raises(TokenizerError):
        load_model(directory)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"tokenizer__ggml__model": "gpt2"}, TokenizerError),
        ({"tokenizer__ggml__model": "rwkv"}, UnsupportedError),
        ({"tokenizer__ggml__model": 7}, UnsupportedError),
    ],
)
def test_a_gguf_file_with_a_tokenizer_that_cannot_be_read_is_refused_by_the_loader(tmp_path, entries, error):
    from test_decoder_gguf import write

    path = write(tmp_path / "m.gguf", "llama")
    with load_model(path) as model, Session(model) as session:  # without a tokenizer: ids only
        assert not model.has_tokenizer
        assert session.tokenizer is None
    with pytest.raises(error):
        load_model(change_gguf(path, **entries))
