"""A grammar that begins after the end of a model's reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lattice_inference.argument_checks import checked_mapping
from lattice_inference.errors import GrammarError
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.grammar.specification import Grammar

__all__ = ["REASONING_MARKS", "AfterReasoning", "Reasoning", "lark_text", "mark_symbol", "reasoning_rules"]

REASONING_MARKS = ("<think>", "</think>")
"""The marks around the reasoning of Qwen, DeepSeek and those who follow them."""

Reasoning = Literal["none", "possible", "open"]
"""Whether an answer can begin with reasoning, or has begun with it in the prompt."""


@dataclass(frozen=True)
class AfterReasoning:
    """A text that may begin with reasoning, and obeys a grammar after it.

    Up to two line ends may stand between both. A :class:`Chat` does this by itself, as its template thinks.

    >>> AfterReasoning(Choice(["yes", "no"])).end                                         # doctest: +SKIP
    '</think>'

    Args:
        grammar: of what follows the reasoning.
        begin: the mark that begins it.
        end: the mark that ends it.
        is_open: whether the prompt ends inside the reasoning; else the text may do without any.

    Raises:
        GrammarError: no grammar, or a mark that is no text.
    """

    grammar: Grammar
    begin: str = REASONING_MARKS[0]
    end: str = REASONING_MARKS[1]
    is_open: bool = False

    def __post_init__(self) -> None:
        if not callable(getattr(self.grammar, "engine_grammar", None)) or isinstance(self.grammar, AfterReasoning):
            raise GrammarError(
                f"grammar is {value_text(self.grammar)}; expected a JsonSchema, Regex, Gbnf, Lark or Choice"
            )
        for name in ("begin", "end"):
            mark = getattr(self, name)
            if not isinstance(mark, str) or not mark:
                raise GrammarError(f"{name} is {value_text(mark)}; expected the text of a mark")

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""
        return self.begin, self.end

    def engine_grammar(self, special_ids: Mapping[str, int] | None = None) -> str:
        """Return the grammar as the engine reads it; see :class:`MarkedGrammar`."""
        special_ids = checked_mapping("special_ids", special_ids)
        inner: list[dict[str, Any]] = json.loads(self.grammar.engine_grammar())["grammars"]
        inner[0]["name"] = "answer"
        rules = reasoning_rules("@answer", self.begin, self.end, self.is_open, special_ids)
        return json.dumps({"grammars": [{"name": "text", "lark_grammar": lark_text(rules)}, *inner]})


def lark_text(rules: str) -> str:
    """Return rules as the engine reads them; all tokens that fit are allowed."""
    return f'%llguidance {{"no_forcing": true}}\n{rules}'


def mark_symbol(mark: str, special_ids: Mapping[str, int]) -> str:
    """Return how a rule names a mark: by its id, where it is a special token, else by its text."""
    return f"<[{special_ids[mark]}]>" if mark in special_ids else json.dumps(mark, ensure_ascii=False)


def reasoning_rules(answer: str, begin: str, end: str, is_open: bool, special_ids: Mapping[str, int]) -> str:
    """Return the rules of a text whose ``answer``, the name of a rule, stands after reasoning."""
    opening = mark_symbol(begin, special_ids)
    if end in special_ids:
        body = f"reasoning: /(?s:.*)/ {mark_symbol(end, special_ids)}\n"
    else:
        body = f"reasoning[suffix={json.dumps(end, ensure_ascii=False)}]: /(?s:.*)/\n"
    first = "reasoning gap" if is_open else f"({opening} reasoning gap)?"
    return f"start: {first} {answer}\n{body}gap: /\\n{{0,2}}/\n"
