"""Checks of texts, lists and files of teachers, with errors of this package.

The checks are those of lattice_inference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lattice_inference import argument_checks
from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.text_lists import check_text_list
from lattice_tune.arguments import instance
from lattice_tune.errors import InvalidInputError, shown

__all__ = ["check_file_path", "check_texts", "list_of"]

Kind = TypeVar("Kind")

MOST_TEXT_CHARACTERS = 10_000_000


@contextmanager
def _as(error: type[InvalidInputError]) -> Iterator[None]:
    try:
        yield
    except InferenceInputError as found:
        raise error(str(found)) from None


def list_of(name: str, values: object, kind: type[Kind]) -> list[Kind]:
    """Return values as a list; something else than a ``kind`` in it is refused."""
    with _as(InvalidInputError):
        found = list(check_text_list(values, name, "values"))
    for index, value in enumerate(found):
        instance(value, f"{name}[{index}]", kind)
    return found


def check_texts(texts: object) -> list[str]:
    """Return texts as a list; refuse one text by itself, and what is no text."""
    with _as(InvalidInputError):
        found = list(check_text_list(texts, "texts"))
    for index, text in enumerate(found):
        if not isinstance(text, str):
            raise InvalidInputError(f"text {index} is {shown(text)}; it must be a str")
        if not len(text) <= MOST_TEXT_CHARACTERS:
            raise InvalidInputError(
                f"text {index} has {len(text):,} characters; at most {MOST_TEXT_CHARACTERS:,} are taken"
            )
    return found


def check_file_path(name: str, value: object) -> Path:
    """Return ``value`` as the path of a file."""
    with _as(InvalidInputError):
        argument_checks.check_path(name, value)
    path = Path(value)  # type: ignore[arg-type]
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidInputError(f"{name} is {shown(value)}; it holds a lone surrogate") from None
    if "\0" in str(path) or not path.name:
        raise InvalidInputError(f"{name} is {shown(value)}; it must name a file, without NUL")
    return path
