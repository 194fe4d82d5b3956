"""Tells the reasoning of an answer from the answer itself, piece by piece."""

from __future__ import annotations

from lattice_inference.grammar.reasoning import REASONING_MARKS, Reasoning

__all__ = ["ReasoningSplit"]


class ReasoningSplit:
    """Splits a text that comes in pieces at the marks of reasoning.

    Blank lines beside the marks belong to neither side, as in :attr:`GenerateResult.answer`. Reasoning that does not end
    stays reasoning.

    Args:
        reasoning: whether the answer has begun with reasoning in the prompt, can begin with it, or cannot.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._state: str = reasoning  # "after" once the mark of the end has come, until the answer begins
        self._held = ""
        self._has_begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece; return what it adds to the reasoning and to the answer."""
        text, self._held = self._held + text, ""
        begin, end = REASONING_MARKS
        if self._state == "possible" and text:
            if begin.startswith(text):
                self._held = text
                return "", ""
            self._state = "open" if text.startswith(begin) else "none"
            text = text.removeprefix(begin)
        thought = ""
        if self._state == "open":
            before, mark, after = text.partition(end)
            if not mark:
                kept = before[: len(before) - _overlap(before, end)].rstrip("\n")
                self._held = before[len(kept) :]
                return self._begun(kept), ""
            thought, text, self._state = self._begun(before.rstrip("\n")), after, "after"
        if self._state == "after":
            text = text.lstrip("\n")
            if text:
                self._state = "none"
        return thought, text

    def finish(self) -> tuple[str, str]:
        """Return what was held back; call it at the end."""
        held, self._held = self._held, ""
        return (self._begun(held.rstrip("\n")), "") if self._state == "open" else ("", held)

    def _begun(self, text: str) -> str:
        if not self._has_begun:
            text = text.lstrip("\n")
            self._has_begun = bool(text)
        return text


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may begin a mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
