"""Checks the arguments of the database of vectors: keys, entries, a space's name, a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lattice_inference.argument_checks import check_path
from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["check_space", "checked_entries", "checked_folder", "checked_keys"]


def checked_keys(keys: Any) -> list[bytes]:
    """Return keys as a list."""
    listed = keys if type(keys) is list else _listed("keys", keys, "a list of bytes")
    for key in listed:
        if type(key) is not bytes:
            raise InvalidInputError(f"keys holds {value_text(key)}; expected bytes")
    return listed


def checked_entries(entries: Any) -> list[tuple[bytes, bytes]]:
    """Return entries as a list."""
    listed = _listed("entries", entries, "a list of pairs: key and vector, both bytes")
    for entry in listed:
        if not (isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, bytes) for part in entry)):
            raise InvalidInputError(f"entries holds {value_text(entry)}; expected pairs: key and vector, both bytes")
    return listed


def check_space(space: object) -> None:
    """Refuse what is no text that UTF-8 has."""
    try:
        if isinstance(space, str) and (space.isascii() or space.encode()):
            return
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"space is {value_text(space)}; expected text that UTF-8 has")


def checked_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder's path, with the user's home in the place of ``~``."""
    check_path("folder", folder)
    if "\0" in os.fspath(folder):
        raise InvalidInputError(f"folder is {value_text(folder)}; no path has a NUL in it")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # of ~name without such a user
        raise InvalidInputError(f"folder is {value_text(folder)}: {error}") from None


def _listed(name: str, values: Any, expected: str) -> list[Any]:
    if not isinstance(values, (str, bytes)):
        try:
            return list(values)
        except TypeError:
            pass
    raise InvalidInputError(f"{name} is {value_text(values)}; expected {expected}")
