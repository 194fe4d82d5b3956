"""What can run is said by the code that would run it."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models

from lattice_inference import load_tokenizer
from lattice_inference.capabilities import runs_model_type, runs_tokenizer_model
from lattice_inference.errors import UnsupportedError

MODELS = {
    "WordPiece": lambda: models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"),
    "Unigram": lambda: models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0, byte_fallback=False),
    "BPE": lambda: models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
    "WordLevel": lambda: models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_kind_of_tokenizer_runs_if_a_file_of_it_loads(tmp_path, kind):
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(MODELS[kind]()).save(str(path))
    try:
        load_tokenizer(path)
    except UnsupportedError:
        assert not runs_tokenizer_model(kind)
    else:
        assert runs_tokenizer_model(kind)


def test_the_encoders_that_are_built():
    assert runs_tokenizer_model("WordPiece")
    assert not runs_tokenizer_model("NoSuchModel")
    assert all(map(runs_model_type, ("bert", "roberta", "xlm-roberta", "camembert")))
    assert not runs_model_type("deberta-v2")
