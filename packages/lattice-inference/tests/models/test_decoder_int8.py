"""Decoders with int8 weights, a scale a row: by float activations and by int8 ones, made at load and read from a file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from drawn_checkpoints import draw_ids, write_directory
from lattice_inference import Extension, GenerateConfig, Session, compare_logits, load_model
from lattice_inference.checkpoint.int8_weights import quantize_matrix
from lattice_inference.cli import main
from lattice_inference.errors import CheckpointError, InvalidInputError
from lattice_inference.quantize import quantize_gguf, quantize_int8
from test_decoder_gguf import write as write_gguf_of
from test_decoders import CASES
from tiny_decoders import VOCAB, write_drawn_model

NAMES = ["llama", "mistral", "qwen2-with-windows", "qwen3-with-windows"]
ACTIVATIONS = ["int8", "float32"]
VOCABULARY = 128  # of the cases


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Return the directory of a case, written once; by default of a model with a tokenizer."""
    written = {}

    def directory(name=None):
        if name not in written:
            path = tmp_path_factory.mktemp("int8") / (name or "tokenizer")
            written[name] = write_drawn_model(path) if name is None else write_directory(path, CASES[name])
        return written[name]

    return directory


def logits_of(model, ids, chunks=()):
    rows, start = [], 0
    with model.open_cache(tokens=len(ids)) as cache:
        sequence = cache.sequence()
        for count in [*chunks, len(ids)]:
            if start < len(ids):
                rows.append(model.forward([Extension(sequence, ids[start : start + count], "all")]))
                start += count
    return np.concatenate(rows)


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_prefill_in_any_chunks_is_token_by_token_bit_for_bit(drawn, name, activations):
    ids = draw_ids(name, 100, VOCABULARY)
    with load_model(drawn(name), precision="int8", activations=activations) as model:
        at_once = logits_of(model, ids)
        for chunks in ([1] * len(ids), [3, 1, 29, 40], [64, 1], [17] * 6):
            assert (logits_of(model, ids, chunks) == at_once).all(), chunks


def test_with_float_activations_it_is_the_model_of_the_rounded_weights(drawn, tmp_path):
    """Weight-only: the same logits as a float32 model whose matrices are the integers times their scales."""
    source = drawn()
    rounded = write_drawn_model(tmp_path / "rounded")
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "embed" not in name:
            tensors[name] = quantize_matrix(tensor, name).float32()
        elif "embed" in name:
            tensors[name] = tensor.astype(np.float16).astype(np.float32)
    from safetensors.numpy import save_file

    save_file(tensors, rounded / "model.safetensors")
    ids = draw_ids("weight-only", 90, VOCAB)
    with (
        load_model(rounded) as want,
        load_model(source, precision="int8", activations="float32") as got,
        load_model(source, precision="int8") as integers,
    ):
        expected = logits_of(want, ids)
        assert np.abs(logits_of(got, ids) - expected).max() <= 1e-4
        assert np.abs(logits_of(integers, ids) - expected).max() > 1e-3


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("form", ["int8", "Q4_0", "Q8_0"])
def test_a_step_that_wants_no_logits_runs(drawn, tmp_path, form, activations):
    """The first steps of a long prompt: nothing goes through what follows the last layer's attention."""
    path, precision = drawn(), "int8"
    if form != "int8":
        path, precision = tmp_path / f"{form}.gguf", "stored"
        quantize_gguf(write_gguf_of(tmp_path / "floats.gguf", "llama"), path, form)
    ids = draw_ids("long", 200, VOCABULARY)
    with load_model(path, precision=precision, activations=activations) as model, model.open_cache() as cache:
        sequence = cache.sequence()
        assert model.forward([Extension(sequence, ids[:-1], "none")]).shape == (0, model.vocab_size)
        got = model.forward([Extension(sequence, ids[-1:])])
        assert (got == logits_of(model, ids)[-1:]).all()


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_near_those_of_float32(drawn, name, activations):
    ids = draw_ids(name, 100, VOCABULARY)
    with load_model(drawn(name)) as exact, load_model(drawn(name), precision="int8", activations=activations) as model:
        want, got = logits_of(exact, ids), logits_of(model, ids)
    assert (got != want).any()
    assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > 0.995


@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("name", [None, *NAMES])
def test_a_directory_with_int8_weights_gives_the_bits_of_its_source(drawn, tmp_path, name, activations):
    assert quantize_int8(drawn(name), tmp_path / "int8").tensors["I8"] >= 2 * 7
    ids = draw_ids("directory", 80, VOCABULARY)
    with (
        load_model(drawn(name), precision="int8", activations=activations) as made,
        load_model(tmp_path / "int8", precision="int8", activations=activations) as loaded,
        load_model(tmp_path / "int8", activations=activations) as stored,
    ):
        want = logits_of(made, ids)
        assert logits_of(loaded, ids).tobytes() == logits_of(stored, ids).tobytes() == want.tobytes()
        dtypes = {size.dtype for size in loaded.weight_sizes}
        assert "int8" in dtypes
        assert made.eos_token_ids == loaded.eos_token_ids


def test_what_is_worked_out_from_the_configuration_is_not_in_the_file(drawn, tmp_path):
    quantize_int8(drawn(), tmp_path / "int8")
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    original = load_file(drawn() / "model.safetensors")
    assert {name.removesuffix("_scale") for name in tensors} == set(original)
    assert tensors["lm_head.weight"].dtype == np.int8
    assert tensors["model.embed_tokens.weight"].dtype == np.float16
    with pytest.raises(CheckpointError, match="is int8 already"):
        quantize_int8(tmp_path / "int8", tmp_path / "again")


def test_an_int8_model_generates_and_predicts_about_what_the_original_does(drawn, tmp_path):
    quantize_int8(drawn(), tmp_path / "int8")
    with load_model(drawn()) as exact, load_model(tmp_path / "int8") as model:
        with Session(model) as session:
            assert len(session.generate("Once upon", GenerateConfig.greedy(5)).token_ids) == 5
        compared = compare_logits(exact, model, "What is predicted here is noise. " * 8, window=64, stride=32)
    # drawn weights predict noise badly and with certainty
    assert np.log(compared.perplexity) == pytest.approx(np.log(compared.reference_perplexity), rel=0.02)
    assert compared.agreement > 0.8


def test_the_command_writes_it_and_reads_it(drawn, tmp_path, capsys):
    target = tmp_path / "int8"
    assert main(["quantize", str(drawn()), str(target), "--precision", "int8"]) == 0
    capsys.readouterr()
    prompt = ["--temperature", "0", "--max-tokens", "4", "--json", "Once upon"]
    results = []
    for options in ([str(drawn()), "--precision", "int8"], [str(target), "--precision", "int8"], [str(target)]):
        assert main(["generate", "--model", *options, *prompt]) == 0
        results.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert results[0] == results[1] == results[2]


def test_a_broken_source_leaves_nothing_behind(drawn, tmp_path):
    source = write_drawn_model(tmp_path / "source")
    (source / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="architectures"):
        quantize_int8(source, tmp_path / "int8")
    with pytest.raises(InvalidInputError, match="does not exist"):
        quantize_int8(drawn(), tmp_path / "no" / "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
