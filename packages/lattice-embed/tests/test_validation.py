"""What may be embedded: every kind of wrong text is refused by name, and nothing right is."""

from collections.abc import Iterator

import numpy as np
import pytest

from lattice_embed import (
    EmptyInputError,
    InvalidInputError,
    InvalidTextError,
    Role,
    TextTooLongError,
    TooManyTextsError,
)
from lattice_embed.validation import check_limit, check_role, check_texts


def check(texts: object, *, max_texts: int = 10, max_chars: int = 100) -> list[str]:
    return check_texts(texts, max_texts=max_texts, max_chars=max_chars)


@pytest.mark.parametrize(
    "texts",
    [
        ["a"],
        ("a", "b"),
        [""],
        ["   ", "\n", "\x00\x07", "\u200b"],
        ["\U0001f600", "日本語"],
        np.array(["a", "bc"]),
        iter(["a", "b"]),
        ["x" * 100] * 10,
    ],
    ids=["list", "tuple", "empty", "blank", "astral", "array", "iterator", "at the limits"],
)
def test_texts_are_taken_as_they_are(texts: object) -> None:
    listed = list(texts) if isinstance(texts, list | tuple) else None
    checked = check(texts)
    assert all(isinstance(text, str) for text in checked)
    if listed is not None:
        assert checked == listed


def test_one_string_is_not_read_letter_by_letter() -> None:
    with pytest.raises(InvalidInputError, match=r"\[text\]"):
        check("one text")


@pytest.mark.parametrize("texts", [b"bytes", bytearray(b"x"), {"a"}, {"a": 1}, 5, None, 1.5])
def test_things_that_are_no_list_of_texts_are_refused(texts: object) -> None:
    with pytest.raises(InvalidInputError, match="pass a list of texts"):
        check(texts)


@pytest.mark.parametrize("texts", [[], (), iter([])])
def test_no_texts_are_refused(texts: object) -> None:
    with pytest.raises(EmptyInputError, match="encode"):
        check(texts)


def test_too_many_texts_are_refused_without_reading_on() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "a"

    with pytest.raises(TooManyTextsError, match="more than 10 texts") as caught:
        check(endless())
    assert caught.value.limit == 10


@pytest.mark.parametrize("wrong", [None, 3, b"x", 1.5, ["a"], np.str_])
def test_element_that_is_no_str_is_named(wrong: object) -> None:
    with pytest.raises(InvalidTextError, match="text 1 is a ") as caught:
        check(["fine", wrong, "fine"])
    assert caught.value.index == 1


def test_long_text_is_refused_with_both_numbers() -> None:
    with pytest.raises(TextTooLongError) as caught:
        check(["fine", "x" * 101])
    assert (caught.value.index, caught.value.length, caught.value.limit) == (1, 101, 100)
    assert caught.value.unit == "characters"


def test_the_limit_counts_characters_not_bytes() -> None:
    assert check(["語" * 100]) == ["語" * 100]


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff ok"])
def test_lone_surrogate_is_refused_by_position(text: str) -> None:
    with pytest.raises(InvalidTextError, match=r"text 1 holds a lone surrogate \(U\+D"):
        check(["fine", text])


def test_roles_are_understood_by_value() -> None:
    assert check_role("query") is Role.QUERY
    assert check_role(Role.PASSAGE) is Role.PASSAGE
    with pytest.raises(InvalidInputError, match=r"Role\.QUERY"):
        check_role("question")


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, float("nan"), "3"])
def test_limits_must_be_whole_numbers_from_one(value: object) -> None:
    with pytest.raises(InvalidInputError, match="n is"):
        check_limit("n", value)
