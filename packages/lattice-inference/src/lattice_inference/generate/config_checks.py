"""Checks of a generation's configuration; each error names the value and what is expected."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from lattice_inference.argument_checks import as_number, check_integer, check_number
from lattice_inference.errors import InvalidInputError
from lattice_inference.token_ids import as_token_id, checked_token_ids
from lattice_inference.value_text import value_text

__all__ = ["MOST_TOKENS", "check_integer", "check_number", "checked_bias", "checked_ids", "checked_texts"]

MOST_TOKENS = 2**31 - 1
"""The largest number of tokens and the largest token id that a configuration may hold."""

MOST_BIAS = float(np.finfo(np.float32).max)
"""The largest bias: logits are float32, and so is what is added to them."""


def checked_bias(bias: object) -> dict[int, float]:
    """Return a mapping of token ids to finite numbers or -inf."""
    if not isinstance(bias, Mapping):
        raise InvalidInputError(f"logit_bias is a {type(bias).__name__}; expected a mapping of token ids to numbers")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        token_id, number = as_token_id(key), as_number(value)
        if token_id is None or not 0 <= token_id <= MOST_TOKENS:
            raise InvalidInputError(
                f"a token id in logit_bias is {value_text(key)}; expected an integer from 0 to {MOST_TOKENS:,}"
            )
        if number is None or not (-MOST_BIAS <= number <= MOST_BIAS or number == -math.inf):
            raise InvalidInputError(
                f"logit_bias[{token_id}] is {value_text(value)}; expected a finite number (up to {MOST_BIAS:.3g}) or -inf"
            )
        checked[token_id] = number
    return checked


def checked_texts(stop: object) -> tuple[str, ...]:
    """Return the distinct texts of a ``str`` or of a collection."""
    texts = (stop,) if isinstance(stop, str) else stop
    if isinstance(texts, np.ndarray):
        texts = texts.ravel().tolist()
    if not isinstance(texts, Collection) or isinstance(texts, (bytes, bytearray, memoryview, Mapping)):
        raise InvalidInputError(f"stop is a {type(stop).__name__}; expected a text or a list of texts")
    checked: list[str] = []
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidInputError(f"stop holds {value_text(text)}; a stop text is a str of at least one character")
        checked.append(text)
    return tuple(dict.fromkeys(checked))


def checked_ids(name: str, ids: object) -> frozenset[int]:
    """Return a collection of token ids as a set."""
    if isinstance(ids, np.ndarray):
        ids = checked_token_ids(ids, name)
    if not isinstance(ids, Collection) or isinstance(ids, (str, bytes, bytearray, memoryview, Mapping)):
        raise InvalidInputError(f"{name} is {value_text(ids)}; expected a list of token ids")
    checked = set()
    for value in ids:
        token_id = as_token_id(value)
        if token_id is None or not 0 <= token_id <= MOST_TOKENS:
            raise InvalidInputError(
                f"an id in {name} is {value_text(value)}; expected an integer from 0 to {MOST_TOKENS:,}"
            )
        checked.add(token_id)
    return frozenset(checked)
