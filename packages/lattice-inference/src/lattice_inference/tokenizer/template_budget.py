"""Cost limits of a chat template: its size, and a rendering's steps and characters.

Everything that a template does is charged here before it is done. So an untrusted template ends in an error while its
cost is still small. The budget grows with what is rendered: a long conversation may cost more.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

__all__ = [
    "ITEM",
    "MOST_CHARACTERS",
    "MOST_STEPS",
    "MOST_TEMPLATE_CHARACTERS",
    "MOST_TEMPLATE_NODES",
    "MOST_TEMPLATE_SCOPES",
    "MOST_TEMPLATE_TOKENS",
    "Budget",
    "TemplateCostError",
    "current_budget",
    "each",
    "release_budget",
    "size_of_data",
    "use_budget",
    "weigh",
]

MOST_STEPS = 500_000
"""How many steps one rendering may take, about a step for each piece of an expression."""

MOST_CHARACTERS = 2**23
"""How many characters one rendering may make, with those in between; an item of a list counts as some of them."""

MOST_TEMPLATE_CHARACTERS = 2**18
"""Largest template that is compiled; the largest published ones have about 30,000 characters."""

MOST_TEMPLATE_TOKENS = 2**14
"""Most words and signs of a template; the largest published ones have about 8,000."""

MOST_TEMPLATE_NODES = 10_000
"""Most pieces of expressions and statements of a template, with those that charge its work."""

MOST_TEMPLATE_SCOPES = 300_000
"""Most names that a template sets times the blocks in it: the compiler looks at all names for each of them."""

_STEPS_OF_A_VALUE = 300  # more for each value that is rendered: a message has at least three
_CHARACTERS_OF_A_CHARACTER = 24
_MOST_DEPTH = 256  # nested deeper, C code that compares and hashes could leave its stack
ITEM = 8
"""The characters that an item of a list counts as."""


class TemplateCostError(Exception):
    """A template costs more than one rendering may."""


class Budget:
    """What is left for one rendering.

    Args:
        data: what is rendered: the messages, tools and variables.
        tracks_users: whether texts keep account of what users wrote.
    """

    __slots__ = ("_most_characters", "_most_steps", "characters", "steps", "tracks_users")

    def __init__(self, data: object = None, *, tracks_users: bool = False) -> None:
        self.tracks_users: bool = tracks_users
        values, characters = size_of_data(data)
        self.steps: int
        self.steps = self._most_steps = MOST_STEPS + _STEPS_OF_A_VALUE * values
        self.characters: int
        self.characters = self._most_characters = MOST_CHARACTERS + _CHARACTERS_OF_A_CHARACTER * characters

    def spend(self, steps: int, characters: int = 0) -> None:
        """Charge work; raise TemplateCostError if it exceeds the rest.

        Neither number is negative.
        """
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise TemplateCostError(f"it takes more than {self._most_steps:,} steps")
        if self.characters < 0:
            raise TemplateCostError(f"it makes more than {self._most_characters:,} characters")


_budget: ContextVar[Budget] = ContextVar("template_budget")

current_budget = _budget.get
use_budget = _budget.set
release_budget = _budget.reset


def size_of_data(data: object) -> tuple[int, int]:
    """Return how many values JSON data holds, and how many characters."""
    values, characters, stack = 0, 0, [data]
    while stack:
        item = stack.pop()
        values += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return values, characters


def weigh(value: Any, *, indent: int = 0) -> int:
    """Charge a step for each value inside ``value``.

    Returns about how many characters show it.

    Args:
        value: what a template has: any nesting of it, with parts that are there many times.
        indent: characters that stand before each value inside, for each level.

    Raises:
        TemplateCostError: it is too much, or nested too deeply.
    """
    if isinstance(value, str):
        return len(value)
    budget = current_budget()
    total, depth, level = 0, 0, [value]
    while level:
        budget.spend(len(level))
        inside: list[Any] = []
        total += (6 + indent * depth) * len(level)
        for item in level:
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                total += item.bit_length() // 3
            elif isinstance(item, (list, tuple)):
                inside.extend(item)
            elif isinstance(item, dict):
                inside.extend(item.keys())
                inside.extend(item.values())
            else:
                total += 64
                inside.extend(_inside(item))
        if total > budget.characters:
            budget.spend(0, total)
        depth += 1
        if depth > _MOST_DEPTH:
            raise TemplateCostError(f"it nests values deeper than {_MOST_DEPTH} levels")
        level = inside
    return total


def _inside(value: object) -> Iterable[Any]:
    """Return the values of a ``namespace`` or of a view of a mapping, nothing of all else."""
    if type(value).__name__ == "Namespace":
        values: Iterable[Any] = object.__getattribute__(value, "_Namespace__attrs").values()
        return values
    return value if isinstance(value, (KeysView, ValuesView, ItemsView)) else ()


def each(items: Any, steps: int = 1) -> Any:
    """Return ``items`` to be looped over, with ``steps`` charged for each of them."""
    if hasattr(type(items), "__len__"):
        current_budget().spend(steps * len(items))
        return items
    return _each(items, steps)


def _each(items: Iterable[Any], steps: int) -> Iterator[Any]:
    spend = current_budget().spend
    for item in items:
        spend(steps, ITEM)
        yield item
