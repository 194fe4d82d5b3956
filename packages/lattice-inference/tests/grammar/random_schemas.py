"""Random schemas of everything that is enforced, and values with a change that may break them."""

from __future__ import annotations

from typing import Any

import numpy as np

FORMATS = ["ipv4", "uuid", "email"]
"""Formats that jsonschema checks without further packages and that are enforced whole."""

_PATTERNS = ["^[a-c]{2,4}(x|yz)$", "^(é|😀)+$", "b", r"^\d{1,3}-\w?$", r"^[^\s\"]{0,4}$", r"^\\?[\"/]$"]
_VALUES = ["a", 1, None, "ä😀", 'q"\\', True, [1, {"b": 2}], 2.5, "", {"c": []}]
_SIMPLE = ["integer", "number", "string", "boolean", "null", "enum", "const"]
_NESTED = ["array", "tuple", "object", "anyOf", "allOf", "ref", "types"]


def random_schema(rng: np.random.Generator) -> dict[str, Any]:
    """Return a schema whose values are of some hundred characters at most."""
    definitions: dict[str, Any] = {}
    schema = _schema(rng, 0, definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _schema(rng: np.random.Generator, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    kind = str(rng.choice(_SIMPLE if depth > 2 or rng.random() < 0.3 else _NESTED))

    def inner() -> dict[str, Any]:
        return _schema(rng, depth + 1, definitions)

    if kind == "array":
        least = int(rng.integers(0, 3))
        return {"type": "array", "items": inner(), "minItems": least, "maxItems": least + int(rng.integers(0, 3))}
    if kind == "tuple":
        return {"type": "array", "prefixItems": [inner(), inner()], "items": False, "minItems": int(rng.integers(0, 3))}
    if kind == "object":
        return _object(rng, inner)
    if kind == "anyOf":
        return {"anyOf": [inner(), inner()]}
    if kind == "allOf":
        low = int(rng.integers(-9, 9))
        return {
            "allOf": [
                {"type": "object", "properties": {"n": {"type": "integer", "minimum": low}}, "required": ["n"]},
                {"properties": {"n": {"maximum": low + 20}, "m": inner()}, "additionalProperties": False},
            ]
        }
    if kind == "ref":
        name = f"d{len(definitions)}"
        definitions[name] = {}
        definitions[name] = inner()
        return {"$ref": f"#/$defs/{name}"}
    if kind == "types":
        return {"type": ["integer", "null", "string"], "maximum": 9, "minimum": -9, "maxLength": 3}
    return _simple(rng, kind)


def _simple(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    low = int(rng.integers(-20, 20))
    if kind == "integer":
        choices: list[dict[str, Any]] = [
            {"minimum": low, "maximum": low + int(rng.integers(0, 200))},
            {"exclusiveMinimum": low, "exclusiveMaximum": low + 7},
            {"multipleOf": 3, "minimum": -30, "maximum": 300},
        ]
        return {"type": "integer", **choices[int(rng.integers(3))]}
    if kind == "number":
        limits: list[dict[str, Any]] = [
            {"exclusiveMinimum": -2.5, "maximum": 7.25},
            {"minimum": low, "maximum": low},
            {"multipleOf": 0.5, "minimum": 0, "maximum": 99},
        ]
        return {"type": "number", **limits[int(rng.integers(3))]}
    if kind == "string":
        texts: list[dict[str, Any]] = [
            {"minLength": 1, "maxLength": 6},
            {"pattern": str(rng.choice(_PATTERNS)), "maxLength": 9},
            {"pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4},
            {"format": str(rng.choice(FORMATS))},
        ]
        return {"type": "string", **texts[int(rng.integers(4))]}
    if kind == "enum":
        return {"enum": _VALUES[: int(rng.integers(1, len(_VALUES) + 1))]}
    if kind == "const":
        return {"const": _VALUES[int(rng.integers(len(_VALUES)))]}
    return {"type": kind}


def _object(rng: np.random.Generator, inner: Any) -> dict[str, Any]:
    names = ["a", "bb", 'c"d', "é"][: int(rng.integers(1, 5))]
    rests: list[dict[str, Any]] = [
        {"additionalProperties": False},
        {"additionalProperties": False, "minProperties": 1, "maxProperties": 3},
        {"patternProperties": {"^x[0-9]?$": {"type": "boolean"}}, "additionalProperties": False},
        {"additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 4},
    ]
    rest = rests[int(rng.integers(4))]
    return {
        "type": "object",
        "properties": {name: inner() for name in names},
        "required": [name for name in names if "maxProperties" not in rest and rng.random() < 0.6],
        **rest,
    }


def mutated(rng: np.random.Generator, value: Any) -> Any:
    """Return a value with one part of it changed."""
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = int(rng.integers(len(value)))
        if rng.random() < 0.2:
            return [*value[:index], *value[index + 1 :]]
        return [*value[:index], mutated(rng, value[index]), *value[index + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.7:
        name = list(value)[int(rng.integers(len(value)))]
        if rng.random() < 0.3:
            return {key: one for key, one in value.items() if key != name}
        return value | {name: mutated(rng, value[name])}
    if isinstance(value, str) and value and rng.random() < 0.5:
        cut = int(rng.integers(len(value)))
        return value[:cut] + str(rng.choice(list('aZ9é😀"-'))) + value[cut + int(rng.integers(2)) :]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + float(rng.choice([-100, -1, -0.25, 0.5, 1, 150]))
    choices = [None, True, -1000, 10**6, 3.75, "", "zzzzzzzzzz", "a", [], [1, 2, 3, 4, 5], {}, {"zz": "s"}]
    return choices[int(rng.integers(len(choices)))]
