"""Counts the parts of a pattern that may be empty.

The engine's time and memory grow with the square of their number in one sequence: 20,000 take 8 s and 1.6 GB, and no limit
of its lexer ends that.
"""

from __future__ import annotations

import re

from lattice_inference.errors import GrammarError

__all__ = ["MOST_OPTIONAL_PARTS", "check_lark_text", "check_optional_parts"]

MOST_OPTIONAL_PARTS = 2_000
"""How many parts of one pattern may be empty."""

_NO_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?[:a-zA-Z<]", re.DOTALL)
_OPTIONAL = re.compile(r"[?*]|\{0*[,}]|\(\||\|\)|\|\||\(\)")
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
_PATTERN = re.compile(r"/(?:\\.|[^/\\\n])+/")
_DEFINITION = re.compile(r"^[ \t]*[?!]?([A-Za-z_][A-Za-z0-9_]*)[^:\n\"/]*:", re.MULTILINE)
_TERMINAL = re.compile(r"\b_*[A-Z][A-Z0-9_]*\b")


def check_optional_parts(pattern: str, what: str = "the regular expression") -> None:
    """Refuse a pattern of which more than :data:`MOST_OPTIONAL_PARTS` parts may be empty.

    Raises:
        GrammarError: with their number.
    """
    _check(_optional_parts(pattern), what)


def check_lark_text(text: str) -> None:
    """Refuse a grammar with a pattern or terminal of too many optional parts.

    Those of the terminals that a terminal names are counted with it.

    Raises:
        GrammarError: with the terminal's name.
    """
    for pattern in _PATTERN.findall(_LITERAL.sub('""', text)):
        check_optional_parts(pattern)
    starts = list(_DEFINITION.finditer(text))
    ends = [*(match.start() for match in starts), len(text)][1:]
    parts: dict[str, int] = {}
    named: dict[str, list[str]] = {}
    for match, end in zip(starts, ends, strict=True):
        body = text[match.end() : end]
        bare = _PATTERN.sub(" ", _LITERAL.sub(" ", body))
        parts[match[1]] = sum(map(_optional_parts, _PATTERN.findall(body))) + len(_OPTIONAL.findall(bare))
        named[match[1]] = _TERMINAL.findall(bare)
    known: dict[str, int] = {}
    for name in parts:
        if _TERMINAL.fullmatch(name):
            _check(_with_named(name, parts, named, known), f"the terminal {name}")


def _with_named(name: str, parts: dict[str, int], named: dict[str, list[str]], known: dict[str, int]) -> int:
    """Return the optional parts of a terminal written out; a circle, which is refused, ends it."""
    stack = [name]
    while stack:
        top = stack[-1]
        known.setdefault(top, 0)
        waiting = [other for other in named[top] if other in parts and other not in known]
        if waiting:
            stack.extend(dict.fromkeys(waiting))
            continue
        stack.pop()
        known[top] = parts[top] + sum(known.get(other, 0) for other in named[top])
    return known[name]


def _optional_parts(pattern: str) -> int:
    return len(_OPTIONAL.findall(_NO_PARTS.sub(lambda match: "(" if match[0][0] == "(" else "x", pattern)))


def _check(count: int, what: str) -> None:
    if count > MOST_OPTIONAL_PARTS:
        raise GrammarError(f"{what} has {count:,} optional parts; at most {MOST_OPTIONAL_PARTS:,} are taken")
