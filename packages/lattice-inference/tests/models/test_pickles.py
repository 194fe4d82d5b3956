"""A pickle names its model by an absolute path: a change of the working directory changes no result."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import Extension, load_cross_encoder, load_encoder, load_model, load_tokenizer
from lattice_inference.quantize import export_bert_gguf
from tiny_decoders import write_drawn_model

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two working directories that hold other models of the same names."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, encoder, scorer, seed in (
        (here, "dense-tanh", "cross-encoder-bert-logits", 0),
        (elsewhere, "roberta", "cross-encoder-bert-three-labels", 1),
    ):
        write_directory(folder / "encoder", CASES[encoder])
        write_directory(folder / "scorer", CASES[scorer])
        write_drawn_model(folder / "decoder", seed)
    export_bert_gguf(DATA / "tiny_bert", here / "m.gguf", "F32")
    export_bert_gguf(DATA / "tiny_bert", elsewhere / "m.gguf", "Q8_0")
    monkeypatch.chdir(here)

    def move():
        monkeypatch.chdir(elsewhere)

    return move


def vectors(encoder):
    return encoder.encode(["a cat", "the dog sat"]).vectors


def scores(scorer):
    return scorer.score("a cat", ["the dog", "cats"])


def logits(model):
    with model.open_cache() as cache:
        return model.forward([Extension(cache.sequence(), [1, 2, 3])])


@pytest.mark.parametrize(
    ("load", "name", "result"),
    [
        (load_encoder, "./encoder", vectors),
        (load_encoder, "encoder", vectors),
        (load_encoder, Path("encoder"), vectors),
        (load_encoder, "../here/m.gguf", vectors),
        (load_cross_encoder, "./scorer", scores),
        (load_cross_encoder, "scorer", scores),
        (load_model, "./decoder", logits),
        (load_model, "decoder", logits),
    ],
)
def test_a_pickle_finds_its_model_from_another_working_directory(places, load, name, result):
    with load(name) as model:
        data, expected = pickle.dumps(model), result(model)
        directory = model.directory
    places()
    with pickle.loads(data) as again:
        assert again.directory == directory
        assert again.directory.is_absolute()
        assert np.array_equal(result(again), expected)
        with pickle.loads(pickle.dumps(again)) as third:
            assert third.directory == directory


@pytest.mark.parametrize("cache", ["./vectors", Path("vectors")])
def test_a_pickled_encoder_keeps_its_folder_of_vectors(places, tmp_path, cache):
    with load_encoder("./encoder", cache=cache) as encoder:
        data = pickle.dumps(encoder)
    places()
    with pickle.loads(data) as again:
        vectors(again)
    assert not (tmp_path / "elsewhere" / "vectors").exists()
    assert list((tmp_path / "here" / "vectors").iterdir())


def test_a_pickled_tokenizer_needs_no_file(places, tmp_path):
    tokenizer = load_tokenizer("./encoder")
    data, expected = pickle.dumps(tokenizer), list(tokenizer.encode("a cat").ids)
    places()
    shutil.rmtree(tmp_path / "here")
    assert list(pickle.loads(data).encode("a cat").ids) == expected
