"""The vectors of a text's tokens: those that the pooling makes the text's vector of, which are checked elsewhere."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import qwen3_files
from drawn_checkpoints import write_directory
from lattice_inference import load_encoder
from lattice_inference.errors import (
    CheckpointError,
    InvalidInputError,
    ModelNotFoundError,
    NonFiniteError,
    TextTooLongError,
)
from lattice_inference.runtime import get_num_threads, set_num_threads
from static_models import write_static

TINY_BERT = Path(__file__).parents[1] / "data" / "tiny_bert"
CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
TEXTS = ["the cat sat on the mat", "", "  dogs and   cats , are they ?  ", "☃ 猫", "the " * 200]

POOL = {"cls": lambda rows: rows[0], "last": lambda rows: rows[-1], "mean": lambda rows: rows.mean(axis=0)}


@pytest.fixture
def threads():
    before = get_num_threads()
    yield set_num_threads
    set_num_threads(before)


def written(folder, name):
    if name == "qwen3":
        return qwen3_files.write(folder / name, qwen3_files.embedding_files(), prefix="")
    return write_directory(folder / name, CASES[name])


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("name", ["bge-small-en-v1.5", "all-minilm-l6-v2", "roberta", "xlm-roberta-padding-7", "qwen3"])
def test_pooled_they_are_the_texts_vector(tmp_path, name, precision):
    with load_encoder(written(tmp_path, name), precision=precision) as encoder:
        whole = encoder.encode(TEXTS, normalize=False)
        tokens = encoder.token_vectors(TEXTS)
        pooled = np.stack([POOL[encoder.pooling](rows) for rows in tokens])
        assert [len(rows) for rows in tokens] == whole.token_counts.tolist()
        assert {rows.shape[1] for rows in tokens} == {encoder.dimension}
        assert {rows.dtype for rows in tokens} == {np.dtype(np.float32)}
    if name == "qwen3" and precision != "float32":  # one row of a text goes through the last linears, in floats
        lengths = np.linalg.norm(pooled, axis=1) * np.linalg.norm(whole.vectors, axis=1)
        assert ((pooled * whole.vectors).sum(axis=1) / lengths).min() > 0.99
    elif encoder.pooling == "mean":
        np.testing.assert_allclose(pooled, whole.vectors, atol=2e-6)
    else:
        assert pooled.tobytes() == whole.vectors.tobytes()


@pytest.mark.parametrize("name", ["all-minilm-l6-v2", "qwen3"])
def test_the_reference_backend_gives_the_same(tmp_path, name):
    directory = written(tmp_path, name)
    with load_encoder(directory) as encoder, load_encoder(directory, backend="reference") as slow:
        for ours, theirs in zip(encoder.token_vectors(TEXTS), slow.token_vectors(TEXTS), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=5e-6)


def test_they_have_the_width_of_the_states_before_further_layers(tmp_path):
    directory = written(tmp_path, "dense-tanh")
    width = json.loads((directory / "config.json").read_text())["hidden_size"]
    with load_encoder(directory) as encoder:
        assert encoder.dimension != width
        assert [rows.shape[1] for rows in encoder.token_vectors(TEXTS)] == [width] * len(TEXTS)


def test_a_static_model_gives_its_table_and_no_rows_without_known_words(tmp_path):
    with load_encoder(write_static(tmp_path, "plain")) as encoder:
        tokens = encoder.token_vectors(["", "the cat", "日本", "cat"])
        assert [len(rows) for rows in tokens] == [0, 2, 0, 1]
        assert tokens[1][1].tobytes() == tokens[3][0].tobytes()
        vector = encoder.encode(["the cat"], normalize=False).vectors[0]
        np.testing.assert_allclose(tokens[1].mean(axis=0), vector, atol=1e-6)
        assert encoder.token_vectors([""])[0].shape == (0, encoder.dimension)
        assert encoder.token_vectors([]) == []


def test_bits_depend_on_neither_company_nor_threads(threads):
    with load_encoder(TINY_BERT) as encoder:
        threads(1)
        alone = [encoder.token_vectors([text])[0].tobytes() for text in TEXTS]
        order = np.random.RandomState(0).randint(0, len(TEXTS), 90)  # more than one step of tokens
        for count in (1, 3):
            threads(count)
            together = encoder.token_vectors([TEXTS[index] for index in order])
            assert [rows.tobytes() for rows in together] == [alone[index] for index in order]


def test_tokens_are_those_of_packed_tokens():
    with load_encoder(TINY_BERT) as encoder:
        for options in ({}, {"prompt": "the "}, {"max_tokens": 4}):
            counts = np.diff(encoder.packed_tokens(TEXTS, **options).cu_seqlens)
            assert [len(rows) for rows in encoder.token_vectors(TEXTS, **options)] == counts.tolist()
        with pytest.raises(TextTooLongError, match="text 1 has 5 tokens and max_tokens is 4"):
            encoder.token_vectors(["the", "the cat sat"], truncate="error", max_tokens=4)
        with pytest.raises(InvalidInputError, match="truncate"):
            encoder.token_vectors(["a"], truncate="left")
        with pytest.raises(InvalidInputError, match="pass \\[text\\]"):
            encoder.token_vectors("a")


def test_special_tokens_in_a_text_are_found_unless_they_are_not_wanted(tmp_path):
    with load_encoder(written(tmp_path, "all-minilm-l6-v2")) as encoder:
        for found in (False, True):
            counts = encoder.encode(["[SEP] cats"], special_tokens_in_text=found).token_counts
            assert [len(rows) for rows in encoder.token_vectors(["[SEP] cats"], special_tokens_in_text=found)] == counts
        assert len(encoder.token_vectors(["[SEP] cats"], special_tokens_in_text=False)[0]) > counts[0]


def test_weights_are_shared_and_nothing_is_made_before_it_is_asked_for():
    with load_encoder(TINY_BERT) as encoder:
        tokens = encoder._program._tokens
        encoder.encode(["a"])
        assert tokens._program is None
        encoder.token_vectors(["a"])
        encoder.trim()
        assert sum(size.nbytes for size in tokens._program._program.weight_sizes) == 0
        copy = pickle.loads(pickle.dumps(encoder))
        assert copy.token_vectors(["a"])[0].tobytes() == encoder.token_vectors(["a"])[0].tobytes()
        copy.close()
    with pytest.raises(InvalidInputError, match="closed"):
        encoder.token_vectors(["a"])
    assert tokens._program is None


def test_files_that_have_changed_since_are_refused(tmp_path):
    directory = shutil.copytree(TINY_BERT, tmp_path / "model")
    with load_encoder(directory) as changed, load_encoder(directory) as early:
        early.token_vectors(["a"])
        content = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(content, indent=3))
        with pytest.raises(CheckpointError, match="was changed after the model was loaded"):
            changed.token_vectors(["a"])
        shutil.rmtree(directory)
        with pytest.raises(ModelNotFoundError):
            changed.token_vectors(["a"])
        assert len(early.token_vectors(["a"])) == 1


def test_a_text_whose_vectors_are_not_finite_is_named(tmp_path):
    from safetensors.numpy import load_file, save_file

    directory = shutil.copytree(TINY_BERT, tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    with load_encoder(directory) as encoder:
        (cat,) = encoder.tokenizer.encode("cat", add_special_tokens=False).ids.tolist()
    tensors["embeddings.word_embeddings.weight"][cat] = 3e38
    save_file(tensors, directory / "model.safetensors")
    texts = ["the", "a cat", "dogs", "cat"]
    with load_encoder(directory) as encoder:
        with pytest.raises(NonFiniteError) as whole:
            encoder.encode(texts)
        with pytest.raises(NonFiniteError, match="text 1 ") as raised:
            encoder.token_vectors(texts)
    assert raised.value.rows == whole.value.rows == (1, 3)
