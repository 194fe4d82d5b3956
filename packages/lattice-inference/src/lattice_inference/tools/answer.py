"""Reads an answer as it comes: its text, and the calls after it."""

from __future__ import annotations

from lattice_inference.grammar.reasoning import REASONING_MARKS
from lattice_inference.tools.calls import ToolCall, ToolCallDelta, call_id
from lattice_inference.tools.grammar import ToolGrammar
from lattice_inference.tools.reading import Reading

__all__ = ["AnswerReader"]


class AnswerReader:
    """Follows a :class:`ToolGrammar` over an answer's text. For one thread at a time.

    The grammar says where a call is, so a mark inside an argument, or inside reasoning, is what it stands for there. An
    answer that was cut off has the calls that are whole.

    Args:
        grammar: that the answer obeys.
        seed: the ids of calls are made of it.
    """

    def __init__(self, grammar: ToolGrammar, seed: str) -> None:
        self._grammar = grammar
        self._seed = seed
        self._reading: Reading | None = None
        self._held = ""  # of the text: what may begin a mark, and blanks that may stand before one
        self._reasoning = grammar.reasoning  # "none" after it
        self._deltas: list[ToolCallDelta] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self._whole = 0
        if grammar.required:
            self._reasoning = grammar.reasoning

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are whole."""
        return tuple(
            [
                ToolCall(call_id(self._seed, index), self._names[index], "".join(self._arguments[index]))
                for index in range(self._whole)
            ]
        )

    def push(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """Take the next piece; return what it adds to the text and to the calls."""
        shown = ""
        self._deltas = []
        if self._reading is None and text:
            shown, text = self._split(self._held + text)
        if self._reading is not None:
            for character in text:
                try:
                    self._reading.send(character)
                except StopIteration:
                    break
        return shown, self._deltas

    def finish(self) -> str:
        """Return the text that was held back; call it at the end of the answer."""
        held, self._held = self._held, ""
        return held

    def begin(self, name: str) -> None:
        """Take the name of a call that begins."""
        self._names.append(name)
        self._arguments.append([])
        index = len(self._names) - 1
        self._deltas.append(ToolCallDelta(index, call_id(self._seed, index), name))

    def arguments(self, text: str) -> None:
        """Take the next characters of a call's arguments."""
        index = len(self._names) - 1
        self._arguments[index].append(text)
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.index == index:
            self._deltas[-1] = ToolCallDelta(index, last.id, last.name, last.arguments + text)
        else:
            self._deltas.append(ToolCallDelta(index, arguments=text))

    def end(self) -> None:
        """The call is whole."""
        self._whole += 1

    def _split(self, text: str) -> tuple[str, str]:
        """Return what is certain to be text, and what belongs to the calls; hold the rest."""
        shown = ""
        self._held = ""
        if self._reasoning != "none":
            begin, end = REASONING_MARKS
            if self._reasoning == "possible" and not text.startswith(begin):
                if begin.startswith(text):
                    self._held = text
                    return "", ""
                self._reasoning = "none"
            else:
                self._reasoning = "open"
                place = text.find(end)
                if place < 0:
                    keep = len(text) - _overlap(text, end)
                    shown, self._held = text[:keep], text[keep:]
                    return shown, ""
                self._reasoning = "none"
                place += len(end)
                shown, text = text[:place], text[place:]
        if not self._grammar.tools:
            return shown + text, ""
        opening = self._grammar.format.opening
        if not opening:
            return self._split_json(shown, text)
        place = text.find(opening)
        if place >= 0:
            self._begin_reading()
            return shown + text[:place].rstrip(), text[place + len(opening) :]
        keep = len(text) - _overlap(text, opening)
        keep = len(text[:keep].rstrip())
        self._held = text[keep:]
        return shown + text[:keep], ""

    def _split_json(self, shown: str, text: str) -> tuple[str, str]:
        """Split an answer that is calls if it begins with a bracket."""
        stripped = text.lstrip()
        if self._is_text or not stripped:
            if not self._is_text:
                self._held = text
                return shown, ""
            return shown + text, ""
        if stripped[0] in "{[":
            self._begin_reading()
            return shown, stripped
        self._is_text = True
        return shown + text, ""

    _is_text = False

    def _begin_reading(self) -> None:
        self._reading = self._grammar.format.read(self, self._grammar.tools)
        next(self._reading)


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may begin a mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
