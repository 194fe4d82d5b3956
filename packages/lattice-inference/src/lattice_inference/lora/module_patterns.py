"""Selects a model's modules as PEFT's configurations do.

The fields hold endings, regular expressions and numbers of layers. The expressions come from a file, so those
that may take very long are refused: a repetition may hold one element only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, TypeVar

from lattice_inference.errors import ModelConfigError, UnsupportedError

__all__ = [
    "MAX_PATH_CHARACTERS",
    "checked_pattern",
    "ending_is_left_out",
    "matching_value",
    "module_is_targeted",
]

MAX_PATTERN_CHARACTERS = 4096
#: The longest path of a module. Longer ones are refused before they are matched.
MAX_PATH_CHARACTERS = 512
_MOST_REPEATS = 6
_ELEMENTS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN, _constants.AT)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)

Value = TypeVar("Value")


@lru_cache(maxsize=16_384)
def checked_pattern(pattern: str, where: str) -> re.Pattern[str]:
    """Compile an expression from a file.

    Raises:
        ModelConfigError: it is no regular expression.
        UnsupportedError: it is too long, or could take very long: it repeats a group, or has more than 6 repetitions in
            a row.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise UnsupportedError(
            f"{where}: an expression of {len(pattern):,} characters; the limit is {MAX_PATTERN_CHARACTERS:,}"
        )
    try:
        compiled = re.compile(pattern)
        repeats = _repeats(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as cause:
        raise ModelConfigError(f"{where}: {pattern!r:.100} is no regular expression: {cause}") from cause
    if not repeats <= _MOST_REPEATS:
        raise UnsupportedError(
            f"{where}: {pattern!r:.100} repeats a group, or has more than {_MOST_REPEATS} repetitions in a row, and could "
            "take very long: write the modules as a list"
        )
    return compiled


def _repeats(parsed: Iterable[tuple[Any, Any]]) -> float:
    """Return how many open repetitions may follow each other.

    The result is infinite if a repetition holds more than one element.
    """
    total = 0.0
    for operation, argument in parsed:
        if operation in _REPEATS:
            least, most, body = argument
            inner = _repeats(body)
            if most == least == 1 or (least, most) == (0, 1):
                total += inner
            elif len(body) != 1 or body[0][0] not in _ELEMENTS:
                total += inner if most == least and most <= 8 and inner == 0 else float("inf")
            else:
                total += most != least
        elif operation is _constants.BRANCH:
            total += max((_repeats(branch) for branch in argument[1]), default=0.0)
        elif operation is _constants.SUBPATTERN:
            total += _repeats(argument[-1])
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            total += _repeats(argument[1])
        elif operation not in _ELEMENTS:
            return float("inf")
    return total


def matching_value(patterns: Mapping[str, Value], module: str, default: Value, where: str) -> Value:
    """Return the value of the first pattern that matches the end of a module's path.

    PEFT reads ``rank_pattern`` like this.
    """
    for pattern, value in patterns.items():
        if checked_pattern(rf"(.*\.)?({pattern})", where).fullmatch(module):
            return value
    return default


def module_is_targeted(module: str, config: Mapping[str, object], where: str) -> bool:
    """Return whether the fields of an ``adapter_config.json`` choose this module.

    Args:
        module: its path in PEFT's spelling.
        config: ``target_modules``, ``exclude_modules``, ``layers_to_transform`` and ``layers_pattern``, checked.
        where: the file, for messages.
    """
    if _is_listed(module, config.get("exclude_modules"), f"{where}: exclude_modules"):
        return False
    targets = config.get("target_modules")
    if targets is None or targets == "all-linear":
        return True
    if not _is_listed(module, targets, f"{where}: target_modules"):
        return False
    is_whole = isinstance(targets, str) or (isinstance(targets, list) and module in targets)
    wanted = _layers(config)
    return is_whole or not wanted or _layer_of(module, config, where) in wanted


def ending_is_left_out(ending: str, config: Mapping[str, object], where: str) -> bool:
    """Return whether the fields exclude every module whose path ends so.

    ``ending`` is one of ``target_modules``; the other arguments are those of :func:`module_is_targeted`.
    """
    if _is_listed(ending, config.get("exclude_modules"), f"{where}: exclude_modules"):
        return True
    layer, wanted = _layer_of(ending, config, where), _layers(config)
    return layer is not None and bool(wanted) and layer not in wanted


def _layers(config: Mapping[str, object]) -> Sequence[object]:
    """Return the layers to transform; none stands for all."""
    layers = config.get("layers_to_transform")
    return [] if layers is None else layers if isinstance(layers, list) else [layers]


def _layer_of(module: str, config: Mapping[str, object], where: str) -> int | None:
    """Return the number of the layer in a path; None if it has none."""
    names = config.get("layers_pattern") or [r"[^.]*"]
    for name in [names] if isinstance(names, str) else names if isinstance(names, list) else []:
        pattern = checked_pattern(rf"(?:^|.*?\.){name}\.(?P<number>[0-9]+)\.", f"{where}: layers_pattern")
        if found := pattern.match(module):
            return int(found["number"][:18])
    return None


def _is_listed(module: str, listed: object, where: str) -> bool:
    if isinstance(listed, str):
        return bool(listed) and checked_pattern(listed, where).fullmatch(module) is not None
    endings = listed if isinstance(listed, list) else []
    return any(module == ending or module.endswith(f".{ending}") for ending in endings)
