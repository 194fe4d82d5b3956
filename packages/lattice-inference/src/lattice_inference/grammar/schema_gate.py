"""Checks a JSON Schema before an engine reads it.

Every keyword is enforced, an annotation, or refused by its place.

What is handed on is a copy with the enforced keywords alone, so that nothing in a caller's schema steers the engine.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.ecma_patterns import rust_pattern
from lattice_inference.grammar.pattern_costs import check_optional_parts
from lattice_inference.grammar.schema_costs import MOST_REMAINDERS, check_written_out, remainders
from lattice_inference.grammar.schema_intersections import check_intersections
from lattice_inference.grammar.schema_keywords import ANNOTATIONS, ENFORCED, FORMATS, FORMATS_BY_SHAPE, REFUSED
from lattice_inference.value_text import value_text

__all__ = [
    "MOST_BYTES",
    "MOST_DEPTH",
    "MOST_ITEMS",
    "MOST_LENGTH",
    "MOST_NESTED",
    "MOST_PATTERNS",
    "MOST_PROPERTIES",
    "MOST_VALUES",
    "checked_schema",
    "parse_schema",
]

MOST_BYTES = 1_000_000
"""The longest schema, as JSON text in UTF-8."""
MOST_DEPTH = 100
"""How deep a schema may be nested."""
MOST_VALUES = 10_000
"""How many values an ``enum`` and branches an ``anyOf``, ``oneOf`` or ``allOf`` may have."""
MOST_PROPERTIES = 1_000
"""How many ``properties`` a schema may list at one place."""
MOST_PATTERNS = 100
"""How many ``patternProperties`` a schema may list at one place."""
MOST_NESTED = 10_000
"""How many arrays and objects the values of ``enum`` and ``const`` may hold in a schema."""
MOST_LENGTH = 100_000
"""The largest ``minLength`` and ``maxLength``."""
MOST_ITEMS = 10_000
"""The largest ``minItems``, ``maxItems``, ``minProperties`` and ``maxProperties``."""

FARTHEST = sys.float_info.max

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/2019-09|draft/2020-12)/schema#?")

# Keywords by the form of their value.
_SCHEMA = {"additionalItems", "additionalProperties", "items"}
_SCHEMA_LIST = {"allOf": False, "anyOf": False, "oneOf": False, "prefixItems": True}  # may it be empty?
_SCHEMA_MAP = {"$defs", "definitions", "patternProperties", "properties"}
_NUMBER = {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"}
_COUNT = {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
# What a JSON text can hold only as an escape by number, which is not written: a key would have two spellings.
_CONTROL = re.compile(r"[\x00-\x07\x0B\x0E-\x1F]")


def parse_schema(text: str) -> Any:
    """Return the schema that a JSON text states.

    Raises:
        GrammarError: the text is too long, no JSON, nested too deep, or names a member twice.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise GrammarError(f"the schema has more than {MOST_BYTES:,} bytes")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise GrammarError(f"the schema has an object that names {value_text(twice)} twice")
        return found

    def constant(name: str) -> Any:
        raise GrammarError(f"the schema holds {name}, which is no JSON")

    try:
        return json.loads(text, object_pairs_hook=members, parse_constant=constant)
    except RecursionError:
        raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels") from None
    except ValueError as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(f"the schema is no JSON: {error}") from None


def checked_schema(schema: object) -> dict[str, Any] | bool:
    """Return a copy of a schema that holds only what is enforced.

    Args:
        schema: a mapping or a boolean, as :func:`parse_schema` or ``model_json_schema()`` gives it.

    Raises:
        GrammarError: a keyword is refused or unknown, has a value of another type, or passes a limit. ``pointer`` says
            where.
    """
    _check_size(schema)
    gate = _Gate(schema)
    checked = gate.schema(schema, "")
    gate.check_references()
    check_written_out(gate.places)
    check_intersections(gate.places)
    return checked


def _check_size(schema: object) -> None:
    """Refuse what is nested too deep or too large, before anything recurses."""
    level: list[object] = [schema]
    seen = 0
    for _ in range(MOST_DEPTH + 1):
        deeper: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                deeper.extend(value.values())
                seen += sum(len(key) if isinstance(key, str) else 1 for key in value)
            elif isinstance(value, (list, tuple)):
                deeper.extend(value)
            elif isinstance(value, str):
                seen += len(value)
            seen += 1
        if seen + len(deeper) > MOST_BYTES:
            raise GrammarError(f"the schema has more than {MOST_BYTES:,} bytes")
        if not deeper:
            return
        level = deeper
    raise GrammarError(f"the schema is nested deeper than {MOST_DEPTH} levels")


