"""A directory with int8 weights gives the bits that quantizing its source at load gives."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.cli import main
from lattice_inference.errors import CheckpointError, InvalidInputError
from lattice_inference.quantize import quantize_int8

TEXTS = ["a cat sat", "", "the quick brown fox jumps over the lazy dog " * 3]


@pytest.fixture
def source(data_directory):
    return data_directory / "tiny_bert"


def test_vectors_are_those_of_the_source_bit_for_bit(source, tmp_path):
    report = quantize_int8(source, tmp_path / "int8")
    assert report.path == tmp_path / "int8"
    with load_encoder(source, precision="int8") as made, load_encoder(tmp_path / "int8", precision="int8") as loaded:
        want, got = made.encode(TEXTS).vectors, loaded.encode(TEXTS).vectors
        assert got.tobytes() == want.tobytes()
        assert (loaded.pooling, loaded.max_tokens, loaded.prompts) == (made.pooling, made.max_tokens, made.prompts)
    with load_encoder(source) as exact, load_encoder(tmp_path / "int8") as expanded:
        assert not (exact.encode(TEXTS).vectors == want).all()
        cosines = (exact.encode(TEXTS).vectors * expanded.encode(TEXTS).vectors).sum(axis=1)
        assert (cosines > 0.999).all(), "in float32 the integers times their scales are the weights"


def test_the_file_is_row_major_integers_with_scales(source, tmp_path):
    report = quantize_int8(source, tmp_path / "int8")
    tensors, original = load_file(tmp_path / "int8" / "model.safetensors"), load_file(source / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    assert tensors[name].dtype == np.int8
    assert tensors[name + "_scale"].shape == original[name].shape[:1]
    assert (np.abs(tensors[name]).max(axis=1) == 127).all()
    error = np.abs(tensors[name] * tensors[name + "_scale"][:, None] - original[name])
    assert (error <= tensors[name + "_scale"][:, None] * 0.5001).all()
    assert tensors["embeddings.word_embeddings.weight"].dtype == np.float16
    bias = "encoder.layer.0.attention.self.query.bias"
    assert tensors[bias].tobytes() == original[bias].tobytes()
    assert set(report.tensors) == {"I8", "F32", "F16"}
    assert report.tensors["F16"] == 3
    head = (tmp_path / "int8" / "model.safetensors").read_bytes()
    assert json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]["lattice.precision"] == "int8"


def test_a_cross_encoder_keeps_its_scores(data_directory, tmp_path):
    cases = json.loads((data_directory / "architectures" / "cases.json").read_text())["cases"]
    source = write_directory(tmp_path / "source", cases["cross-encoder-bert"])
    quantize_int8(source, tmp_path / "int8")
    pairs = [("a question", "an answer"), ("another", "")]
    with (
        load_cross_encoder(source, precision="int8") as made,
        load_cross_encoder(tmp_path / "int8", precision="int8") as got,
    ):
        assert got.score_pairs(pairs).tobytes() == made.score_pairs(pairs).tobytes()


def test_the_command_writes_the_directory(source, tmp_path, capsys):
    target = tmp_path / "int8"
    assert main(["quantize", str(source), str(target), "--precision", "int8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["type"] == "int8"
    assert report["file_bytes"] == (target / "model.safetensors").stat().st_size
    assert main(["quantize", str(source), str(target), "--precision", "int8"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["quantize", str(source), str(target), "--precision", "int8", "--overwrite"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["int8"]


def test_what_is_no_model_is_neither_replaced_nor_half_written(source, tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(InvalidInputError, match="is no model's directory"):
        quantize_int8(source, tmp_path / "notes", overwrite=True)
    with pytest.raises(InvalidInputError, match="does not exist"):
        quantize_int8(source, tmp_path / "nowhere" / "int8")
    with pytest.raises(InvalidInputError, match="the source itself"):
        quantize_int8(source, source, overwrite=True)
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["encoder.layer.1.output.dense.weight"] = np.ones((3, 3), np.float32)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match="needs a tensor of shape"):
        quantize_int8(broken, tmp_path / "int8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "notes"]


def damaged(source, tmp_path, change):
    quantize_int8(source, tmp_path / "int8")
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    change(tensors, "encoder.layer.0.attention.self.query.weight")
    save_file(tensors, tmp_path / "int8" / "model.safetensors")
    return tmp_path / "int8"


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, name: tensors.pop(name + "_scale"), "has no scales for it"),
        (lambda tensors, name: tensors.update({name + "_scale": np.ones(3, np.float32)}), "has scales of shape"),
        (lambda tensors, name: tensors.update({name + "_scale": tensors[name + "_scale"] * np.nan}), "must be finite"),
        (lambda tensors, name: tensors[name].fill(-128), "holds -128"),
    ],
    ids=["no scales", "misshapen scales", "scales of NaN", "an integer too many"],
)
def test_a_damaged_file_is_refused_by_name(source, tmp_path, precision, change, message):
    with pytest.raises(CheckpointError, match=message):
        load_encoder(damaged(source, tmp_path, change), precision=precision)
