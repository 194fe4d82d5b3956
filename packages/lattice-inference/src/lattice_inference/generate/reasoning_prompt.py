"""Tells from a prompt whether an answer begins with reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lattice_inference.grammar.reasoning import REASONING_MARKS, Reasoning

if TYPE_CHECKING:
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["reasoning_of"]

_MOST_ADDED = 40
"""Where the prompt does not begin with the conversation, its last characters are looked at."""


def reasoning_of(template: ChatTemplate, messages: list[Any], variables: Mapping[str, Any]) -> Reasoning:
    """Return whether an answer can begin with reasoning, or has begun with it in the prompt.

    Only what the template itself adds for an answer counts, so that no message can begin reasoning.
    """
    begin, end = REASONING_MARKS
    if not any(end in source for source in (template.source, *template.named.values())):
        return "none"
    asked = template.render(messages, **variables)
    without = template.render(messages, add_generation_prompt=False, **variables)
    added = asked[len(without) :] if asked.startswith(without) else asked[-_MOST_ADDED:]
    if begin in added:
        return "none" if end in added else "open"
    return "possible"
