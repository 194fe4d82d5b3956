"""Jinja's filters and tests, each charged with what it makes before it makes it.

Every allowed filter of Jinja is in one of the tables here. Others do not exist for a chat template, so a later Jinja
adds nothing unbounded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from lattice_inference.tokenizer.template_budget import ITEM, TemplateCostError, current_budget, each, weigh
from lattice_inference.tokenizer.template_methods import line_count, modulo_size, replaced_size, width_of
from lattice_inference.tokenizer.user_text import tracked

__all__ = ["bounded_filters", "bounded_tests"]

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Charge = Callable[[Arguments, Options], Arguments]

_LONGEST_NUMBER = 4_300  # Python's own limit for the digits of an integer
_LONGEST_PATH = 1_000
_MOST_PLACES = 300
_ESCAPED = 6  # '"' becomes '&#34;'
_QUOTED = 16  # a character of four bytes becomes '%F0%9F%98%80'
_MANY_TEXTS = 24  # a short text takes 50 bytes and more
_JSON = 3
_HTML = ("escape", "e", "forceescape")


def _option(args: Arguments, kwargs: Options, place: int, name: str, default: Any = None) -> Any:
    """Return an argument after the filtered value, by place or by name."""
    return args[place] if len(args) > place else kwargs.get(name, default)


def _check_path(args: Arguments, kwargs: Options) -> None:
    for value in (*args[1:], kwargs.get("attribute")):
        if isinstance(value, str) and len(value) > _LONGEST_PATH:
            raise TemplateCostError(f"an argument of a filter has {len(value):,} characters")


def _free(args: Arguments, kwargs: Options) -> Arguments:
    """Charge nothing: it makes nothing."""
    return args


def _times(factor: int) -> Charge:
    """Return what charges a multiple of the text that a value shows as."""

    def charge(args: Arguments, kwargs: Options) -> Arguments:
        current_budget().spend(1, factor * weigh(args[0]))
        return args

    return charge


def _slow(args: Arguments, kwargs: Options) -> Arguments:
    """Charge for regexes, which can look at a text again from each of its places."""
    size = weigh(args[0])
    extra = sum(len(value) for value in (*args[1:], *kwargs.values()) if isinstance(value, str))
    current_budget().spend(1, size * size // 8 + _MANY_TEXTS * size + extra * (size + 1))
    return args


def _items(args: Arguments, kwargs: Options) -> Arguments:
    """Charge for each item that is looked at."""
    _check_path(args, kwargs)
    value = args[0]
    if isinstance(value, str):
        current_budget().spend(len(value), _MANY_TEXTS * len(value))
    elif hasattr(type(value), "__len__"):
        current_budget().spend(len(value), ITEM * len(value))
    elif hasattr(type(value), "__iter__"):
        return (each(value), *args[1:])
    return args


def _compared(args: Arguments, kwargs: Options) -> Arguments:
    """Charge for comparing the items with each other."""
    value = args[0]
    if not hasattr(type(value), "__len__"):
        value = list(each(value))
    size = weigh(value) + sum(weigh(argument) for argument in args[1:])
    current_budget().spend(1, size * max(len(value).bit_length(), 1))
    return _items((value, *args[1:]), kwargs)


def _center(args: Arguments, kwargs: Options) -> Arguments:
    current_budget().spend(1, weigh(args[0]) + width_of(_option(args, kwargs, 1, "width", 80)))
    return args


def _indent(args: Arguments, kwargs: Options) -> Arguments:
    text, width = args[0], _option(args, kwargs, 1, "width", 4)
    size = len(width) if isinstance(width, str) else width_of(width)
    lines = line_count(text) if isinstance(text, str) else weigh(text)
    current_budget().spend(1, 2 * weigh(text) + size * (lines + 2) + ITEM * lines)
    return args


def _replaced(args: Arguments, kwargs: Options) -> Arguments:
    weight = sum(weigh(value) for value in args)
    old, new = _option(args, kwargs, 1, "old", ""), _option(args, kwargs, 2, "new", "")
    text = args[0] if isinstance(args[0], str) else str(args[0])
    old, new = (value if isinstance(value, str) else str(value) for value in (old, new))
    count = _option(args, kwargs, 3, "count")
    current_budget().spend(1, weight + _escapes(args) * replaced_size(text, old, new, count))
    return args


def _escapes(args: Arguments) -> int:
    return _ESCAPED if any(hasattr(value, "__html__") for value in args) else 1


def _modulo(args: Arguments, kwargs: Options) -> Arguments:
    form = args[0] if isinstance(args[0], str) else ""
    current_budget().spend(1, weigh(args[0]) + _escapes(args) * modulo_size(form, kwargs or tuple(args[1:])))
    return args


def _join(args: Arguments, kwargs: Options) -> Arguments:
    _check_path((), {"attribute": _option(args, kwargs, 2, "attribute")})
    items = args[0] if isinstance(args[0], (str, list, tuple)) else list(each(args[0]))
    separator = weigh(_option(args, kwargs, 1, "d", ""))
    budget = current_budget()
    budget.spend(len(items), separator * len(items))
    if _option(args, kwargs, 2, "attribute") is None:
        budget.spend(0, _escapes((*items, *args[1:])) * sum(weigh(item) for item in items))
        return (items, *args[1:])
    return ([*items], *args[1:])


def _json_text(args: Arguments, kwargs: Options) -> Arguments:
    indent = _option(args, kwargs, 2, "indent")
    width = len(indent) if isinstance(indent, str) else width_of(indent)
    separators = _option(args, kwargs, 3, "separators")
    width += (
        sum(len(text) for text in separators if isinstance(text, str)) if isinstance(separators, tuple | list) else 0
    )
    current_budget().spend(1, _JSON * weigh(args[0], indent=width) + width)
    return args


def _parts(name: str) -> Charge:
    """Return what charges for as many lists, or places in a list, as the argument ``name`` says."""

    def charge(args: Arguments, kwargs: Options) -> Arguments:
        count = width_of(_option(args, kwargs, 1, name))
        current_budget().spend(count, ITEM * count)
        return _items(args, kwargs)

    return charge


def _number(args: Arguments, kwargs: Options) -> Arguments:
    if isinstance(args[0], str) and len(args[0]) > _LONGEST_NUMBER:
        raise TemplateCostError(f"a number of {len(args[0]):,} characters is too long")
    return args


def _rounded(args: Arguments, kwargs: Options) -> Arguments:
    places = _option(args, kwargs, 1, "precision", 0)
    if isinstance(places, int) and abs(places) > _MOST_PLACES:
        raise TemplateCostError(f"a number is rounded to {places:,} places; the limit is {_MOST_PLACES}")
    return args


def _path(args: Arguments, kwargs: Options) -> Arguments:
    _check_path(args, kwargs)
    return args


def _cut_text(args: Arguments, kwargs: Options) -> Arguments:
    current_budget().spend(
        1, weigh(args[0]) + sum(len(value) for value in (*args[1:], *kwargs.values()) if isinstance(value, str))
    )
    return args


def _summed(args: Arguments, kwargs: Options) -> Arguments:
    """Charge for sums: of lists, each is copied again for every one that follows."""
    items = list(each(args[0]))
    size = sum(4 * ITEM + ITEM * len(item) for item in items if hasattr(type(item), "__len__"))
    current_budget().spend(len(items), size * len(items))
    return _items((items, *args[1:]), kwargs)


_FILTERS: dict[str, Charge] = {
    **dict.fromkeys(("abs", "count", "length", "d", "default", "random"), _free),
    **dict.fromkeys(("filesizeformat", "float", "int"), _number),
    **dict.fromkeys(("capitalize", "lower", "upper"), _times(3)),
    **dict.fromkeys(("string", "safe"), _times(1)),
    **dict.fromkeys(_HTML, _times(_ESCAPED)),
    **dict.fromkeys(("title", "wordcount"), _times(_MANY_TEXTS)),
    **dict.fromkeys(("urlencode", "xmlattr"), _times(_QUOTED)),
    **dict.fromkeys(("striptags", "urlize", "wordwrap", "pprint"), _slow),
    **dict.fromkeys(("trim", "truncate"), _cut_text),
    **dict.fromkeys(("first", "items", "last", "list", "map", "reverse"), _items),
    **dict.fromkeys(("reject", "rejectattr", "select", "selectattr"), _items),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), _compared),
    "attr": _path,
    "batch": _parts("linecount"),
    "center": _center,
    "format": _modulo,
    "indent": _indent,
    "join": _join,
    "replace": _replaced,
    "round": _rounded,
    "slice": _parts("slices"),
    "sum": _summed,
    "tojson": _json_text,
}
_COMPARISONS = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
)
_SHOWN = ("lower", "upper")
_REMAINDERS = ("odd", "even", "divisibleby")


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers writes it, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def bounded_filters(filters: dict[str, Any]) -> dict[str, Any]:
    """Return Jinja's filters, those of them that are known here, bounded."""
    known = {**filters, "tojson": tojson}
    return {name: _bounded(known[name], charge) for name, charge in _FILTERS.items() if name in known}


