"""Texts over the limit lose tokens at the end that the tokenizer's files name, as in Hugging Face's libraries."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest
import tokenizers

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.errors import ModelConfigError

TEXTS = ["a cat", "the quick brown fox jumps over the lazy dog and then sleeps in the sun for hours"]
LIMIT = 9
LEFT = {"direction": "Left", "max_length": 128, "strategy": "LongestFirst", "stride": 0}


def directory_of(source, target, *, side=None, truncation=None):
    """Copy a model whose files name a side in one place, in both, or in neither."""
    shutil.copytree(source, target)
    config = target / "tokenizer_config.json"
    content = json.loads(config.read_text()) if config.exists() else {}
    content.pop("truncation_side", None)
    config.write_text(json.dumps(content | ({} if side is None else {"truncation_side": side})))
    stored = json.loads((target / "tokenizer.json").read_text()) | {"truncation": truncation}
    (target / "tokenizer.json").write_text(json.dumps(stored))
    return target


def expected(directory, texts, side):
    """Return the ids of Hugging Face's library."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LIMIT, direction=side)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def rows_of(packed):
    bounds = packed.cu_seqlens.tolist()
    return [packed.token_ids[start:end].tolist() for start, end in pairwise(bounds)]


@pytest.mark.parametrize(
    ("side", "truncation", "want"),
    [
        (None, None, "right"),
        ("right", None, "right"),
        ("left", None, "left"),
        (None, LEFT, "left"),
        ("right", LEFT, "right"),
        ("left", {**LEFT, "direction": "Right"}, "left"),
    ],
)
def test_an_encoder_cuts_at_the_side_that_its_files_name(data_directory, tmp_path, side, truncation, want):
    directory = directory_of(data_directory / "tiny_bert", tmp_path / "m", side=side, truncation=truncation)
    with load_encoder(directory) as encoder:
        assert rows_of(encoder.packed_tokens(TEXTS, max_tokens=LIMIT)) == expected(directory, TEXTS, want)
        cut = rows_of(encoder.packed_tokens(TEXTS, max_tokens=LIMIT))
        vectors = encoder.encode(TEXTS, max_tokens=LIMIT).vectors
        assert encoder.encode_tokens(cut).vectors.tobytes() == vectors.tobytes()
        assert (":cut-left" in encoder.fingerprint) is (want == "left")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cross_encoder_cuts_the_longer_text_of_a_pair_there(data_directory, tmp_path, side):
    cases = json.loads((data_directory / "architectures" / "cases.json").read_text())["cases"]
    source = write_directory(tmp_path / "source", cases["cross-encoder-bert"])
    directory = directory_of(source, tmp_path / "m", side=side)
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[0]), (TEXTS[1], TEXTS[1])]
    with load_cross_encoder(directory) as model:
        assert rows_of(model.packed_tokens(pairs, max_tokens=LIMIT)) == expected(directory, pairs, side)


def test_another_word_for_a_side_is_refused(data_directory, tmp_path):
    directory = directory_of(data_directory / "tiny_bert", tmp_path / "m", side="both")
    with pytest.raises(ModelConfigError, match="truncation_side is 'both'"):
        load_encoder(directory)
