"""Checks of what the registry stores: names, aliases, texts, digests, paths and JSON.

A path lies inside a version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lattice_tune.errors import InvalidInputError, shown

__all__ = [
    "CHAMPION",
    "MOST_COUNT",
    "check_alias",
    "check_digest",
    "check_name",
    "check_relative_path",
    "check_text",
    "check_texts",
    "checked_json",
    "is_alias",
]

CHAMPION = "champion"
"""The alias that names the version in production. Only promotions and rollbacks move it."""

MOST_COUNT = 2**53
"""The largest number that JSON and SQLite give back as it was."""

MOST_NAME_CHARACTERS = 128
MOST_ALIAS_CHARACTERS = 64
MOST_TEXT_CHARACTERS = 16_384
MOST_JSON_BYTES = 1 << 20
MOST_PATH_BYTES = 1_024

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_name(value: object) -> str:
    """Return the name of a model: ASCII letters, digits, ``.``, ``_`` and ``-``.

    It has at most 128 characters, and no ``..``.
    """
    if (
        not isinstance(value, str)
        or len(value) > MOST_NAME_CHARACTERS
        or not _NAME.fullmatch(value)
        or ".." in value
        or value.endswith(".")
    ):
        raise InvalidInputError(
            f"name is {shown(value)}; it must be 1 to {MOST_NAME_CHARACTERS} ASCII letters, digits, '.', '_' or '-', "
            "begin with none of '.' and '-', and hold no '..'"
        )
    return value


def is_alias(value: object) -> bool:
    """Whether a text can be an alias: no version can, which begins with a digit."""
    return isinstance(value, str) and len(value) <= MOST_ALIAS_CHARACTERS and _ALIAS.fullmatch(value) is not None


def check_alias(value: object) -> str:
    """Return an alias that a caller may set: letters, digits, ``_`` and ``-``.

    It does not begin with a digit or ``-``.
    """
    if not isinstance(value, str) or not is_alias(value):
        raise InvalidInputError(
            f"alias is {shown(value)}; it must be 1 to {MOST_ALIAS_CHARACTERS} ASCII letters, digits, '_' or '-', and "
            "begin with a letter or '_'"
        )
    if value == CHAMPION:
        raise InvalidInputError(
            f"the alias {CHAMPION} names the version in production: promote or roll back to move it"
        )
    return value


def check_text(name: str, value: object, *, most: int = MOST_TEXT_CHARACTERS, empty: bool = True) -> str:
    """Return a text without NUL and lone surrogates, of at most ``most`` characters."""
    if not isinstance(value, str) or len(value) > most or (not empty and not value.strip()):
        raise InvalidInputError(
            f"{name} is {shown(value)}; it must be a text of {'0' if empty else '1'} to {most:,} characters"
        )
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInputError(f"{name} is {shown(value)}; it must hold neither NUL nor half of a surrogate pair")
    return value


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """Return a sequence of texts as a tuple."""
    if isinstance(value, (list, tuple)) and len(value) <= MOST_NAME_CHARACTERS:
        return tuple(check_text(f"an item of {name}", each) for each in value)
    raise InvalidInputError(f"{name} is {shown(value)}; it must be a list of at most {MOST_NAME_CHARACTERS} texts")


def check_digest(name: str, value: object) -> str:
    """Return a SHA-256 in lower-case hex."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a SHA-256: 64 digits of lower-case hex")
    return value


def check_relative_path(name: str, value: object) -> str:
    """Return the path of a file inside a version.

    Its parts are joined by ``/``; none of them is empty, ``.`` or ``..``.
    """
    if isinstance(value, str) and 0 < len(value) <= MOST_PATH_BYTES:
        parts = value.split("/")
        whole = all(part not in ("", ".", "..") for part in parts) and not any(
            character < " " or character in "\\\x7f" or "\ud800" <= character <= "\udfff" for character in value
        )
        if whole and len(value.encode()) <= MOST_PATH_BYTES and all(len(part.encode()) <= 255 for part in parts):
            return value
    raise InvalidInputError(
        f"{name} is {shown(value)}; it must be a relative path of at most {MOST_PATH_BYTES} bytes, without '..', "
        "backslashes and control characters"
    )


def checked_json(name: str, value: object) -> dict[str, Any]:
    """Return a mapping as a new dict of JSON values.

    What JSON cannot hold, or is over 1 MiB, is refused.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} is {shown(value)}; it must be a mapping of texts to JSON values")
    try:
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is no text")
        text = json.dumps(dict(value), allow_nan=False)
        size = len(text)
        text.encode().decode()
        copy = json.loads(text)
        json.dumps(copy, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} cannot be written as JSON: {str(error)[:200]}") from None
    if size > MOST_JSON_BYTES:
        raise InvalidInputError(f"{name} is {size:,} bytes as JSON; at most {MOST_JSON_BYTES:,} are stored")
    return dict(copy)