def bounded_tests(tests: dict[str, Any]) -> dict[str, Any]:
    """Return Jinja's tests; those that look at all of a value are bounded."""
    bounded = {name: _bounded(tests[name], _both) for name in (*_COMPARISONS, *_SHOWN) if name in tests}
    bounded |= {name: _bounded(tests[name], _remainder) for name in _REMAINDERS if name in tests}
    return {**tests, **bounded}


def _remainder(args: Arguments, kwargs: Options) -> Arguments:
    """Charge ``value % number``, which formats where the value is a text."""
    if isinstance(args[0], str):
        number = _option(args, kwargs, 1, "num", 2)
        current_budget().spend(1, modulo_size(args[0], number))
    return args


def _both(args: Arguments, kwargs: Options) -> Arguments:
    current_budget().spend(1, sum(weigh(value) for value in args))
    return args


def _bounded(function: Any, charge: Charge) -> Any:
    from jinja2 import pass_context

    given = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    def bounded(context: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.spend(6 + len(args))
        args = charge(args, kwargs)
        called = function
        if given == "environment":
            called = functools.partial(function, context.environment)
        elif given == "eval_context":
            called = functools.partial(function, context.eval_ctx)
        elif given == "context":
            called = functools.partial(function, context)
        made = tracked(called, args, kwargs) if budget.tracks_users else called(*args, **kwargs)
        if isinstance(made, str):
            budget.spend(0, len(made))
        return made

    return pass_context(bounded)
