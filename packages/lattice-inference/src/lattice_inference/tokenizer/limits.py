"""Truncation and padding, as an argument and as a tokenizer.json states them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from lattice_inference.errors import InvalidInputError, TokenizerError
from lattice_inference.tokenizer.fields import Fields
from lattice_inference.value_text import value_text

__all__ = ["Padding", "Truncation", "parse_padding", "parse_truncation"]

Side = Literal["left", "right"]
Strategy = Literal["longest_first", "only_first", "only_second"]

_SIDES: dict[str, Side] = {"Left": "left", "Right": "right"}
_STRATEGIES: dict[str, Strategy] = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}


@dataclass(frozen=True)
class Truncation:
    """Truncation to ``max_tokens`` tokens.

    The template's special tokens are included, and always stay.

    ``strategy`` says which text of a pair is cut: the longer one (when both must be cut, each keeps half) or always the
    same. ``side`` says which end loses tokens.
    """

    max_tokens: int
    strategy: Strategy = "longest_first"
    side: Side = "right"

    def __post_init__(self) -> None:
        try:
            value = operator.index(self.max_tokens)  # takes NumPy's integers too
        except TypeError:
            value = -1
        if isinstance(self.max_tokens, bool) or value < 0:
            raise InvalidInputError(f"max_tokens is {value_text(self.max_tokens)}; expected an integer of at least 0")
        if not isinstance(self.strategy, str) or self.strategy not in _STRATEGIES.values():
            raise InvalidInputError(
                f"strategy is {value_text(self.strategy)}; expected one of {list(_STRATEGIES.values())}"
            )
        if not isinstance(self.side, str) or self.side not in _SIDES.values():
            raise InvalidInputError(f"side is {value_text(self.side)}; expected one of {list(_SIDES.values())}")


@dataclass(frozen=True)
class Padding:
    """Padding to ``length``, then to a multiple.

    ``None`` pads to the longest of the batch.
    """

    length: int | None
    multiple: int | None
    side: Side
    id: int
    type_id: int

    def target(self, longest: int) -> int:
        """Return the length to fill up to when the longest encoding has ``longest`` tokens."""
        length = longest if self.length is None else self.length
        if self.multiple:
            length += -length % self.multiple
        return length


def parse_truncation(value: object, where: str = "truncation") -> Truncation | None:
    """Return the truncation that a tokenizer.json states.

    Its ``stride`` says how far further pieces of a long text overlap; only the first piece is made here, so it has no
    effect.
    """
    if value is None:
        return None
    fields = Fields(value, where)
    truncation = Truncation(
        max_tokens=fields.integer("max_length", 0, 2**31 - 1),
        strategy=fields.choice("strategy", _STRATEGIES),
        side=fields.choice("direction", _SIDES, "Right"),
    )
    fields.integer("stride", 0, 2**31 - 1)
    fields.finish()
    return truncation


def parse_padding(value: object, where: str = "padding") -> Padding | None:
    """Return the padding that a tokenizer.json states."""
    if value is None:
        return None
    fields = Fields(value, where)
    strategy = fields.raw("strategy")
    if strategy == "BatchLongest":
        length = None
    elif isinstance(strategy, dict):
        nested = Fields(strategy, f"{where}.strategy")
        length = nested.integer("Fixed", 0, MAX_PADDED_TOKENS)
        nested.finish()
    else:
        raise TokenizerError(f"{where}.strategy is {strategy!r:.60}; expected 'BatchLongest' or {{'Fixed': n}}")
    multiple = None
    if fields.raw("pad_to_multiple_of", None) is not None:
        multiple = fields.integer("pad_to_multiple_of", 0, MAX_PADDED_TOKENS)
    padding = Padding(
        length=length,
        multiple=multiple,
        side=fields.choice("direction", _SIDES),
        id=fields.integer("pad_id", 0, 2**31 - 1),
        type_id=fields.integer("pad_type_id", 0, 2**31 - 1),
    )
    fields.string("pad_token")
    fields.finish()
    return padding


MAX_PADDED_TOKENS = 2**20
"""Longest padding that a file may ask for, so that a small file cannot ask for a huge array."""
