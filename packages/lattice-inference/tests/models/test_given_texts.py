"""Several texts are in an order; one text, bytes and sets are refused wherever a list of texts is taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.errors import InvalidInputError, TextTooLongError
from lattice_inference.quantize import Calibrator

TEXTS = ["a cat", "the dog"]
WRONG = {
    "one str": "a cat",
    "bytes": b"a cat",
    "bytearray": bytearray(b"a cat"),
    "memoryview": memoryview(b"a cat"),
    "a set": set(TEXTS),
    "a dict": dict.fromkeys(TEXTS),
    "None": None,
    "a number": 5,
    "an array of no axis": np.array("a cat"),
    "numbers": [1, 2],
    "bytes in a list": [b"a cat"],
    "None in a list": [None],
    "a text and a number": ["a cat", 10**400],
}


@pytest.fixture(scope="module")
def encoder(request):
    data = request.getfixturevalue("data_directory")
    with load_encoder(data / "tiny_bert") as made:
        yield made


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    cases = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
    with load_cross_encoder(
        write_directory(tmp_path_factory.mktemp("cross") / "m", cases["cross-encoder-bert"])
    ) as made:
        yield made


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_list_of_texts_is_refused(encoder, scorer, name):
    given = WRONG[name]
    calls = [
        lambda: encoder.encode(given),
        lambda: encoder.encode(given, prompt="query: "),
        lambda: encoder.count_tokens(given),
        lambda: encoder.tokenizer.encode_batch(given),
        lambda: encoder.tokenizer.encode_packed(given),
        lambda: scorer.score_pairs(given),
        lambda: scorer.count_tokens(given),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()


def test_the_error_names_the_remedy(encoder):
    with pytest.raises(InvalidInputError, match=r"not one string: pass \[text\]"):
        encoder.encode("a cat")
    with pytest.raises(
        InvalidInputError, match=r"texts is one str, which would be read letter by letter: pass \[text\], a list"
    ):
        encoder.tokenizer.encode_batch("a cat")
    with pytest.raises(InvalidInputError, match="texts is bytes; decode them, and pass a list of texts"):
        encoder.tokenizer.encode_batch(b"a cat")
    with pytest.raises(InvalidInputError, match="texts is a set, whose order is not defined; pass a list of texts"):
        encoder.tokenizer.encode_packed({"a cat"})


@pytest.mark.parametrize("given", [tuple(TEXTS), np.array(TEXTS), iter(TEXTS)], ids=["tuple", "array", "iterator"])
def test_texts_are_texts_however_they_come(encoder, given):
    assert encoder.encode(given).vectors.tobytes() == encoder.encode(TEXTS).vectors.tobytes()


@pytest.mark.parametrize("wrong", [None, 5, b"query: ", ["query: "]], ids=repr)
def test_a_prompt_is_a_str(encoder, wrong):
    for call in (encoder.encode, encoder.count_tokens):
        with pytest.raises(InvalidInputError, match=r"prompt is .*; pass a str"):
            call(TEXTS, prompt=wrong)


@pytest.mark.parametrize("wrong", [b"a cat", 5, None, ["a cat"], ("a", "b")], ids=repr)
def test_one_text_is_a_str(encoder, wrong):
    for call in (encoder.tokenizer.encode, encoder.tokenizer.count, encoder.token_offsets):
        with pytest.raises(InvalidInputError):
            call(wrong)


@pytest.mark.parametrize("name", [name for name in WRONG if name != "one str"])
def test_a_calibrator_observes_texts_only(data_directory, name):
    with Calibrator(data_directory / "tiny_bert") as calibrator, pytest.raises(InvalidInputError):
        calibrator.observe(WRONG[name])


class TestTokenIds:
    def test_they_have_the_bits_of_their_texts(self, encoder):
        ids = [encoder.tokenizer.encode(text).ids for text in TEXTS]
        expected = encoder.encode(TEXTS)
        told = encoder.encode_tokens(ids)
        assert told.vectors.tobytes() == expected.vectors.tobytes()
        assert told.token_counts.tolist() == expected.token_counts.tolist()
        assert encoder.encode_tokens([]).vectors.shape == (0, encoder.dimension)

    @pytest.mark.parametrize("given", [None, 3, "abc", [1], [[]], [[1], []], [["a"]], [[True]], [[-1]], [[10**9]]])
    def test_others_are_refused(self, encoder, given):
        with pytest.raises(InvalidInputError):
            encoder.encode_tokens(given)

    def test_too_many_are_refused(self, encoder):
        assert len(encoder.encode_tokens([[5] * encoder.max_tokens]).vectors) == 1
        with pytest.raises(TextTooLongError, match="text 1 has"):
            encoder.encode_tokens([[5], [5] * (encoder.max_tokens + 1)])
