"""Reads the fields of a body: each is honoured, has no effect, or is refused by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from lattice_inference.serve.api_errors import ApiError
from lattice_inference.value_text import value_text

__all__ = ["LABELS", "Fields", "parsed_body"]

LABELS: dict[str, tuple[Any, ...]] = {
    "user": (),
    "metadata": (),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "store": (False, None),
    "service_tier": ("auto", "default", None),
    "verbosity": ("medium", None),
    "modalities": (["text"], None),
    "prediction": (None,),
    "audio": (None,),
    "functions": (None,),
    "function_call": (None,),
    "web_search_options": (None,),
    "suffix": (None, ""),
    "best_of": (1, None),
    "reasoning_effort": (None,),
}
"""Fields that change nothing, and the values that they can have; an empty tuple allows any."""


def parsed_body(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body.

    Raises:
        ApiError: it is none.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        what = "its values are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, "invalid_json", f"the body is not JSON: {what}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body is {value_text(value)}; expected a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class Fields:
    """The fields of one body, each to be taken once by the method of its type.

    Each method returns ``None`` (or ``default``) for a field that is left out or null.
    """

    def __init__(self, body: Mapping[str, Any], where: str = "") -> None:
        self._body = body
        self._where = where
        self._taken: set[str] = set()

    def any(self, name: str) -> Any:
        """Return a field as it is."""
        self._taken.add(name)
        return self._body.get(name)

    def text(self, name: str) -> str | None:
        """Return a text."""
        value = self.any(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, "a text")
        return value

    def needed_text(self, name: str) -> str:
        """Return a text that cannot be left out."""
        value = self.text(name)
        if value is None:
            self.refuse(name, "a text", "missing_field")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.any(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return bool(value)

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number in a range."""
        value = self.any(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            self.refuse(name, f"a number from {least:g} to {most:g}")
        return float(value) if math.isfinite(value) else None

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return an integer in a range."""
        value = self.any(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(name, f"an integer from {least:,} to {most:,}")
        return int(value)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object."""
        value = self.any(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "an object")
        return value

    def choice(self, name: str, values: Collection[str], default: str) -> str:
        """Return one of some texts."""
        value = self.any(name)
        if value is None:
            return default
        if value not in values or not isinstance(value, str):
            self.refuse(name, " or ".join(map(repr, values)))
        return str(value)

    def refuse(self, name: str, expected: str, code: str = "invalid_value") -> NoReturn:
        """Raise the error of a field with a wrong value."""
        raise ApiError(
            400, code, f"{self._where}{name} is {value_text(self._body.get(name))}; expected {expected}", name
        )

    def finish(self, *, lenient: bool) -> list[str]:
        """Refuse what is left; return what is ignored.

        Raises:
            ApiError: a field is not known, or its value is not supported.
        """
        ignored = []
        for name, value in self._body.items():
            if name in self._taken:
                continue
            allowed = LABELS.get(name)
            if allowed is not None and (not allowed or value in allowed):
                continue
            if lenient:
                ignored.append(name)
                continue
            known = f"with the value {value_text(value)} " if allowed else ""
            raise ApiError(
                400, "unsupported_field", f"the field {value_text(name)} {known}is not supported: leave it out", name
            )
        return ignored
