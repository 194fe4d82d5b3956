"""Finds stop texts, which may begin in one token and end in another."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopTexts"]


class StopTexts:
    """Searches a text that comes in pieces for the first stop text; for one thread at a time.

    The match is the stop text that ends first; of several that end at the same character it is the longest. So the match
    does not depend on the split into pieces. Text that may begin a stop text is held back, so every returned piece stands
    before the match. Each stop text has an automaton of Knuth, Morris and Pratt. So memory, and work per character, depend
    on the stop texts only.

    Attributes:
        matched: the stop text that was found, or ``None``.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.matched: str | None = None
        self._automata = [_Automaton(text) for text in texts]
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the next piece and return the text that is before any match; after one ``""``."""
        if self.matched is not None or not self._automata:
            return piece if self.matched is None else ""
        text = self._held + piece
        for index in range(len(self._held), len(text)):
            ended = [automaton.text for automaton in self._automata if automaton.step(text[index])]
            if ended:
                self.matched = max(ended, key=len)
                self._held = ""
                return text[: index + 1 - len(self.matched)]
        held = max(automaton.length for automaton in self._automata)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return the text that was held back; call it at the end of the text."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How many characters, ``length``, of a stop text the text so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = 0
        self._fallback = [0] * (len(text) + 1)  # the longest proper border of each prefix
        border = 0
        for index in range(1, len(text)):
            while border and text[index] != text[border]:
                border = self._fallback[border]
            border += text[index] == text[border]
            self._fallback[index + 1] = border

    def step(self, character: str) -> bool:
        """Take a character and return whether the stop text ends with it."""
        while self.length and self.text[self.length] != character:
            self.length = self._fallback[self.length]
        self.length += self.text[self.length] == character
        return self.length == len(self.text)
