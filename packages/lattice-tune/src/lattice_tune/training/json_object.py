"""JSON objects inside binary files, with numbers that are not finite."""

from __future__ import annotations

import json
import math
from typing import Any

from lattice_tune.errors import TuneError

__all__ = ["json_object", "to_json"]


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
