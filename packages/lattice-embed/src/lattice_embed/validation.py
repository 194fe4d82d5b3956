"""Checks on the texts of a call, shared by every service.

The limits hold for the caller's own text, before a prompt is added: the caller does not pay for the library's
additions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from lattice_embed.catalogue import Role
from lattice_embed.errors import (
    EmptyInputError,
    InvalidInputError,
    InvalidTextError,
    TextTooLongError,
    TooManyTextsError,
)
from lattice_inference import errors as inference_errors
from lattice_inference.text_lists import check_text_list
from lattice_inference.thread_count import check_thread_count

__all__ = [
    "DEFAULT_MAX_BATCH_SIZE",
    "DEFAULT_MAX_TEXT_CHARS",
    "Limits",
    "check_choice",
    "check_limit",
    "check_role",
    "check_text",
    "check_texts",
    "check_threads",
    "is_expressible",
]

DEFAULT_MAX_BATCH_SIZE = 1_000
"""Texts that one call may hold."""

DEFAULT_MAX_TEXT_CHARS = 32_768
"""Characters (Unicode code points) that one text may have."""


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise InvalidInputError unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(f"{name} is {value!r:.80}; it must be one of {', '.join(map(repr, choices))}")


def check_iterable(texts: object) -> Iterable[object]:
    """Return ``texts`` if it may be a collection of texts in a defined order.

    Raises:
        InvalidInputError: it is a single string or a table, has no order, or cannot be iterated over.
    """
    if type(texts) is list:
        return texts  # what nearly every caller has: the questions below take as long as a look-up in memory
    try:
        return check_text_list(texts)
    except inference_errors.InvalidInputError as error:
        raise InvalidInputError(str(error)) from None


def check_text(text: object, index: int, *, max_chars: int) -> str:
    """Return ``text`` if it is a str within ``max_chars`` characters that UTF-8 can express.

    Raises:
        InvalidTextError: not a str, or it holds a lone surrogate.
        TextTooLongError: longer than ``max_chars``.
    """
    if not isinstance(text, str):
        raise InvalidTextError(index=index, reason=f"is a {type(text).__name__}, not a str")
    if type(text) is not str:
        text = str.__str__(text)  # the very characters of a subclass, such as NumPy's
    if len(text) > max_chars:
        raise TextTooLongError(index=index, length=len(text), limit=max_chars, unit="characters")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidTextError(
                index=index,
                reason=f"holds a lone surrogate (U+{ord(text[error.start]):04X} at {error.start}), which is no "
                'character: read the source with the right encoding, or clean it with .encode("utf-8", "replace")',
            ) from None
    return text


def is_expressible(text: str) -> bool:
    """Whether UTF-8 can express a text: whether it is free of lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(texts: object, *, max_texts: int, max_chars: int) -> list[str]:
    """Return the texts of one call as a list, or raise for the first thing wrong with them.

    Raises:
        EmptyInputError: there are none.
        TooManyTextsError: there are more than ``max_texts``.
        InvalidInputError: ``texts`` is not an ordered collection.
        InvalidTextError: an element is not a str, or holds a lone surrogate.
        TextTooLongError: a text is longer than ``max_chars``.
    """
    listed = list(islice(check_iterable(texts), max_texts + 1))
    if not listed:
        raise EmptyInputError("texts is empty: embed() needs at least one text; encode() takes none and gives (0, dim)")
    if len(listed) > max_texts:
        raise TooManyTextsError(limit=max_texts)
    return [check_text(text, index, max_chars=max_chars) for index, text in enumerate(listed)]


def check_role(role: object) -> Role:
    """Return ``role`` as a :class:`Role`.

    The strings ``"query"``, ``"passage"`` and ``"generic"`` are understood.

    Raises:
        InvalidInputError: there is no such role.
    """
    if isinstance(role, Role):
        return role
    try:
        if isinstance(role, str):
            return Role(role)
        raise ValueError
    except ValueError:
        known = ", ".join(f"Role.{member.name}" for member in Role)
        raise InvalidInputError(f"role is {role!r:.80}; pass one of {known}") from None


def check_limit(name: str, value: object, *, lowest: int = 1) -> int:
    """Return ``value`` if it is an int of at least ``lowest``.

    Raises:
        InvalidInputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= sys.maxsize:
        if isinstance(value, int) and value > sys.maxsize:
            raise InvalidInputError(
                f"{name} is an int of {value.bit_length():,} bits; it may be {sys.maxsize:,} at most"
            )
        raise InvalidInputError(f"{name} is {value!r:.80}; it must be an int of at least {lowest}")
    return value


def check_threads(threads: object, name: str = "threads") -> int:
    """Return ``threads`` as an ``int`` if it is an integer from 1 to 256, of Python or NumPy.

    Raises:
        InvalidInputError: it is not.
    """
    try:
        return check_thread_count(threads, name)
    except inference_errors.InvalidInputError as error:
        raise InvalidInputError(str(error)) from None


@dataclass(frozen=True)
class Limits:
    """What a service takes in one call.

    Attributes:
        max_batch_size: most texts.
        max_text_chars: most characters (code points) in one text, its prompt not counted.

    Raises:
        InvalidInputError: one of them is no int of at least 1.
    """

    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    max_text_chars: int = DEFAULT_MAX_TEXT_CHARS

    def __post_init__(self) -> None:
        check_limit("max_batch_size", self.max_batch_size)
        check_limit("max_text_chars", self.max_text_chars)

    def texts(self, texts: object) -> list[str]:
        """Return the texts of one call as :func:`check_texts` does."""
        return check_texts(texts, max_texts=self.max_batch_size, max_chars=self.max_text_chars)

    def text(self, text: object, index: int = 0) -> str:
        """Return one text as :func:`check_text` does."""
        return check_text(text, index, max_chars=self.max_text_chars)

    def options(self) -> dict[str, int]:
        """Return the keyword options that make an equal service."""
        return {"max_batch_size": self.max_batch_size, "max_text_chars": self.max_text_chars}
