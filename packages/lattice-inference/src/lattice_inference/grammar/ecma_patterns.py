"""Rewrites regular expressions of ECMA-262 in the syntax of Rust's crate ``regex``.

JSON Schema has the former, the engine reads the latter. Most is the same in both. ``.`` and ``\\s`` stand for other
characters, a ``[`` or ``&&`` in a class means something to Rust only, and some escapes have other names. What only one of
them has is refused.
"""

from __future__ import annotations

import re

from lattice_inference.errors import GrammarError
from lattice_inference.value_text import value_text

__all__ = ["rust_pattern"]

# WhiteSpace and LineTerminator of ECMA-262, 12.2 and 12.3.
_SPACE = r"\t-\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_ANY_BUT_LINE_END = r"[^\n\r\x{2028}\x{2029}]"
_SAME_IN_BOTH = re.compile(
    r"[dDwWfnrtv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|[pP]\{[A-Za-z_0-9=]+\}|[pP][A-Z]|[^A-Za-z0-9]",
    re.DOTALL,
)
_SURROGATES = re.compile(r"u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}")
_GROUP = re.compile(r"\((?!\?)|\(\?(?::|<[A-Za-z_][A-Za-z0-9_]*>)")
_SETS = re.compile(r"\\[dDwWpP]|\\t-|\[")
# No text has the character NUL. In a class of all control characters the engine takes every escape, \" and \\ too, even
# if the class excludes the mark; without NUL it looks at each.
_NUL = (r"\x{0}", r"\x00", r"\u0000", r"\u{0}", r"\u{00}", r"\u{0000}")
_ONE = r"\x{1}"
_QUANTIFIER = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})\??")


def rust_pattern(pattern: str, pointer: str) -> str:
    """Return the pattern in Rust's syntax, which matches the same texts.

    Args:
        pattern: of ECMA-262 with the flag ``u``.
        pointer: where it stands in a schema, for errors.

    Raises:
        GrammarError: look-around, references back, word boundaries, flags, or no pattern of ECMA-262.
    """
    written: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            text, at = _escape(pattern, at, pointer, in_class=False)
            written.append(text)
            continue
        if character == "[":
            text, at = _class(pattern, at, pointer)
            written.append(text)
            continue
        if character == "(":
            match = _GROUP.match(pattern, at)
            if match is None:
                raise _refused("look-around and flags", pattern, pointer)
            written.append(match[0])
            at = match.end()
            continue
        if character in "*+?{":
            match = _QUANTIFIER.match(pattern, at)
            if match is None:
                raise _refused("a { that begins no repetition", pattern, pointer)
            if _QUANTIFIER.match(pattern, match.end()):
                raise _refused("a repetition of a repetition", pattern, pointer)
            written.append(match[1])  # taking few or many first does not change which texts match
            at = match.end()
            continue
        written.append(_ANY_BUT_LINE_END if character == "." else character)
        at += 1
    return "".join(written)


def _class(pattern: str, at: int, pointer: str) -> tuple[str, int]:
    """Return a class in Rust's syntax and where it ends."""
    at += 1
    negation = "^" if pattern.startswith("^", at) else ""
    at += len(negation)
    inner: list[str] = []
    while not pattern.startswith("]", at):
        first, at = _class_atom(pattern, at, pointer)
        if pattern.startswith("-", at) and pattern[at + 1 : at + 2] not in ("", "]"):
            last, at = _class_atom(pattern, at + 1, pointer)
            if _SETS.match(first) or _SETS.match(last):
                raise _refused("a range of classes", pattern, pointer)
            inner.append(f"{first if first not in _NUL or last in _NUL else _ONE}-{last}")
        else:
            inner.append(first)
    if inner:
        return f"[{negation}{''.join(inner)}{_NUL[0] if negation else ''}]", at + 1
    if not negation:
        raise _refused("a class that matches nothing", pattern, pointer)
    return "(?s:.)", at + 1


def _class_atom(pattern: str, at: int, pointer: str) -> tuple[str, int]:
    """Return one character, or one escape, of a class and where it ends."""
    character = pattern[at : at + 1]
    if not character:
        raise _refused("a class without ]", pattern, pointer)
    if character == "\\":
        return _escape(pattern, at, pointer, in_class=True)
    return (f"\\{character}" if character in "[&~^-" else character), at + 1


def _escape(pattern: str, at: int, pointer: str, *, in_class: bool) -> tuple[str, int]:
    """Return an escape in Rust's syntax and where it ends."""
    rest = pattern[at + 1 : at + 13]
    kind = rest[:1]
    pair = _SURROGATES.match(rest)
    if pair is not None:
        high, low = int(rest[1:5], 16), int(rest[7:11], 16)
        return f"\\x{{{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):X}}}", at + 1 + pair.end()
    if kind == "s":
        return (_SPACE if in_class else f"[{_SPACE}]"), at + 2
    if kind == "S":
        return f"[^{_SPACE}]", at + 2
    if kind == "b" and in_class:
        return r"\x08", at + 2
    if kind == "0" and not rest[1:2].isdigit():
        return r"\x{0}", at + 2
    if kind == "c" and rest[1:2].isascii() and rest[1:2].isalpha():
        return f"\\x{{{ord(rest[1]) % 32:X}}}", at + 3
    match = _SAME_IN_BOTH.match(rest)
    if match is None:
        what = "word boundaries and references back" if kind in tuple("bBk123456789") else f"the escape \\{kind}"
        raise _refused(what, pattern, pointer)
    if kind == "u" and rest[1:3].lower() in {"d8", "d9", "da", "db", "dc", "dd", "de", "df"}:
        raise _refused("half of a surrogate pair", pattern, pointer)
    return f"\\{match[0]}", at + 1 + match.end()


def _refused(what: str, pattern: str, pointer: str) -> GrammarError:
    return GrammarError(f"the schema at {pointer[:200]}: {what} in {value_text(pattern)} cannot be enforced", pointer)
