"""Streaming decoder: text comes out as soon as later tokens cannot change it.

What flows from stage to stage are fragments: a text, and whether the token that it belongs to ends with it. A stage that
makes one token of many (the bytes of a byte-level decoder, Fuse) passes fragments of it on while it grows.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from lattice_inference.turn import Turn

if TYPE_CHECKING:
    from lattice_inference.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ByteRunStage",
    "ByteStage",
    "CharacterStage",
    "FuseStage",
    "LastTokenStage",
    "SequenceStage",
    "Stage",
    "StripStage",
    "TokenStage",
    "TokenStream",
]

Fragment = tuple[str, bool]
"""A text, and whether its token ends with it."""


class Stage(Protocol):
    """One decoder at work on one text."""

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return the fragments that are now certain."""

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""


class _WholeTokens(ABC):
    """The part of a stage that needs tokens whole: gathers fragments until their token ends."""

    def __init__(self) -> None:
        self._fragments: list[str] = []

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return the fragments that are now certain."""
        if not ends:
            self._fragments.append(text)
            return []
        if self._fragments:
            text = "".join([*self._fragments, text])
            self._fragments.clear()
        return self._take(text)

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return []

    @abstractmethod
    def _take(self, token: str) -> list[Fragment]:
        """Take a whole token and return the fragments that are now certain."""


class TokenStage(_WholeTokens):
    """Changes each token by itself: ``render(token, is_first)``."""

    def __init__(self, render: Callable[[str, bool], str]) -> None:
        super().__init__()
        self._render = render
        self._is_first = True

    def _take(self, token: str) -> list[Fragment]:
        text = self._render(token, self._is_first)
        self._is_first = False
        return [(text, True)]


class LastTokenStage(_WholeTokens):
    """Changes each token by itself, the last one in another way: ``render(token, is_last)``."""

    def __init__(self, render: Callable[[str, bool], str]) -> None:
        super().__init__()
        self._render = render
        self._held: str | None = None

    def _take(self, token: str) -> list[Fragment]:
        held, self._held = self._held, token
        return [] if held is None else [(self._render(held, False), True)]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return [] if self._held is None else [(self._render(self._held, True), True)]


class CharacterStage:
    """Changes each character by itself, so fragments need not wait.

    The function is ``render(text, is_first_token)``.
    """

    def __init__(self, render: Callable[[str, bool], str]) -> None:
        self._render = render
        self._is_first = True

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return it, changed."""
        fragment = (self._render(text, self._is_first), ends)
        self._is_first &= not ends
        return [fragment]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return []


class FuseStage:
    """Makes one token of all."""

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return it as a part of the one token."""
        return [(text, False)]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return [("", True)]


class ByteStage(_WholeTokens):
    """Joins all tokens' bytes; holds back a character until its bytes are complete."""

    def __init__(self, token_bytes: Callable[[str], bytes]) -> None:
        super().__init__()
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def _take(self, token: str) -> list[Fragment]:
        return [(self._decoder.decode(self._token_bytes(token)), False)]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return [(self._decoder.decode(b"", True), True)]


class ByteRunStage(_WholeTokens):
    """Joins each run of byte tokens; holds back a character until its bytes are complete."""

    def __init__(self, byte_of: Callable[[str], int | None], decoder: codecs.IncrementalDecoder) -> None:
        super().__init__()
        self._byte_of = byte_of
        self._decoder = decoder
        self._is_in_run = False

    def _take(self, token: str) -> list[Fragment]:
        byte = self._byte_of(token)
        if byte is None:
            return [*self.finish(), (token, True)]
        self._is_in_run = True
        return [(self._decoder.decode(bytes([byte])), False)]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        if not self._is_in_run:
            return []
        self._is_in_run = False
        return [(self._decoder.decode(b"", True), True)]


class StripStage:
    """Strips up to ``start`` ``content`` from each token's beginning, and ``stop`` from its end.

    ``content`` is one character.
    """

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._start = start
        self._stop = stop
        self._left = start
        self._held = 0  # characters at the end of what has come of the token, which may have to go

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return the fragments that are now certain."""
        if self._left:
            stripped = text.lstrip(self._content)
            leading = min(self._left, len(text) - len(stripped))
            self._left = self._left - leading if leading == len(text) else 0
            text = text[leading:]
        text = self._content * self._held + text
        trailing = min(self._stop, len(text) - len(text.rstrip(self._content)))
        self._held = 0 if ends else trailing
        if ends:
            self._left = self._start
        return [(text[: len(text) - trailing], ends)]

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        return []


class SequenceStage:
    """Stages in a row."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def push(self, text: str, ends: bool) -> list[Fragment]:
        """Take a fragment and return what the last stage makes of it."""
        return self._through(0, [(text, ends)])

    def finish(self) -> list[Fragment]:
        """Return what is left at the end of the text."""
        fragments: list[Fragment] = []
        for i, stage in enumerate(self._stages):
            fragments += self._through(i + 1, stage.finish())
        return fragments

    def _through(self, first: int, fragments: list[Fragment]) -> list[Fragment]:
        for stage in self._stages[first:]:
            fragments = [after for text, ends in fragments for after in stage.push(text, ends)]
        return fragments


class TokenStream:
    """Turns the ids of one text into the text while they come; made by :meth:`Tokenizer.stream`.

    The pieces put together, with that of :meth:`finish`, are what :meth:`Tokenizer.decode` gives for all ids. No piece
    ends inside a character: bytes wait until their character is complete. For one call at a time: one
    beside another raises :class:`BusyError`.
    """

    def __init__(self, tokenizer: Tokenizer, stage: Stage, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._stage = stage
        self._skip_special_tokens = skip_special_tokens
        self._turn = Turn("this stream of tokens", "make a stream for each text")

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that is now certain, often ``""``.

        Raises :class:`InvalidInputError` for an id that no token has; the stream then goes on as if it had not come.
        """
        token = self._tokenizer.token_of(token_id, skip_special_tokens=self._skip_special_tokens)
        with self._turn:
            return "" if token is None else "".join([text for text, _ in self._stage.push(token, True)])

    def finish(self) -> str:
        """Return the held-back text and end the stream.

        An incomplete character becomes U+FFFD.
        """
        with self._turn:
            return "".join([text for text, _ in self._stage.finish()])
