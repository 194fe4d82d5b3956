"""Where the answers are in a rendered conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lattice_inference.errors import InvalidInputError
from lattice_inference.tokenizer.chat_messages import Message
from lattice_inference.tokenizer.user_text import Ranges
from lattice_inference.value_text import value_text

__all__ = ["answer_ranges", "unweighted"]


def unweighted(messages: Sequence[Message]) -> tuple[Sequence[Message], list[bool]]:
    """Return the messages without their weights, and which of them are answers to learn.

    Raises:
        InvalidInputError: a weight is neither 0 nor 1.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        return messages, []  # the template says what is wrong
    shown: list[Message] = []
    answers: list[bool] = []
    one_by_one: Sequence[Any] = messages  # callers pass other things, too
    for index, message in enumerate(one_by_one):
        if not isinstance(message, Mapping):
            return messages, []
        weight = message.get("weight", 1)
        if isinstance(weight, bool) or weight not in (0, 1):
            raise InvalidInputError(f"messages[{index}] has the weight {value_text(weight)}; it must be 0 or 1")
        answers.append(message.get("role") == "assistant" and weight == 1)
        shown.append({name: value for name, value in message.items() if name != "weight"})
    return shown, answers


def answer_ranges(text: str, given: Ranges, by_assistant: Ranges, start: str, end: str) -> Ranges:
    """Return the characters of the answers.

    Args:
        text: the conversation.
        given: its characters that came out of messages.
        by_assistant: those of them that came out of the answers to learn.
        start, end: what the template puts before and after an answer; ``""`` where that cannot be told.
    """
    found: list[tuple[int, int]] = []
    others = _without(given, by_assistant)
    starts = _template_places(text, start, given) if start else []
    bounds = sorted([*starts, *(first for first, _ in others), len(text)])
    rest = list(by_assistant)
    for place in starts:
        first = place + len(start)
        bound = next(bound for bound in bounds if bound > place)
        turn = [part for part in rest if first <= part[0] and part[1] <= bound]
        if turn:
            last = turn[-1][1]
            mark = text.find(end, last, bound) if end else -1
            found.append((first, max(last, mark)))
            rest = [part for part in rest if part not in turn]
    return tuple(sorted(found + rest))


def _template_places(text: str, wanted: str, given: Ranges) -> list[int]:
    """Return where the template wrote a text, outside of what was given."""
    places, at = [], text.find(wanted)
    while at >= 0:
        if not any(first < at + len(wanted) and at < last for first, last in given):
            places.append(at)
        at = text.find(wanted, at + 1)
    return places


def _without(ranges: Ranges, taken: Ranges) -> list[tuple[int, int]]:
    """Return the parts of ranges that lie in none of ``taken``."""
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        at = first
        for start, end in taken:
            if end <= at or start >= last:
                continue
            if start > at:
                left.append((at, start))
            at = max(at, end)
        if at < last:
            left.append((at, last))
    return left