class _Gate:
    """One look at one schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._references: list[tuple[str, str]] = []  # where, and to what
        self._nested = 0
        self.places: dict[str, dict[str, Any] | bool] = {}  # what is kept of each schema, by its pointer

    def schema(self, schema: object, where: str) -> dict[str, Any] | bool:
        """Return the enforced part of the schema at ``where``, a JSON pointer."""
        self.places[where] = True
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise GrammarError(f"{_at(where)} is {value_text(schema)}; a schema is an object, true or false", where)
        kept: dict[str, Any] = {}
        for keyword, value in schema.items():
            place = f"{where}/{_escaped(keyword)}"
            if not isinstance(keyword, str):
                raise GrammarError(f"{_at(where)} has a member {value_text(keyword)}, which is no text", where)
            if keyword == "$schema":
                self._check_draft(value, place)
            elif keyword in ENFORCED:
                kept[keyword] = self._value(keyword, value, place)
            elif keyword in ANNOTATIONS or self._has_no_effect(keyword, value, where):
                continue
            elif keyword in REFUSED:
                raise GrammarError(f"{_at(place)}: {keyword} cannot be enforced; {REFUSED[keyword]}", place)
            else:
                raise GrammarError(f"{_at(place)}: no keyword is called {value_text(keyword)}", place)
        _check_property_counts(kept, where)
        self.places[where] = kept
        return kept

    def check_references(self) -> None:
        """Refuse references that lead nowhere, or round in a circle that no value ends."""
        targets: dict[str, str] = {}
        for where, pointer in self._references:
            if pointer not in self.places:
                raise GrammarError(f"{_at(where)} refers to #{pointer}, where the schema has no schema", where)
            targets[where.removesuffix("/$ref")] = pointer
        for start in targets:
            passed = {start}
            place = targets[start]
            while place in targets:
                if place in passed:
                    raise GrammarError(f"{_at(start)}: its $ref leads back to itself", f"{start}/$ref")
                passed.add(place)
                place = targets[place]

    def _value(self, keyword: str, value: object, place: str) -> Any:
        if keyword in _SCHEMA:
            if keyword == "items" and isinstance(value, (list, tuple)):  # before draft 2020-12
                return [self.schema(one, f"{place}/{index}") for index, one in enumerate(value)]
            return self.schema(value, place)
        if keyword in _SCHEMA_LIST:
            return self._schemas(value, place, may_be_empty=_SCHEMA_LIST[keyword])
        if keyword in _SCHEMA_MAP:
            return self._schema_map(keyword, value, place)
        if keyword in _NUMBER:
            return _number(keyword, value, place)
        if keyword in _COUNT:
            return _count(keyword, value, place)
        if keyword == "pattern":
            return _pattern(value, place)
        if keyword == "$ref":
            return self._reference(value, place)
        if keyword == "enum":
            return self._counted(_values(value, place), place)
        if keyword == "const":
            return self._counted(_json_value(value, place), place)
        if keyword == "type":
            return _types(value, place)
        if keyword == "required":
            return _names(value, place)
        assert keyword == "format"
        return _format(value, place)

    def _counted(self, values: Any, place: str) -> Any:
        """Return values of ``enum`` or ``const``; refuse too many arrays and objects in them."""
        level = [values]
        while level:
            level = [one for one in level if isinstance(one, (list, dict))]
            self._nested += len(level)
            level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        if self._nested > MOST_NESTED:
            raise GrammarError(
                f"{_at(place)}: over {MOST_NESTED:,} arrays and objects are in the values of the schema", place
            )
        return values

    def _schemas(self, value: object, place: str, *, may_be_empty: bool) -> list[Any]:
        if not isinstance(value, (list, tuple)) or not (value or may_be_empty):
            raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a list of schemas", place)
        if len(value) > MOST_VALUES:
            raise GrammarError(f"{_at(place)} has {len(value):,} branches; at most {MOST_VALUES:,} are taken", place)
        return [self.schema(one, f"{place}/{index}") for index, one in enumerate(value)]

    def _schema_map(self, keyword: str, value: object, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise GrammarError(f"{_at(place)} is {value_text(value)}; expected an object of schemas", place)
        most = {"properties": MOST_PROPERTIES, "patternProperties": MOST_PATTERNS}.get(keyword, MOST_VALUES)
        if len(value) > most:
            raise GrammarError(f"{_at(place)} has {len(value):,} members; at most {most:,} are taken", place)
        checked = {}
        for name, one in value.items():
            if not isinstance(name, str):
                raise GrammarError(f"{_at(place)} has a member {value_text(name)}, which is no text", place)
            inner = f"{place}/{_escaped(name)}"
            written = _pattern(name, inner) if keyword == "patternProperties" else _spelled(name, inner)
            checked[written] = self.schema(one, inner)
        return checked

    def _reference(self, value: object, place: str) -> str:
        if not isinstance(value, str):
            raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a text", place)
        if value != "#" and not value.startswith("#/"):
            raise GrammarError(
                f"{_at(place)} is {value_text(value)}; a reference leads into the schema itself, as #/$defs/name does",
                place,
            )
        pointer = _decoded(value[1:])
        self._references.append((place, pointer))
        return value

    def _has_no_effect(self, keyword: str, value: object, where: str) -> bool:
        """Whether a keyword that is refused otherwise says nothing with this value."""
        if keyword in {"uniqueItems", "nullable"}:
            return value is False
        if keyword in {"unevaluatedItems", "unevaluatedProperties", "propertyNames"}:
            return value is True or value == {}
        return (
            keyword == "$id" and where == ""
        )  # every reference begins with "#", and the root's name does not move those

    def _check_draft(self, value: object, place: str) -> None:
        if not isinstance(value, str) or not DRAFTS.fullmatch(value):
            raise GrammarError(
                f"{_at(place)} is {value_text(value)}; drafts 4 to 7, 2019-09 and 2020-12 are known", place
            )


def _check_property_counts(kept: dict[str, Any], where: str) -> None:
    """Refuse a count that an answer could reach by writing one key twice."""
    is_closed = kept.get("additionalProperties") is False and not kept.get("patternProperties")
    if kept.get("minProperties", 0) > 1 and not is_closed:
        place = f"{where}/minProperties"
        raise GrammarError(
            f"{_at(place)}: minProperties cannot be enforced beside keys that the schema does not list; use required",
            place,
        )


def _number(keyword: str, value: object, place: str) -> int | float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and -FARTHEST <= value <= FARTHEST
    if not is_number or (keyword == "multipleOf" and not value > 0):  # type: ignore[operator]
        wanted = "a number above 0" if keyword == "multipleOf" else "a finite number"
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected {wanted}", place)
    if keyword == "multipleOf" and remainders(value) > MOST_REMAINDERS:  # type: ignore[arg-type]
        raise GrammarError(
            f"{_at(place)} is {value_text(value)}; it has over {MOST_REMAINDERS:,} remainders, too many to enforce",
            place,
        )
    return _moved_bound(keyword, value)  # type: ignore[arg-type]


def _moved_bound(keyword: str, value: float) -> int | float:
    """Return an exclusive bound so that the engine excludes it.

    Of ``0 < x <= 0.7`` it takes 0: in a range inside one unit it takes the whole number that is excluded. With 1e-9, no
    number of up to eight decimals is lost.
    """
    away = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}.get(keyword)
    if away is None or not 0 <= value * away < 2**53 or value != int(value):
        return value
    moved = value + away * 1e-9
    return moved if moved != value else math.nextafter(value, away * math.inf)


def _count(keyword: str, value: object, place: str) -> int:
    most = MOST_LENGTH if keyword.endswith("Length") else MOST_ITEMS
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected an integer of at least 0", place)
    if value > most:
        raise GrammarError(f"{_at(place)} is {value_text(value)}; at most {most:,} is taken", place)
    return value


def _pattern(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a regular expression", place)
    written = rust_pattern(value, place)
    check_optional_parts(written, _at(place))
    return written


def _values(value: object, place: str) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not value:
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a list of values", place)
    if len(value) > MOST_VALUES:
        raise GrammarError(f"{_at(place)} has {len(value):,} values; at most {MOST_VALUES:,} are taken", place)
    return [_json_value(one, f"{place}/{index}") for index, one in enumerate(value)]


def _json_value(value: object, place: str) -> Any:
    """Return a copy of a value of JSON's types."""
    if isinstance(value, str):
        return _spelled(value, place)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number("const", value, place)
    if isinstance(value, (list, tuple)):
        return [_json_value(one, f"{place}/{index}") for index, one in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {_spelled(name, place): _json_value(one, f"{place}/{_escaped(name)}") for name, one in value.items()}
    raise GrammarError(f"{_at(place)} is {value_text(value)}, which is no JSON", place)


def _types(value: object, place: str) -> str | list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a type or a list of types", place)
    for name in names:
        if name not in TYPES:
            raise GrammarError(f"{_at(place)} names {value_text(name)}; types are {', '.join(TYPES)}", place)
    return value if isinstance(value, str) else list(names)


def _names(value: object, place: str) -> list[str]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise GrammarError(f"{_at(place)} is {value_text(value)}; expected a list of names", place)
    return [_spelled(name, place) for name in value]


def _spelled(text: str, place: str) -> str:
    """Return a text that an answer can spell.

    Raises:
        GrammarError: it holds a control character that only an escape by number writes, or half of a surrogate pair.
    """
    if _CONTROL.search(text):
        raise GrammarError(f"{_at(place)}: {value_text(text)} holds a control character that is not written", place)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise GrammarError(f"{_at(place)}: {value_text(text)} holds half of a surrogate pair", place) from None
    return text


def _format(value: object, place: str) -> str:
    known = FORMATS | FORMATS_BY_SHAPE
    if not isinstance(value, str) or value not in known:
        raise GrammarError(
            f"{_at(place)} is {value_text(value)}, which cannot be enforced; formats are {', '.join(sorted(known))}",
            place,
        )
    return value


def _at(pointer: str) -> str:
    return f"the schema at {pointer[:200] or '/'}"


def _escaped(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def _decoded(fragment: str) -> str:
    """Return a URI fragment as a JSON pointer: percent signs are decoded, ``~`` is kept."""
    from urllib.parse import unquote

    return unquote(fragment)
