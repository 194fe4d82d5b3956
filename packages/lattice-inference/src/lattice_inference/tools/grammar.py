"""The grammar of an answer that may call tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lattice_inference.grammar.reasoning import REASONING_MARKS, Reasoning, lark_text, mark_symbol, reasoning_rules
from lattice_inference.grammar.specification import literal_pattern
from lattice_inference.tools.definitions import Tool
from lattice_inference.tools.formats import ToolFormat

__all__ = ["ToolGrammar"]


@dataclass(frozen=True)
class ToolGrammar:
    """An answer that is a text, calls of tools, or a text and then calls.

    Attributes:
        format: how calls are written.
        tools: those that may be called; none forbids calls.
        required: whether the answer is calls, without a text before them.
        several: whether an answer can have more than one call.
        reasoning: whether reasoning comes first. Marks of calls inside it are a part of it.
    """

    format: ToolFormat
    tools: tuple[Tool, ...]
    required: bool = False
    several: bool = True
    reasoning: Reasoning = "none"

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""
        return *(REASONING_MARKS if self.reasoning != "none" else ()), *self.format.marks

    def engine_grammar(self, special_ids: Mapping[str, int] | None = None) -> str:
        """Return the grammar as the engine reads it; see :class:`MarkedGrammar`."""
        special_ids = special_ids or {}
        rules = self._answer_rules(special_ids)
        if self.reasoning == "none":
            rules = f"start: answer\n{rules}"
        else:
            rules = reasoning_rules("answer", *REASONING_MARKS, self.reasoning == "open", special_ids) + rules
        return json.dumps({"grammars": [{"lark_grammar": lark_text(rules)}]})

    def _answer_rules(self, special_ids: Mapping[str, int]) -> str:
        opening = self.format.opening
        write = partial(_spelled, marks=self.format.marks, special_ids=special_ids)
        calls = self.format.rules(self.tools, several=self.several, write=write) if self.tools else ""
        if self.tools and self.required:
            first = f"{mark_symbol(opening, special_ids)} " if opening else ""
            return f"answer: {first}calls\n{calls}"
        # reasoning has its own rule: the engine must not take it for the beginning of a text
        thinks = " & ~/<think>(?s:.*)/" if self.reasoning == "possible" else ""
        if not opening:
            text = f"TEXT: /(\\s*[^\\s{{\\[](?s:.*))?/{thinks}\n"
            return f"answer: TEXT | calls\n{text}{calls}" if self.tools else f"answer: TEXT\n{text}"
        literal = literal_pattern(opening)
        text = f"TEXT: /(?s:.*)/ & ~/(?s:.*){literal}(?s:.*)/{thinks}\n"
        if not self.tools:
            return f"answer: TEXT\n{text}"
        if opening in special_ids:
            return f"answer: TEXT ({mark_symbol(opening, special_ids)} calls)?\n{text}{calls}"
        before = f"before[suffix={json.dumps(opening)}]: BEFORE\nBEFORE: /(?s:.*)/{thinks}\n"
        return f"answer: TEXT | before calls\n{text}{before}{calls}"


def _spelled(text: str, marks: Sequence[str], special_ids: Mapping[str, int]) -> str:
    """Return how a rule spells a text, in which marks may be special tokens."""
    special = [mark for mark in marks if mark in special_ids]
    parts = re.split("(" + "|".join(map(re.escape, special)) + ")", text) if special else [text]
    return " ".join([mark_symbol(part, special_ids) for part in parts if part])
