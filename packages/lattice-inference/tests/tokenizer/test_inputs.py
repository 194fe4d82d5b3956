"""Odd texts, large texts, threads, pickling."""

import pickle
import threading

import numpy as np
import pytest

from lattice_inference.errors import InvalidInputError

from .bounded_work import bounded_work


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "é\udc80b", "😀\ud83d"])
def test_lone_surrogates_are_refused(uncased, text):
    with pytest.raises(TypeError):
        uncased.theirs.encode(text)
    with pytest.raises(InvalidInputError, match=r"text 1 has a lone surrogate at character \d"):
        uncased.ours.encode_batch(["fine", text])
    for call in (uncased.ours.encode, uncased.ours.count, lambda text: uncased.ours.encode("a", text)):
        with pytest.raises(InvalidInputError, match="lone surrogate"):
            call(text)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["list"], np.array("a")])
def test_other_types_are_refused(uncased, text):
    with pytest.raises(InvalidInputError, match="expected str"):
        uncased.ours.encode(text)
    with pytest.raises(InvalidInputError, match="text 1 is of type"):
        uncased.ours.encode_packed(["fine", text])


@pytest.mark.parametrize("texts", ["one text", [("a", "b", "c")], [("a",)], [("a", None)], [("a", 3)]])
def test_wrong_batches_are_refused(uncased, texts):
    with pytest.raises(InvalidInputError):
        uncased.ours.encode_packed(texts)


@pytest.mark.parametrize(
    "text", ["", " ", "\x00", "\u200b\ufeff", "\x07\x1b[0m", "\ue000", "\U0010ffff", "\u0301", "a\x00b"]
)
def test_texts_of_nothing_much(uncased, cased, text):
    uncased.compare(text)
    cased.compare(text)
    uncased.compare(text, text)


def test_str_subclasses_are_texts(uncased):
    class Text(str):
        pass

    assert uncased.ours.encode(Text("the")).ids.tolist() == uncased.ours.encode("the").ids.tolist()


@pytest.mark.parametrize("ids", [[3000], [-1], [2**40], ["2"], [None], [1.5]])
def test_decode_refuses_what_is_no_id(uncased, ids):
    with pytest.raises(InvalidInputError, match="no token has the id"):
        uncased.ours.decode(ids)


def test_decode_takes_arrays(uncased):
    ids = uncased.ours.encode("all human beings").ids
    assert uncased.ours.decode(ids) == "all human beings"
    assert uncased.ours.decode(ids.tolist()) == uncased.ours.decode(list(ids)) == "all human beings"


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "\u0301",
        "\u0301\u0323",
        "日",
        "é",
        "!",
        "[MASK",
        "[MASK]",
        "  [MASK]",
        "the ",
        "\x00",
        "a\x00",
        "é a",
        "\u0f73\u0345",
    ],
)
def test_a_megabyte_of_anything_ends(uncased, unit):
    piece = unit * (100_000 // len(unit))
    uncased.compare(piece[:2000])
    with bounded_work():
        assert uncased.ours.count(piece * 10) > 0


def test_wide_and_narrow_strings_agree(uncased):
    """Python stores a text in 1, 2 or 4 bytes a character; one wide character must not change the rest."""
    text = "All human beings are born free, equal"
    ids = uncased.ours.encode(text, add_special_tokens=False).ids.tolist()
    for wide in ("é", "日", "😀"):
        uncased.compare(f"{text} {wide}")
        assert uncased.ours.encode(f"{text} {wide}", add_special_tokens=False).ids.tolist()[: len(ids)] == ids


def test_eight_threads(uncased, udhr):
    texts = list(udhr.values())
    expected = uncased.ours.encode_packed(texts).token_ids
    failures = []

    def work():
        for _ in range(5):
            if not np.array_equal(uncased.ours.encode_packed(texts).token_ids, expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pickle(uncased):
    again = pickle.loads(pickle.dumps(uncased.ours))
    assert again.encode("[MASK] the").ids.tolist() == uncased.ours.encode("[MASK] the").ids.tolist()
    assert again.vocab_size == 3000
