"""Special tokens that a text spells out: found as by Hugging Face's library, or text like any other where that is asked."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.errors import InvalidInputError

CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
TEXT = "the cat [SEP] sat"


@pytest.fixture
def directory(tmp_path):
    return write_directory(tmp_path / "encoder", CASES["all-minilm-l6-v2"])


@pytest.fixture
def ranker(tmp_path):
    return write_directory(tmp_path / "ranker", CASES["cross-encoder-bert"])


def test_a_vector_depends_on_whether_special_tokens_are_found(directory):
    with load_encoder(directory) as found, load_encoder(directory, special_tokens_in_text=False) as plain:
        assert (found.special_tokens_in_text, plain.special_tokens_in_text) == (True, False)
        one, other = (encoder.encode([TEXT]).vectors.tobytes() for encoder in (found, plain))
        assert one != other
        assert found.encode([TEXT], special_tokens_in_text=False).vectors.tobytes() == other
        assert plain.encode([TEXT], special_tokens_in_text=True).vectors.tobytes() == one
        ordinary = ["the cat sat", ""]
        assert found.encode(ordinary).vectors.tobytes() == plain.encode(ordinary).vectors.tobytes()
        counts = [encoder.count_tokens([TEXT]).tolist() for encoder in (found, plain)]
        assert counts[0] < counts[1] == found.count_tokens([TEXT], special_tokens_in_text=False).tolist()
        assert [len(encoder.token_offsets(TEXT)) + 2 for encoder in (found, plain)] == [counts[0][0], counts[1][0]]


def test_only_the_setting_that_is_not_the_default_is_part_of_a_fingerprint(directory):
    with load_encoder(directory) as found, load_encoder(directory, special_tokens_in_text=False) as plain:
        assert plain.fingerprint == found.fingerprint + ":plain"
        assert pickle.loads(pickle.dumps(plain)).special_tokens_in_text is False


def test_a_cache_keeps_the_vectors_of_both_settings_apart(directory, tmp_path):
    for _ in range(2):
        made = []
        for wanted in (True, False):
            with load_encoder(directory, special_tokens_in_text=wanted, cache=tmp_path / "cache") as encoder:
                made += [encoder.encode([TEXT]).vectors.tobytes()]
                made += [encoder.encode([TEXT], special_tokens_in_text=not wanted).vectors.tobytes()]
        assert made[0] == made[3] != made[1] == made[2]


def test_a_score_depends_on_whether_special_tokens_are_found(ranker):
    with load_cross_encoder(ranker) as found, load_cross_encoder(ranker, special_tokens_in_text=False) as plain:
        one, other = (scorer.score("the cat", [TEXT])[0] for scorer in (found, plain))
        assert one != other
        assert found.score("the cat", [TEXT], special_tokens_in_text=False)[0] == other
        assert plain.score_pairs([("the cat", TEXT)], special_tokens_in_text=True)[0] == one
        assert found.count_tokens([("a", TEXT)])[0] < plain.count_tokens([("a", TEXT)])[0]
        assert plain.fingerprint == found.fingerprint + ":plain"
        assert pickle.loads(pickle.dumps(plain)).special_tokens_in_text is False


@pytest.mark.parametrize("wrong", ["no", 0, None])
def test_the_setting_is_true_or_false(directory, ranker, wrong):
    with pytest.raises(InvalidInputError, match="special_tokens_in_text must be"):
        load_encoder(directory, special_tokens_in_text=wrong)
    with pytest.raises(InvalidInputError, match="special_tokens_in_text must be"):
        load_cross_encoder(ranker, special_tokens_in_text=wrong)
