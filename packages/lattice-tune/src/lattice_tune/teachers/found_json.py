"""The one JSON object that a model has written, perhaps among other words."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["find_object", "parse_json"]

MOST_ATTEMPTS = 1000
"""Opening braces of a text that are tried: an answer in plain words may hold some that open nothing."""


class _TwiceError(ValueError):
    """An object names a key twice."""


def parse_json(text: str | bytes) -> Any:
    """Return parsed JSON.

    Raises:
        ValueError: it is no JSON, holds NaN or infinity, names a key twice, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_object(text: str, key: str) -> dict[str, Any] | str:
    """Return the object with ``key`` in a text, or in words why there is no single one."""
    decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)
    found: list[dict[str, Any]] = []
    start = text.find("{")
    for _ in range(MOST_ATTEMPTS):
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(text, start)
        except _TwiceError as error:
            return str(error)
        except RecursionError:
            return "JSON is nested too deeply"
        except ValueError:
            end = start + 1
        else:
            if isinstance(value, dict) and key in value and value not in found:
                found.append(value)
        start = text.find("{", end)
    if len(found) > 1:
        return f"there are {len(found)} different JSON objects with {key!r}"
    return found[0] if found else f"there is no JSON object with {key!r}"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _TwiceError("a JSON object names a key twice")
    return made
