"""Reads JSON strictly: a missing field, a wrong type or an unknown field is an error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from lattice_inference.checkpoint.model_file import SNIFF_BYTES, foreign_content, is_stand_in
from lattice_inference.checkpoint.read_once import remember, remembered
from lattice_inference.errors import ModelNotFoundError, TokenizerError

__all__ = ["MAX_FILE_BYTES", "Fields", "parse_json_object", "read_file", "read_json_object", "read_text_file"]

MAX_FILE_BYTES = 64 * 2**20
"""Largest tokenizer file that is read; the largest published ones have about half."""

T = TypeVar("T")

_REQUIRED = object()


def read_file(path: Path) -> bytes:
    """Return the bytes of ``path``.

    Raises:
        ModelNotFoundError: nothing is there.
        TokenizerError: it is too large, cannot be read, or is a Git LFS pointer or a web page in a file's place.
    """
    data = remembered(path)
    if data is None:
        data = _read(path)
    if is_stand_in(data[:SNIFF_BYTES]):
        raise TokenizerError(f"{path} is {foreign_content(data[:SNIFF_BYTES])}")
    return data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size  # a pipe has none, and a file may grow: the limit is checked again
            data = file.read(min(size, MAX_FILE_BYTES) + 1)
            while len(data) <= MAX_FILE_BYTES and (more := file.read(MAX_FILE_BYTES + 1 - len(data))):
                data += more
    except FileNotFoundError as cause:
        raise ModelNotFoundError(f"{path}: no such file") from cause
    except OSError as cause:
        raise TokenizerError(f"{path} cannot be read: {cause.strerror}") from cause
    if len(data) > MAX_FILE_BYTES:
        raise TokenizerError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes, the limit for a tokenizer file")
    remember(path, status, data)
    return data


def read_text_file(path: Path) -> str:
    """Return the UTF-8 text of ``path``.

    Raises :class:`TokenizerError` if it is too large or not UTF-8.
    """
    return _decode(read_file(path), path)


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not UTF-8: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``.

    Raises :class:`TokenizerError` if it holds anything else.
    """
    return parse_json_object(read_file(path), path)


def parse_json_object(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in ``data``, which ``path`` names.

    Raises :class:`TokenizerError` for anything else.
    """
    text = _decode(data, path)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise TokenizerError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Fields:
    """One JSON object, read field by field; :meth:`finish` refuses what was not read.

    ``where`` names the object in messages, such as ``normalizer.normalizers[1]``.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise TokenizerError(f"{where} is a {type(value).__name__}; expected an object")
        self.where = where
        self._values = cast(Mapping[str, object], value)
        self._read = {"type"}

    def has(self, name: str) -> bool:
        """Return whether the object has the field."""
        return name in self._values

    def raw(self, name: str, default: object = _REQUIRED) -> object:
        """Return the field as it is."""
        self._read.add(name)
        value = self._values.get(name, default)
        if value is _REQUIRED:
            raise TokenizerError(f"{self.where} lacks the field {name!r}")
        return value

    def _typed(self, name: str, kind: type[T], default: object) -> T:
        value = self.raw(name, default)
        if type(value) is not kind:
            raise TokenizerError(f"{self.where}.{name} is {_shown(value)}; expected {kind.__name__}")
        return value

    def boolean(self, name: str, default: object = _REQUIRED) -> bool:
        """Return a field that must be true or false."""
        return self._typed(name, bool, default)

    def string(self, name: str, default: object = _REQUIRED) -> str:
        """Return a field that must be a string."""
        return self._typed(name, str, default)

    def integer(self, name: str, low: int, high: int, default: object = _REQUIRED) -> int:
        """Return a field that must be an integer from ``low`` to ``high``."""
        value = self._typed(name, int, default)
        if not low <= value <= high:
            raise TokenizerError(f"{self.where}.{name} is {_shown(value)}; expected {low} to {high}")
        return value

    def array(self, name: str, default: object = _REQUIRED) -> list[object]:
        """Return a field that must be an array."""
        return self._typed(name, list, default)

    def choice(self, name: str, choices: Mapping[str, T], default: object = _REQUIRED) -> T:
        """Return what the field's string stands for in ``choices``."""
        value = self.string(name, default)
        if value not in choices:
            raise TokenizerError(f"{self.where}.{name} is {_shown(value)}; expected one of {sorted(choices)}")
        return choices[value]

    def nested(self, name: str, parse: Callable[[object, str], T]) -> list[T]:
        """Parse every element of an array field with ``parse(element, where)``."""
        return [parse(item, f"{self.where}.{name}[{i}]") for i, item in enumerate(self.array(name))]

    def finish(self) -> None:
        """Refuse fields that were not read: what we do not know may change ids."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise TokenizerError(f"{self.where} has fields that are not known here: {', '.join(unknown)}")


def component_type(value: object, where: str) -> str:
    """Return the ``type`` of a component of a tokenizer.json."""
    return Fields(value, where).string("type")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
