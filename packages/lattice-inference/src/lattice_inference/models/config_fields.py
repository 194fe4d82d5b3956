"""Typed, checked access to the fields of a parsed configuration file.

Every error names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from lattice_inference.errors import ModelConfigError, UnsupportedError

__all__ = ["MAX_LAYERS", "MAX_POSITIONS", "MAX_VOCAB_SIZE", "ConfigFields", "shown", "token_ids_of"]

#: Most tokens of a vocabulary, blocks of a network and positions of an encoder that a configuration may state.
MAX_VOCAB_SIZE = 4_000_000
MAX_LAYERS = 4_096
MAX_POSITIONS = 2**22

_Choice = TypeVar("_Choice", bound=Enum)


class ConfigFields:
    """The fields of one JSON object.

    A field without a default must be there, and a JSON ``null`` is not a value of any type.

    Args:
        mapping: the parsed object.
        source: the file, for messages.
    """

    def __init__(self, mapping: Mapping[str, object], source: str) -> None:
        self._mapping = mapping
        self._source = source

    @property
    def source(self) -> str:
        """The file, for messages."""
        return self._source

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._mapping.get(name) is not None

    def error(self, name: str, problem: str) -> ModelConfigError:
        """Return (not raise) the error for a problem of the field ``name``."""
        return ModelConfigError(f"{self._source}: {name}: {problem}")

    def integer(self, name: str, least: int, most: int, *, default: int | None = None) -> int:
        """Return an integer in [least, most]. ``true`` and ``1.0`` are not integers."""
        value = self._value(name, default)
        if type(value) is not int:
            raise self.error(name, f"{shown(value)} is not an integer")
        if not least <= value <= most:
            raise self.error(name, f"{shown(value)} is outside of {least:,} to {most:,}")
        return value

    def real(self, name: str, *, above: float, at_most: float) -> float:
        """Return a number in (above, at_most]; NaN and infinity are in no such range."""
        value = self._value(name, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"{shown(value)} is not a number")
        if not above < value <= at_most:
            raise self.error(name, f"{shown(value)} is not greater than {above} and at most {at_most}")
        return float(value)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{shown(value)} is neither true nor false")
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"{shown(value)} is not a string")
        return value

    def only_text(self, name: str) -> str:
        """Return the only element of a list that holds one string."""
        value = self._value(name, None)
        if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], str):
            raise self.error(name, f"{shown(value)} is not a list of exactly one name")
        return value[0]

    def choice(self, name: str, choices: type[_Choice], *, value: str | None = None) -> _Choice:
        """Return the member of ``choices`` whose value the field holds.

        Args:
            name: the field.
            choices: an enumeration with string values.
            value: the field's text, if the caller has read it already.

        Raises:
            UnsupportedError: the field holds none of them.
        """
        text = self.text(name) if value is None else value
        for member in choices:
            if member.value == text:
                return member
        known = ", ".join(repr(member.value) for member in choices)
        raise UnsupportedError(f"{self._source}: {name} is {shown(text)}; built are {known}")

    def _value(self, name: str, default: object) -> object:
        if name in self._mapping:
            return self._mapping[name]
        if default is None:
            raise self.error(name, "is missing, and no value is assumed for it")
        return default


def token_ids_of(mapping: Mapping[str, object], name: str, *, source: str) -> tuple[int, ...]:
    """Return the ids of a field that holds one id, a list of them, or nothing.

    Raises:
        ModelConfigError: it holds something else.
    """
    value = mapping.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and 0 <= token <= MAX_VOCAB_SIZE for token in ids):
        raise ConfigFields(mapping, source).error(name, f"{value!r:.100} is not a token id or a list of them")
    return tuple(dict.fromkeys(ids))


def shown(value: object) -> str:
    """Return a value as messages show it; a long one is cut."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
