"""Regexes out of a tokenizer's file: what they may cost, in size and in time."""

from __future__ import annotations

import json
import time

import pytest

from lattice_inference import errors, load_tokenizer
from lattice_inference.tokenizer import pattern_limits
from lattice_inference.tokenizer.split_patterns import SCANNERS

from .bpe_vocabularies import definition_of, trained

pytest.importorskip("regex")


@pytest.fixture(scope="module")
def small(udhr):
    return definition_of(trained("gpt2", [udhr["eng"]], 400))


@pytest.fixture
def load(small, tmp_path, monkeypatch):
    """Return a function that loads a tokenizer which splits by the patterns; a call may cost a tenth of a second."""
    monkeypatch.setattr(pattern_limits, "SECONDS_PER_CALL", 0.1)

    def with_patterns(*patterns, first=()):
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in patterns
        ]
        steps = [*first, *splits, small["pre_tokenizer"]]
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({**small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))
        return load_tokenizer(path)

    return with_patterns


HOSTILE = [r"(z|zz)+y", r"(z+)+y", r"([a-z]+)*\d", r"(?:z{1,100}){1,100}y", r"(?i:(z|zz)+y)", r"(?=(z|zz)+y)z"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_pattern_that_searches_for_ever_is_ended(load, pattern):
    tokenizer = load(pattern)
    before = time.thread_time()
    with pytest.raises(errors.InvalidInputError) as caught:
        tokenizer.encode_batch(["a good text", "and z" + "z" * 3000])
    assert time.thread_time() - before < 1.0  # seconds of this thread, ten times what is allowed
    assert str(caught.value).startswith("text 1: ")
    assert pattern in str(caught.value)
    assert "3,005 characters that begin with 'and zzzz" in str(caught.value)


@pytest.mark.parametrize("patterns", [[r"(z|zz)+y"], [r"(z|zz)+x", r"(z|zz)+y"]])
def test_the_words_of_a_call_share_one_limit(load, patterns):
    tokenizer = load(*patterns, first=[{"type": "WhitespaceSplit"}])
    before = time.thread_time()
    with pytest.raises(errors.InvalidInputError, match="takes too long on 24 characters"):
        tokenizer.count(" ".join(["z" * 24] * 2000))  # each of them some milliseconds
    assert time.thread_time() - before < 1.0


def test_each_call_begins_anew(load):
    tokenizer = load(r"(z|zz)+y")
    with pytest.raises(errors.InvalidInputError):
        tokenizer.encode("z" * 60)
    assert tokenizer.decode(tokenizer.encode("zebra").ids) == "zebra"


def test_time_that_good_texts_leave_over_is_not_saved_up(load):
    tokenizer = load(r"(z|zz)+y")
    before = time.thread_time()
    with pytest.raises(errors.InvalidInputError, match="text 20"):
        tokenizer.encode_batch(["a good text " * 1000] * 20 + ["z" * 60])
    assert time.thread_time() - before < 1.5


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a" * 8193, "8,193 characters; the limit is 8,192"),
        (r"a{1000000}", "100,000 elements"),
        (r"(?:a{1000}){1000}", "100,000 elements"),
        (r"(?:(?:a{0,100}){0,100}b){2,100}", "100,000 elements"),
        (r"(?:a?){9999}" * 100, "100,000 elements"),
        (r"[\]{}]{99999}a{9}|\p{L}{99999}", "100,000 elements"),
    ],
)
def test_a_pattern_that_is_too_large_is_refused_before_it_is_compiled(load, pattern, message):
    before = time.thread_time()
    with pytest.raises(errors.TokenizerError, match=message):
        load(pattern)
    assert time.thread_time() - before < 0.5


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"\p{L}{1,3}|\d{2}", 6),
        (r"a{2}{3}", 6),
        (r"(?:ab){1,50}", 150),
        (r"(?i:a)|(?=b)(?<!c)", 7),
        (r"[^a-z]]{4,}", 5),
        (r"\{9999\}", 6),
        ("a{", 2),
        ("a{}", 3),
        (")a", 2),
        ("((((a{10}", 10),
    ],
)
def test_the_size_of_a_pattern(pattern, size):
    assert pattern_limits._size(pattern) == size


def test_published_patterns_are_far_below_the_limits():
    for pattern in SCANNERS:
        assert len(pattern) < pattern_limits.MAX_PATTERN_CHARACTERS / 10
        assert pattern_limits._size(pattern) < pattern_limits.MAX_PATTERN_SIZE / 100
