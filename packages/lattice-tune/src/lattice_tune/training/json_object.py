"""JSON objects inside binary files, with numbers that are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from lattice_tune.errors import TuneError, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["json_object", "part_of", "to_json"]

_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}
_Part = TypeVar("_Part", bound="DataclassInstance")


class NoObjectError(TuneError, ValueError):
    """Bytes are no JSON object."""


def to_json(value: dict[str, Any]) -> bytes:
    """Return an object as JSON; numbers that are not finite become objects of one text."""
    return json.dumps(_spelled(value), ensure_ascii=False, allow_nan=False, sort_keys=True).encode()


def json_object(content: bytes) -> dict[str, Any]:
    """Return the object that :func:`to_json` wrote.

    Raises:
        NoObjectError: it is none.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NoObjectError(f"no JSON: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise NoObjectError(f"a {type(found).__name__} of JSON; an object is needed")
    restored: dict[str, Any] = _restored(found)
    return restored


def part_of(kind: type[_Part], given: object) -> _Part:
    """Return a dataclass of texts and numbers that is a part of an object.

    Raises:
        NoObjectError: it has other fields, or one has a value of another type.
    """
    if not isinstance(given, dict) or given.keys() != {field.name for field in fields(kind)}:
        raise NoObjectError(f"{shown(given)} has not the fields of {kind.__name__}")
    for field in fields(kind):
        if type(given[field.name]) not in _KINDS[str(field.type)]:
            raise NoObjectError(f"{field.name} is {shown(given[field.name])}, and no {field.type}")
    return kind(**given)


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, dict):
        return {str(key): _spelled(part) for key, part in value.items()}
    return [_spelled(part) for part in value] if isinstance(value, (list, tuple)) else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
            return float(value["float"])
        return {key: _restored(part) for key, part in value.items()}
    return [_restored(part) for part in value] if isinstance(value, list) else value
