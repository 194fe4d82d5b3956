"""Reads a grammar in GBNF, llama.cpp's form, and writes it in the engine's Lark form.

GBNF works character by character: ``[a-z]* "b"`` matches "ab", for a repetition gives back what follows needs. The engine
cuts a text into lexemes of the greatest length first. So a grammar without recursion becomes one regular expression, and one
with recursion is written with lexemes of one character each; both mean what GBNF means.

Form: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.pattern_costs import check_optional_parts
from lattice_inference.value_text import value_text

__all__ = ["MOST_CHARACTERS", "gbnf_to_lark"]

MOST_CHARACTERS = 200_000
"""The longest grammar."""
MOST_DEPTH = 100
"""How deep groups may be nested."""
MOST_REPEATS = 2_000
"""The largest number in ``{m,n}``."""
MOST_EXPANDED = 2_000_000
"""How long the one regular expression of a grammar without recursion may become."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_REPEAT = re.compile(r"\{\s*(\d{1,10})\s*(,?)\s*(\d{1,10})?\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class _Characters:
    """One character out of ranges, or out of all others."""

    ranges: tuple[tuple[int, int], ...]
    is_negated: bool = False


@dataclass(frozen=True)
class _Reference:
    """A rule by its name."""

    name: str


@dataclass(frozen=True)
class _Repeat:
    """``item`` so many times; ``most`` is None where there is no end."""

    item: _Node
    least: int
    most: int | None


@dataclass(frozen=True)
class _Sequence:
    """Nodes one after the other."""

    items: tuple[_Node, ...]


@dataclass(frozen=True)
class _Choice:
    """One of several nodes."""

    items: tuple[_Node, ...]


_Node = _Characters | _Reference | _Repeat | _Sequence | _Choice


def gbnf_to_lark(text: str) -> str:
    """Return the grammar in the Lark form of the engine; its first rule is ``start``.

    Raises:
        GrammarError: the text is no GBNF, passes a limit, lacks ``root``, uses a rule that is not there, or has a rule that
            begins with itself.
    """
    if len(text) > MOST_CHARACTERS:
        raise GrammarError(f"the grammar has {len(text):,} characters; at most {MOST_CHARACTERS:,} are taken")
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GrammarError("the grammar has no rule root")
    reached = _reached(rules)
    empty = _nullable(rules)
    _check_left_recursion(rules, reached, empty)
    order = _order_without_recursion(rules, reached)
    if order is not None:
        return f"start: /{_as_regex(rules, order)}/\n"
    return _as_rules(rules, reached)


class _Parser:
    """Reads one text from its beginning."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, _Node]:
        """Return each rule by its name."""
        rules: dict[str, _Node] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._name()
            if name in rules:
                raise self._error(f"the rule {name} stands there twice")
            self._skip(lines=False)
            if not self._text.startswith("::=", self._at):
                raise self._error("expected ::=")
            self._at += 3
            self._skip(lines=True)
            rules[name] = self._choice(is_nested=False)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"unexpected {value_text(self._text[self._at])}")
            self._skip(lines=True)
        return rules

    def _choice(self, *, is_nested: bool) -> _Node:
        branches = [self._sequence(is_nested=is_nested)]
        while True:
            self._skip(lines=is_nested)
            at = self._at
            if not is_nested:  # a branch may stand in the next line
                match = _SPACE_AND_LINES.match(self._text, self._at)
                at = match.end() if match else at
            if not self._text.startswith("|", at):
                return branches[0] if len(branches) == 1 else _Choice(tuple(branches))
            self._at = at + 1
            self._skip(lines=True)
            branches.append(self._sequence(is_nested=is_nested))

    def _sequence(self, *, is_nested: bool) -> _Node:
        items: list[_Node] = []
        while True:
            self._skip(lines=is_nested)
            character = self._text[self._at : self._at + 1]
            if character == '"':
                items.append(self._literal())
                self._repeat_last(items)
            elif character == "[":
                items.append(self._class())
                self._repeat_last(items)
            elif character == ".":
                self._at += 1
                items.append(_Characters((), is_negated=True))
                self._repeat_last(items)
            elif character == "(":
                items.append(self._group())
                self._repeat_last(items)
            elif character and _NAME.match(character):
                items.append(_Reference(self._name()))
                self._repeat_last(items)
            else:
                return _Sequence(tuple(items))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._error(f"groups are nested deeper than {MOST_DEPTH} levels")
        self._at += 1
        inner = self._choice(is_nested=True)
        self._skip(lines=True)
        if not self._text.startswith(")", self._at):
            raise self._error("expected )")
        self._at += 1
        self._depth -= 1
        return inner

    def _repeat_last(self, items: list[_Node]) -> None:
        """Apply the operators that follow the last item to it; a literal is one item."""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in "*+?":
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
                self._at += 1
            elif character == "{":
                least, most = self._bounds()
            else:
                return
            items[-1] = _Repeat(items[-1], least, most)

    def _bounds(self) -> tuple[int, int | None]:
        match = _REPEAT.match(self._text, self._at)
        if match is None:
            raise self._error("expected {m}, {m,} or {m,n}")
        least = int(match[1])
        most = int(match[3]) if match[3] is not None else None if match[2] else least
        if max(least, most or 0) > MOST_REPEATS:
            raise self._error(f"at most {MOST_REPEATS:,} repetitions are taken")
        if most is not None and most < least:
            raise self._error("the second number is below the first")
        self._at = match.end()
        return least, most

    def _literal(self) -> _Node:
        self._at += 1
        characters: list[_Node] = []
        while True:
            character = self._text[self._at : self._at + 1]
            if character in ("", "\r", "\n"):
                raise self._error('a text is not closed by "')
            if character == '"':
                self._at += 1
                return _Sequence(tuple(characters))
            point = self._character()
            characters.append(_Characters(((point, point),)))

    def _class(self) -> _Node:
        self._at += 1
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        while True:
            character = self._text[self._at : self._at + 1]
            if not character:
                raise self._error("a class is not closed by ]")
            if character == "]":
                self._at += 1
                break
            first = last = self._character()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                last = self._character()
                if last < first:
                    raise self._error("a range ends before it begins")
            ranges.append((first, last))
        if not ranges and not is_negated:
            raise self._error("a class without characters matches nothing")
        return _Characters(tuple(ranges), is_negated)

    def _character(self) -> int:
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return ord(character)
        kind = self._text[self._at : self._at + 1]
        if kind in _DIGITS:
            digits = self._text[self._at + 1 : self._at + 1 + _DIGITS[kind]]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{_DIGITS[kind]}}}", digits):
                raise self._error(f"expected {_DIGITS[kind]} hexadecimal digits")
            point = int(digits, 16)
            if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                raise self._error(f"U+{point:X} is no character")
            self._at += 1 + _DIGITS[kind]
            return point
        if kind not in _ESCAPES:
            raise self._error(f"no escape is called \\{kind}")
        self._at += 1
        return ord(_ESCAPES[kind])

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._error("expected the name of a rule")
        self._at = match.end()
        return match[0]

    def _skip(self, *, lines: bool) -> None:
        match = (_SPACE_AND_LINES if lines else _SPACE).match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _error(self, what: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        return GrammarError(f"line {line}, column {column} of the grammar: {what}")


def _names(node: _Node) -> list[str]:
    """Return the rules that a node names, in order, without recursion."""
    found: list[str] = []
    stack = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, _Reference):
            found.append(one.name)
        elif isinstance(one, _Repeat):
            stack.append(one.item)
        elif isinstance(one, (_Sequence, _Choice)):
            stack.extend(reversed(one.items))
    return found


def _reached(rules: dict[str, _Node]) -> list[str]:
    reached = ["root"]
    known = {"root"}
    for name in reached:
        for other in _names(rules[name]):
            if other not in rules:
                raise GrammarError(f"the rule {name} names {value_text(other)}, which the grammar does not have")
            if other not in known:
                known.add(other)
                reached.append(other)
    return reached


def _nullable(rules: dict[str, _Node]) -> set[str]:
    """Return the rules that match the empty text."""
    empty: set[str] = set()
    while True:
        more = {name for name, node in rules.items() if name not in empty and _may_be_empty(node, empty)}
        if not more:
            return empty
        empty |= more


def _may_be_empty(node: _Node, empty: set[str]) -> bool:
    if isinstance(node, _Characters):
        return False
    if isinstance(node, _Reference):
        return node.name in empty
    if isinstance(node, _Repeat):
        return node.least == 0 or _may_be_empty(node.item, empty)
    each = (_may_be_empty(item, empty) for item in node.items)
    return all(each) if isinstance(node, _Sequence) else any(each)


def _first_names(node: _Node, empty: set[str]) -> set[str]:
    """Return the rules that may stand at a node's beginning."""
    if isinstance(node, _Characters):
        return set()
    if isinstance(node, _Reference):
        return {node.name}
    if isinstance(node, _Repeat):
        return _first_names(node.item, empty)
    if isinstance(node, _Choice):
        return set().union(*(_first_names(item, empty) for item in node.items))
    names: set[str] = set()
    for item in node.items:
        names |= _first_names(item, empty)
        if not _may_be_empty(item, empty):
            break
    return names


def _check_left_recursion(rules: dict[str, _Node], reached: list[str], empty: set[str]) -> None:
    """Refuse what llama.cpp refuses: a rule that begins with itself."""
    firsts = {name: _first_names(rules[name], empty) for name in reached}
    for name in reached:
        seen: set[str] = set()
        stack = list(firsts[name])
        while stack:
            other = stack.pop()
            if other == name:
                raise GrammarError(f"the rule {name} begins with itself; let it end with itself")
            if other not in seen:
                seen.add(other)
                stack.extend(firsts[other])


def _order_without_recursion(rules: dict[str, _Node], reached: list[str]) -> list[str] | None:
    """Return the rules, each after those it names, or ``None`` if one leads back to itself."""
    waiting = {name: set(_names(rules[name])) for name in reached}
    order: list[str] = []
    while waiting:
        ready = [name for name, needs in waiting.items() if not needs]
        if not ready:
            return None
        for name in ready:
            del waiting[name]
        for needs in waiting.values():
            needs.difference_update(ready)
        order.extend(ready)
    return order


def _as_regex(rules: dict[str, _Node], order: list[str]) -> str:
    written: dict[str, str] = {}
    for name in order:
        written[name] = _regex(rules[name], written)
        if len(written[name]) > MOST_EXPANDED:
            raise GrammarError(f"the rule {name} is longer than {MOST_EXPANDED:,} characters when it is written out")
    check_optional_parts(written["root"], "the rule root, written out,")
    return written["root"]


def _regex(node: _Node, written: dict[str, str]) -> str:
    if isinstance(node, _Characters):
        return _class_text(node)
    if isinstance(node, _Reference):
        return f"(?:{written[node.name]})"
    if isinstance(node, _Repeat):
        return f"(?:{_regex(node.item, written)}){_repeat_text(node)}"
    if isinstance(node, _Sequence):
        return "".join(_regex(item, written) for item in node.items)
    return "(?:" + "|".join(_regex(item, written) for item in node.items) + ")"


def _class_text(node: _Characters) -> str:
    if not node.ranges:
        return r"(?s:.)"
    if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1] and not node.is_negated:
        return _point(node.ranges[0][0])
    inner = "".join(
        _point(first) if first == last else f"{_point(first)}-{_point(last)}" for first, last in node.ranges
    )
    return f"[{'^' if node.is_negated else ''}{inner}]"


def _point(point: int) -> str:
    """Return a character of a regular expression; what may mean something there, by its number."""
    character = chr(point)
    return character if character.isascii() and character.isalnum() else f"\\x{{{point:X}}}"


def _repeat_text(node: _Repeat) -> str:
    if node.most is None:
        return "*" if node.least == 0 else f"{{{node.least},}}"
    return f"{{{node.least},{node.most}}}"


def _as_rules(rules: dict[str, _Node], reached: list[str]) -> str:
    names = {name: f"rule_{index}" for index, name in enumerate(reached)}
    lines = ["start: rule_0"]
    for name in reached:
        lines.append(f"{names[name]}: {_lark(rules[name], names)}")
    return "\n".join(lines) + "\n"


def _lark(node: _Node, names: dict[str, str]) -> str:
    if isinstance(node, _Characters):
        return f"/{_class_text(node)}/"
    if isinstance(node, _Reference):
        return names[node.name]
    if isinstance(node, _Repeat):
        return f"({_lark(node.item, names)}){_repeat_text(node)}"
    if isinstance(node, _Sequence):
        return " ".join(_lark(item, names) for item in node.items) or '""'
    return "(" + " | ".join(_lark(item, names) for item in node.items) + ")"
