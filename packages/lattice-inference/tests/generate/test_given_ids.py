"""Token ids are integers in an order; what merely can be read as such is refused wherever ids are taken."""

from __future__ import annotations

from array import array
from collections import deque

import numpy as np
import pytest

from lattice_inference import Extension
from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.compare_logits import compare_logits
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.perplexity import perplexity
from lattice_inference.generate.session import Session
from lattice_inference.token_ids import checked_token_ids

IDS = [104, 101, 108, 108, 111]  # "hello" in bytes, which are this model's tokens
GREEDY = GenerateConfig.greedy(2)

WRONG = {
    "bytes": b"hello",
    "bytearray": bytearray(b"hello"),
    "memoryview": memoryview(b"hello"),
    "memoryview of integers": memoryview(array("i", IDS)),
    "bools": [True, False, True],
    "a bool among ids": [*IDS, True],
    "a bool of NumPy among ids": (*IDS, np.True_),
    "an array of bools": np.ones(5, np.bool_),
    "an array of floats": np.array(IDS, np.float64),
    "whole floats": [104.0, 101.0],
    "a float of NumPy": [np.float32(104)],
    "an array of two axes": np.array([IDS]),
    "an array of no axis": np.array(104),
    "a masked array": np.ma.masked_array(IDS, mask=[0, 0, 1, 0, 0]),
    "texts": ["hello"],
    "lists": [IDS],
    "None among ids": [104, None],
    "a set": set(IDS),
    "a frozenset": frozenset(IDS),
    "a dict": dict.fromkeys(IDS),
    "keys": dict.fromkeys(IDS).keys(),
    "a generator": (token_id for token_id in IDS),
    "a map": map(int, IDS),
    "None": None,
    "a number": 104,
    "a float": 1.5,
    "a function": len,
    "a negative id": [104, -1],
    "a huge id": [2**31],
    "an id beyond all": [10**400],
    "an id beyond printing": [-(10**5000)],
}
RIGHT = {
    "a tuple": tuple(IDS),
    "an array": np.array(IDS),
    "an array of uint8": np.array(IDS, np.uint8),
    "an array.array": array("i", IDS),
    "a deque": deque(IDS),
    "integers of NumPy": [np.int64(token_id) for token_id in IDS],
}

ENTRIES = {
    "generate": lambda model, given: Session(model).generate(given, GREEDY),
    "extend": lambda model, given: Session(model).extend(given, GREEDY),
    "stream": lambda model, given: Session(model).stream(given, GREEDY),
    "generate_batch": lambda model, given: Session(model).generate_batch(["a", given], GREEDY),
    "perplexity": lambda model, given: perplexity(model, given, window=8, stride=4),
    "compare_logits": lambda model, given: compare_logits(model, model, given, window=8, stride=4),
    "decode": lambda model, given: model.tokenizer.decode(given),
    "forward": lambda model, given: forward(model, given),
    "start": lambda model, given: start(model, given),
}


def forward(model, given):
    with model.open_cache(tokens=64) as cache:
        return model.forward([Extension(cache.sequence(), given)]).tolist()


def start(model, given):
    with model.open_cache(tokens=64, prefix_bytes=10**6) as cache:
        return cache.start(given).token_ids


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_list_of_ids_is_refused(drawn_model, entry, name):
    given = WRONG[name]
    with pytest.raises(InvalidInputError) as caught:
        ENTRIES[entry](drawn_model, given)
    assert len(str(caught.value)) < 300
    assert "id" in str(caught.value)


@pytest.mark.parametrize("name", RIGHT)
def test_ids_are_ids_however_they_come(drawn_model, name):
    assert checked_token_ids(RIGHT[name], "the prompt") == IDS
    for entry in ("decode", "forward", "start"):
        assert ENTRIES[entry](drawn_model, RIGHT[name]) == ENTRIES[entry](drawn_model, IDS)
    expected = ENTRIES["generate"](drawn_model, IDS).token_ids
    assert ENTRIES["generate"](drawn_model, RIGHT[name]).token_ids == expected
    assert ENTRIES["generate_batch"](drawn_model, RIGHT[name])[1].token_ids == expected


def test_the_error_says_what_is_taken(drawn_model):
    with pytest.raises(InvalidInputError, match=r"^the prompt is a bytes; expected a str or token ids \(a list of int"):
        Session(drawn_model).generate(b"hello", GREEDY)
    with pytest.raises(
        InvalidInputError, match=r"^prompt 1 holds True at 0; expected a str or token ids: .* no bools$"
    ):
        Session(drawn_model).generate_batch(["a", [True]], GREEDY)


@pytest.mark.parametrize("prompts", ["a", b"a", bytearray(b"a"), {"a"}, {"a": 1}, None, 5, np.array("a")], ids=repr)
def test_what_is_no_list_of_prompts_is_refused(drawn_model, prompts):
    with pytest.raises(InvalidInputError, match=r"^prompts is .*list of prompts$"):
        Session(drawn_model).generate_batch(prompts, GREEDY)


def test_one_id_is_an_integer(drawn_model):
    tokenizer = drawn_model.tokenizer
    stream = tokenizer.stream()
    for wrong in (True, np.True_, 1.0, "a", None, [104], 10**400, -1):
        with pytest.raises(InvalidInputError, match="no token has the id"):
            stream.push(wrong)
    for wrong in (True, 1.0, "a", None, [104], {}):
        with pytest.raises(InvalidInputError, match="a token id is an integer"):
            tokenizer.id_to_token(wrong)
    for wrong in (1, None, b"a", []):
        with pytest.raises(InvalidInputError, match="a token is a str"):
            tokenizer.token_to_id(wrong)
    assert [tokenizer.id_to_token(outside) for outside in (-1, 2**31, 10**400)] == [None] * 3


@pytest.mark.parametrize(
    "ids", [b"a", bytearray(b"a"), memoryview(b"a"), {97: 1}, [True]], ids=lambda ids: type(ids).__name__
)
def test_stop_tokens_are_ids(ids):
    with pytest.raises(InvalidInputError, match="stop_token_ids"):
        GenerateConfig(stop_token_ids=ids)
