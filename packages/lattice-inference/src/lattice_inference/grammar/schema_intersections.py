"""Finds the places of a schema where many patterns hold for one text.

The engine looks whether such patterns exclude each other. Beyond a dozen this takes minutes, which none of its limits ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.schema_costs import MOST_REMAINDERS, common_remainders

__all__ = ["MOST_MET_PATTERNS", "check_intersections"]

MOST_MET_PATTERNS = 8
"""How many patterns, formats and pairs of lengths may hold for one text."""

MOST_LOOKS = 20_000
"""How many schemas are looked at. The conjunctions of a schema that passes it are too many for the engine as well."""

_OF_TEXTS = ({"pattern"}, {"format"}, {"minLength", "maxLength"})
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def check_intersections(places: Mapping[str, Any]) -> None:
    """Refuse a schema in which more than :data:`MOST_MET_PATTERNS` patterns hold for one text.

    Args:
        places: all its schemas, checked, by their pointers.

    Raises:
        GrammarError: with the place of the conjunction.
    """
    looks = _Looks(places)
    for place, one in places.items():
        if isinstance(one, dict) and ("allOf" in one or ("$ref" in one and len(one) > 1)):
            looks.check([one], place)


class _Looks:
    def __init__(self, places: Mapping[str, Any]) -> None:
        self._places = places
        self._left = MOST_LOOKS
        self._seen: set[frozenset[int]] = set()
        self._multiples: set[float] = set()  # of the present conjunction

    def check(self, conjunction: list[Any], place: str) -> None:
        """Count the patterns of schemas that hold for one value, then those of its parts."""
        key = frozenset(map(id, conjunction))
        if key in self._seen:
            return
        self._seen.add(key)
        members: dict[str, list[Any]] = {}
        self._multiples = set()
        patterns = self._gather(conjunction, members, set(), place)
        if common_remainders(self._multiples) > MOST_REMAINDERS:
            raise GrammarError(
                f"the schema at {place[:200] or '/'}: the numbers of multipleOf that hold for one value have over "
                f"{MOST_REMAINDERS:,} remainders together, too many to enforce",
                place,
            )
        if patterns > MOST_MET_PATTERNS:
            raise GrammarError(
                f"the schema at {place[:200] or '/'}: {patterns} patterns hold for one text; at most "
                f"{MOST_MET_PATTERNS} are taken",
                place,
            )
        for name, met in members.items():
            kind = name.partition("/")[0]
            if kind != name:  # of a member that one branch names, another branch says what all others are
                met = [*met, *members.get("items" if kind == "items" else "additionalProperties", ())]
            if len({id(one) for one in met}) > 1:
                self.check(met, place)

    def _gather(self, schemas: Iterable[Any], members: dict[str, list[Any]], passed: set[int], place: str) -> int:
        """Return how many patterns hold together, and add the schemas of the value's parts."""
        patterns = 0
        for schema in schemas:
            if not isinstance(schema, dict) or id(schema) in passed:
                continue
            passed.add(id(schema))
            self._left -= 1
            if self._left < 0:
                raise GrammarError(f"the schema at {place[:200] or '/'}: its conjunctions are too many", place)
            patterns += sum(not names.isdisjoint(schema) for names in _OF_TEXTS)
            if "multipleOf" in schema:
                self._multiples.add(schema["multipleOf"])
            for keyword in _MAPS:
                for name, one in schema.get(keyword, {}).items():
                    members.setdefault(f"{keyword}/{name}", []).append(one)
            for keyword in _SINGLE:
                if isinstance(schema.get(keyword), dict):
                    members.setdefault(keyword, []).append(schema[keyword])
            for index, one in enumerate(schema.get("prefixItems", ())):
                members.setdefault(f"items/{index}", []).append(one)
            patterns += self._gather(schema.get("allOf", ()), members, passed, place)
            if "$ref" in schema:
                patterns += self._gather([self._places.get(unquote(schema["$ref"][1:]))], members, passed, place)
            for keyword in ("anyOf", "oneOf"):
                patterns += self._alternatives(schema.get(keyword, ()), members, passed, place)
        return patterns

    def _alternatives(
        self, branches: Iterable[Any], members: dict[str, list[Any]], passed: set[int], place: str
    ) -> int:
        """Return the most patterns that a branch adds, and add the parts of all branches."""
        most = 0
        parts: dict[str, list[Any]] = {}
        for branch in branches:
            most = max(most, self._gather([branch], parts, set(passed), place))
        for name, of_branches in parts.items():
            members.setdefault(name, []).append({"anyOf": of_branches})
        return most
