"""Checks of single fields: those of lattice_inference, with errors of this package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lattice_inference import argument_checks
from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.text_lists import check_text_list
from lattice_tune.errors import ConfigError, InvalidInputError, shown

__all__ = ["check_file_path", "check_integer", "check_kind", "check_number", "check_texts", "list_of"]

Kind = TypeVar("Kind")

MOST_TEXT_CHARACTERS = 10_000_000


@contextmanager
def _as(error: type[InvalidInputError]) -> Iterator[None]:
    try:
        yield
    except InferenceInputError as found:
        raise error(str(found)) from None


def check_integer(name: str, value: object, *, least: int, most: int, optional: bool = False) -> None:
    """Refuse what is no integer in [least, most]; ``None`` is taken where the field is optional."""
    if value is None and optional:
        return
    with _as(ConfigError):
        argument_checks.check_count(name, value, least=least, most=most)


def check_number(name: str, value: object, *, least: float, most: float, optional: bool = False) -> None:
    """Refuse what is no number in [least, most], such as NaN; ``None`` only if ``optional``."""
    if value is None and not optional:
        raise ConfigError(f"{name} is None; expected a number from {least:g} to {most:g}")
    with _as(ConfigError):
        argument_checks.check_number(name, value, least, most)


def check_kind(name: str, value: object, kind: type[Any]) -> None:
    """Refuse what is not of ``kind``."""
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a {kind.__name__}")


def list_of(name: str, values: object, kind: type[Kind]) -> list[Kind]:
    """Return values as a list; something else than a ``kind`` in it is refused."""
    with _as(InvalidInputError):
        found = list(check_text_list(values, name, "values"))
    for index, value in enumerate(found):
        check_kind(f"{name}[{index}]", value, kind)
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
