"""Checks of what a configuration of a generation holds; each error names the value and what is expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping

from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

__all__ = ["MOST_TOKENS", "check_integer", "check_number", "checked_bias", "checked_ids", "checked_texts"]

MOST_TOKENS = 2**31 - 1
"""The largest number of tokens, and the largest token id, that is not refused out of hand."""


def check_integer(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is neither ``None`` nor an integer in [least, most]."""
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= operator.index(value) <= most:
        raise InvalidInputError(f"{name} is {value!r}; expected an integer from {least} to {most:,}")


def check_number(name: str, value: object, least: float, most: float) -> None:
    """Refuse what is neither ``None`` nor a number in [least, most]; NaN is in no such range."""
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__float__") or not least <= float(value) <= most:
        raise InvalidInputError(f"{name} is {value!r}; expected a number from {least:g} to {most:g}")


def checked_bias(bias: object) -> dict[int, float]:
    """Return a mapping of token ids to finite numbers or -inf."""
    if not isinstance(bias, Mapping):
        raise InvalidInputError(f"logit_bias is a {type(bias).__name__}; expected a mapping of token ids to numbers")
    checked: dict[int, float] = {}
    for token_id, value in bias.items():
        check_integer("a token id in logit_bias", token_id, 0, MOST_TOKENS)
        if isinstance(value, bool) or not hasattr(value, "__float__") or not -math.inf <= float(value) < math.inf:
            raise InvalidInputError(f"logit_bias[{token_id}] is {value!r}; expected a finite number or -inf")
        checked[operator.index(token_id)] = float(value)
    return checked


def checked_texts(stop: object) -> tuple[str, ...]:
    """Return the texts of one ``str`` or of a collection, each once."""
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Collection) or isinstance(texts, (bytes, bytearray, memoryview, Mapping)):
        raise InvalidInputError(f"stop is a {type(stop).__name__}; expected a text or a list of texts")
    checked: list[str] = []
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidInputError(f"stop holds {text!r}; a stop text is a str of at least one character")
        checked.append(text)
    return tuple(dict.fromkeys(checked))


def checked_ids(name: str, ids: object) -> frozenset[int]:
    """Return a collection of token ids as a set."""
    if not isinstance(ids, Collection) or isinstance(ids, (str, bytes, bytearray, memoryview, Mapping)):
        raise InvalidInputError(f"{name} is {value_text(ids)}; expected a list of token ids")
    for token_id in ids:
        if token_id is None:
            raise InvalidInputError(f"{name} holds None; expected token ids")
        check_integer(f"an id in {name}", token_id, 0, MOST_TOKENS)
    return frozenset(operator.index(token_id) for token_id in ids)
