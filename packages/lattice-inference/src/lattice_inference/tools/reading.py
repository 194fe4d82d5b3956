"""Steps of a reader that takes an answer's calls character by character."""

from __future__ import annotations

from collections.abc import Callable, Generator

__all__ = ["Emit", "Reading", "expect", "json_value", "text_until"]

Reading = Generator[None, str, None]
"""Takes one character at each ``send``; what it finds goes to its :data:`Emit`."""

Emit = Callable[[str], None]


def expect(text: str) -> Reading:
    """Read exactly this text."""
    for wanted in text:
        found = yield
        if found != wanted:  # the grammar allows nothing else
            raise ValueError(f"expected {wanted!r}, found {found!r}")


def text_until(end: str) -> Generator[None, str, str]:
    """Read to the first ``end`` and return what stands before it."""
    text = ""
    while not text.endswith(end):
        text += yield
    return text[: -len(end)]


def json_value(emit: Emit, first: str | None = None) -> Generator[None, str, str]:
    """Read one JSON value; return the character after a number, ``""`` for other values.

    Args:
        emit: called with each character of the value.
        first: the value's first character, if it has been read.
    """
    character = (yield) if first is None else first
    emit(character)
    if character == '"':
        yield from _string(emit)
        return ""
    if character in "{[":
        depth = 1
        while depth:
            character = yield
            emit(character)
            if character == '"':
                yield from _string(emit)
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
        return ""
    while True:  # a number, true, false or null
        character = yield
        if not (character.isalnum() or character in "+-."):
            return character
        emit(character)


def _string(emit: Emit) -> Reading:
    """Read a string after its opening mark, its closing mark included."""
    escaped = False
    while True:
        character = yield
        emit(character)
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            return
