"""Counts what a schema makes an engine build where the engine's limits come too late.

A ``$ref`` beside other keywords is written out at its place, with all that it refers to. Multiples of a number are found by
a table of its remainders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from lattice_inference.errors import GrammarError

__all__ = ["MOST_REMAINDERS", "MOST_WRITTEN_OUT", "check_written_out", "common_remainders", "remainders"]

MOST_WRITTEN_OUT = 4_000
"""How many schemas may be written out at the places that refer to them."""

MOST_REMAINDERS = 100_000
"""How many remainders the numbers of ``multipleOf`` may have that hold for one value."""

_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


def remainders(value: float) -> int:
    """Return how many remainders a number of ``multipleOf`` has, without powers of 2 and 5."""
    number = Fraction(repr(value)).numerator
    for factor in (2, 5):
        while number and number % factor == 0:
            number //= factor
    return number


def check_written_out(places: Mapping[str, Any]) -> None:
    """Refuse a schema whose references, written out, pass :data:`MOST_WRITTEN_OUT`.

    Args:
        places: all its schemas, checked, by their pointers.

    Raises:
        GrammarError: with the place of the reference.
    """
    left = MOST_WRITTEN_OUT
    for place, one in places.items():
        stack = _written_out(one, places)
        while stack:
            left -= 1
            if left < 0:
                raise GrammarError(
                    f"the schema at {place[:200] or '/'}: its references with siblings are over {MOST_WRITTEN_OUT:,} "
                    "schemas when they are written out",
                    place,
                )
            schema = stack.pop()
            stack += _written_out(schema, places)
            stack += _parts(schema)


def _written_out(schema: Any, places: Mapping[str, Any]) -> list[Any]:
    """Return the schemas that the references of a conjunction lead to."""
    if not isinstance(schema, dict):
        return []
    found = []
    if "$ref" in schema and not schema.keys() <= {"$ref", "$defs", "definitions"}:
        found.append(places.get(unquote(schema["$ref"][1:])))
    branches = schema.get("allOf", ())
    if len(branches) > 1 or len(schema) > 1:
        found += [
            places.get(unquote(branch["$ref"][1:]))
            for branch in branches
            if isinstance(branch, dict) and branch.keys() <= {"$ref", "$defs", "definitions"} and "$ref" in branch
        ]
    return [one for one in found if isinstance(one, dict)]


def _parts(schema: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for keyword in _MAPS:
        parts += schema.get(keyword, {}).values()
    parts += [schema[keyword] for keyword in _SINGLE if isinstance(schema.get(keyword), dict)]
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            parts += schema[keyword]
    return [part for part in parts if isinstance(part, dict)]


def common_remainders(numbers: set[float]) -> int:
    """Return how many remainders numbers have that hold together."""
    return math.lcm(*map(remainders, numbers)) if numbers else 1
