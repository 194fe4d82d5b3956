"""The calls allowed in a chat template: macros, a few functions, and methods of basic types.

A method that can make something large is charged before it does. One that is not here cannot be called.
"""

from __future__ import annotations

import datetime
import operator
import re
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from lattice_inference.tokenizer.template_budget import ITEM, TemplateCostError, current_budget, each, weigh

__all__ = [
    "LARGEST_INTEGER_BITS",
    "Clock",
    "charge_method",
    "checked_integer",
    "is_method",
    "line_count",
    "modulo_size",
    "raise_exception",
    "replaced_size",
    "width_of",
    "widths_in",
]

LARGEST_INTEGER_BITS = 256
"""The largest integers that a template may multiply up to."""

_LONGEST_MESSAGE = 2_000
_LONGEST_DATE = 1_000
_DIGITS = re.compile(r"[0-9]+")
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_CASED = 3  # a letter can have three in another case

Cost = Callable[[str, tuple[Any, ...], dict[str, Any]], int]


def raise_exception(message: object) -> NoReturn:
    """Refuse to render, with a template's own words."""
    current_budget().spend(1, weigh(message))
    raise RuntimeError(str(message)[:_LONGEST_MESSAGE])


class Clock:
    """The function ``strftime_now`` of templates."""

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now

    def __call__(self, form: str) -> str:
        """Return the time as ``form`` says."""
        if isinstance(form, str) and len(form) > _LONGEST_DATE:
            raise TemplateCostError(f"its date has a form of {len(form):,} characters")
        return self._now.strftime(form)


def width_of(value: object) -> int:
    """Return the size that a number asks for, 0 for what is no number."""
    return max(value, 0) if isinstance(value, int) else 0


def widths_in(form: str) -> int:
    """Return the sum of the numbers in a format."""
    return sum(int(digits[:12]) for digits in _DIGITS.findall(form))


def modulo_size(form: str, values: Any) -> int:
    """Return no less than the characters of ``form % values``."""
    holes = form.count("%")
    if not holes:
        return len(form)
    given = (
        values if isinstance(values, tuple) else tuple(values.values()) if isinstance(values, Mapping) else (values,)
    )
    widest = max((weigh(value) for value in given), default=0)
    stars = sum(abs(value) for value in given if isinstance(value, int)) if "*" in form else 0
    return len(form) + holes * widest + stars + widths_in(form)


def line_count(text: str) -> int:
    """Return no less than the lines that ``str.splitlines`` finds."""
    return 1 + sum(map(text.count, _LINE_ENDS))


def replaced_size(text: str, old: Any, new: Any, count: Any = None) -> int:
    """Return no less than the characters of ``text.replace(old, new)``."""
    if not isinstance(old, str) or not isinstance(new, str):
        return len(text)
    times = text.count(old)
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    return len(text) + times * max(len(new) - len(old), 0)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _scan(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return len(text) // 8 + sum(len(value) for value in args if isinstance(value, (str, tuple)))


def _copy(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return len(text)


def _case(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return len(text) if text.isascii() else _CASED * len(text)


def _pad(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return len(text) + width_of(args[0] if args else 0)


def _split(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    separator, most = _argument(args, kwargs, 0, "sep"), _argument(args, kwargs, 1, "maxsplit")
    pieces = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
    if isinstance(most, int) and most >= 0:
        pieces = min(pieces, most)
    return len(text) + ITEM * (pieces + 1)


def _lines(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return len(text) + ITEM * line_count(text)


def _tabs(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    width = _argument(args, kwargs, 0, "tabsize")
    return len(text) + text.count("\t") * (8 if width is None else width_of(width))


def _replace(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return replaced_size(text, *args[:3], **kwargs) if len(args) >= 2 else len(text)


_TEXT_METHODS: dict[str, Cost] = {
    **dict.fromkeys(("startswith", "endswith", "find", "rfind", "index", "rindex", "count"), _scan),
    **dict.fromkeys(("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"), _scan),
    **dict.fromkeys(("isnumeric", "isprintable", "isspace", "istitle", "isupper"), _scan),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition"), _copy),
    **dict.fromkeys(("lower", "upper", "casefold", "swapcase", "title", "capitalize"), _case),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": _lines,
    "expandtabs": _tabs,
    "replace": _replace,
}
_OTHER_METHODS = {
    list: ("index", "count", "copy"),
    tuple: ("index", "count"),
    dict: ("get", "keys", "values", "items", "copy"),
    range: ("index", "count"),
    int: ("bit_length", "is_integer", "conjugate"),
    bool: ("bit_length", "is_integer", "conjugate"),
    float: ("is_integer", "conjugate"),
}


def charge_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Charge a method of a text, list, mapping or number; return the arguments to call it with.

    Raises:
        TemplateCostError: it is too much.
        TypeError: a template may not call it.
    """
    owner, name = method.__self__, method.__name__
    budget = current_budget()
    if isinstance(owner, str):
        if name == "join" and len(args) == 1:
            return (_joined(owner, args[0]),)
        cost = _TEXT_METHODS.get(name)
        if cost is not None:
            budget.spend(1, cost(owner, args, kwargs))
            return args
    elif name in _OTHER_METHODS.get(type(owner), ()):
        if name in ("index", "count"):
            budget.spend(1, weigh(owner) + sum(map(weigh, args)))
        elif name == "copy":
            budget.spend(len(owner), 4 * ITEM * len(owner))
        elif args and not isinstance(args[0], str):
            weigh(args)
        return args
    raise TypeError(f"a chat template cannot call {type(owner).__name__}.{name}")


def _joined(separator: str, items: Any) -> Any:
    """Return the items of a join, charged with the text that it makes."""
    texts = items if isinstance(items, (list, tuple, str)) else list(each(items))
    if isinstance(items, (list, tuple, str)):
        each(items)
    size = len(separator) * len(texts)
    size += len(texts) if isinstance(texts, str) else sum(len(text) for text in texts if isinstance(text, str))
    current_budget().spend(1, size)
    return texts


def is_method(value: object) -> bool:
    """Return whether ``value`` is a method of a built-in value, or of a text marked as HTML."""
    if type(value) is BuiltinMethodType:
        return not isinstance(value.__self__, type)
    return type(value) is MethodType and isinstance(value.__self__, str)


def checked_integer(name: str, left: Any, right: Any) -> None:
    """Refuse a product or a power of integers that is too large to be of use.

    Raises:
        TemplateCostError: it is.
    """
    bits = operator.index(left).bit_length()
    size = bits * abs(right) if name == "**" else bits + right.bit_length()
    if size > LARGEST_INTEGER_BITS and bits > 1:
        raise TemplateCostError(f"the result of its {name} has more than {LARGEST_INTEGER_BITS:,} bits")
