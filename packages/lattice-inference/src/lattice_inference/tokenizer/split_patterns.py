"""Patterns of the Split pre-tokenizer: known ones in C, any other as a step in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from lattice_inference.errors import InvalidInputError, TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.pattern_limits import (
    QUICK_SECONDS,
    SECONDS_PER_CALL,
    SECONDS_PER_CHARACTER,
    SETTLED_CHARACTERS,
    PatternClock,
    check_pattern_size,
)

__all__ = ["BEHAVIORS", "SCANNERS", "PatternSplit"]

Behavior = Literal["isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"]

BEHAVIORS: dict[str, Behavior] = {
    "Isolated": "isolated",
    "Removed": "removed",
    "Contiguous": "contiguous",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
}
"""What becomes of a match, by its name in a tokenizer.json."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

SCANNERS: dict[str, int] = {
    _GPT2: native.SPLIT_GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": native.SPLIT_GPT2,
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": (
        native.SPLIT_QWEN2
    ),
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}": (
        native.SPLIT_QWEN35
    ),
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": (
        native.SPLIT_LLAMA3
    ),
}
"""The regexes that the C code has by hand: each matches every character of a text."""

_clock = PatternClock()

_ESCAPES_NOT_ALIKE = frozenset("AbBGhHkKNOQRwWXyYzZ")
"""Escapes that the two engines read differently: among others, what a word character is."""


def _construct_not_alike(pattern: str) -> str | None:
    """Return the first construct that Hugging Face's engine and ``regex`` read differently."""
    in_class = False
    i = 0
    while i < len(pattern):
        rest = pattern[i:]
        if pattern[i] == "\\":
            if rest[1:2] in _ESCAPES_NOT_ALIKE:
                return rest[:2]
            i += 2
            continue
        if in_class:
            if pattern[i] == "[" or rest.startswith("&&"):  # classes in classes, intersections
                return rest[:2]
            in_class = pattern[i] != "]"
        elif pattern[i] == "[":
            in_class = True
            i += rest.startswith("[^")
            i += pattern[i + 1 : i + 2] == "]"  # at the beginning it does not end the class
        elif pattern[i] in "^$":  # ends of lines in one, of the text in the other
            return pattern[i]
        elif re.match(r"\(\?(?![:=!]|i:|<[=!])", rest):
            return rest[:3]
        elif re.match(r"\{[\d,]*\}\+", rest):  # possessive in one only
            return rest[: rest.index("+") + 1]
        i += 1
    return None


Part = tuple[int, int, bool]


class _Match(Protocol):
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class PatternSplit:
    """Splits a text where ``pattern``, a regex or a literal text, matches.

    A regex that the C code has not by hand needs the package ``regex`` (the extra ``lattice-inference[regex]``). It is
    written for Hugging Face's engine, so what the two engines do not read alike is refused. Its ``\\p`` classes follow the
    version of Unicode that the installed package has: characters assigned since may be split in another way.
    """

    pattern: str
    is_regex: bool
    behavior: Behavior
    invert: bool = False

    @property
    def keeps_matches_alone(self) -> bool:
        """Whether a pattern that matches everything gives just its matches."""
        return self.behavior == "isolated" or (self.behavior == "removed" and self.invert)

    def check(self, where: str) -> None:
        """Raise unless the pattern can be used."""
        if not self.is_regex:
            if not self.pattern:
                raise TokenizerError(f"{where}.pattern is empty")
            return
        check_pattern_size(self.pattern, where)
        found = _construct_not_alike(self.pattern)
        if found is not None:
            raise UnsupportedError(
                f"{where}.pattern uses {found!r:.80}, which is supported only in the patterns of published models: "
                f"{self.pattern:.200}"
            )
        try:
            import regex
        except ImportError:
            raise UnsupportedError(
                f"{where} splits by a regex that needs the package regex; install lattice-inference[regex]: "
                f"{self.pattern:.200}"
            ) from None
        try:
            regex.compile(self.pattern, flags=regex.V0)
        except (regex.error, RecursionError, OverflowError) as error:
            raise TokenizerError(f"{where}.pattern is not a regex: {error}: {self.pattern:.200}") from None

    @cached_property
    def _find(self) -> Callable[..., Iterator[_Match]]:
        """Return the search: of a text, within ``timeout`` seconds."""
        if not self.is_regex:
            literal = re.compile(re.escape(self.pattern))
            return lambda text, timeout: literal.finditer(text)
        import regex

        find: Callable[..., Iterator[_Match]] = regex.compile(self.pattern, flags=regex.V0).finditer
        return find

    @staticmethod
    def begin() -> None:
        """Begin a call of the tokenizer: its texts share one limit of time."""
        _clock.begin()

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of the words of ``text``; some may be empty."""
        size = len(text)
        _clock.characters += size
        if _clock.characters >= SETTLED_CHARACTERS:
            _clock.settle(size)
        try:
            return self._search(text, QUICK_SECONDS + size * SECONDS_PER_CHARACTER)
        except TimeoutError:
            _clock.settle(size)
        try:
            if _clock.left > 0.0:
                return self._search(text, _clock.left + size * SECONDS_PER_CHARACTER)
        except TimeoutError:
            pass
        raise InvalidInputError(
            f"the tokenizer's pattern {self.pattern:.200} takes too long on {size:,} characters that begin with "
            f"{text[:40]!r}: more than {SECONDS_PER_CALL:g} s a call and {SECONDS_PER_CHARACTER * 1e6:g} us a character"
        )

    def _search(self, text: str, seconds: float) -> list[tuple[int, int]]:
        parts: list[Part] = []
        end = 0
        for match in self._find(text, timeout=seconds):
            start, stop = match.span()
            if start != end:
                parts.append((end, start, self.invert))
            parts.append((start, stop, not self.invert))
            end = stop
        if end != len(text):
            parts.append((end, len(text), self.invert))
        return _BEHAVIORS[self.behavior](parts)


def _isolated(parts: list[Part]) -> list[tuple[int, int]]:
    return [(start, end) for start, end, _ in parts]


def _removed(parts: list[Part]) -> list[tuple[int, int]]:
    return [(start, end) for start, end, is_match in parts if not is_match]


def _contiguous(parts: list[Part]) -> list[tuple[int, int]]:
    words: list[tuple[int, int]] = []
    before = None
    for start, end, is_match in parts:
        if is_match == before:
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
        before = is_match
    return words


def _merged_with_previous(parts: list[Part]) -> list[tuple[int, int]]:
    words: list[tuple[int, int]] = []
    before = False
    for start, end, is_match in parts:
        if is_match and not before and words:
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
        before = is_match
    return words


def _merged_with_next(parts: list[Part]) -> list[tuple[int, int]]:
    words: list[tuple[int, int]] = []
    before = False
    for start, end, is_match in reversed(parts):
        if is_match and not before and words:
            words[-1] = (start, words[-1][1])
        else:
            words.append((start, end))
        before = is_match
    return words[::-1]


_BEHAVIORS: dict[Behavior, Callable[[list[Part]], list[tuple[int, int]]]] = {
    "isolated": _isolated,
    "removed": _removed,
    "contiguous": _contiguous,
    "merged_with_previous": _merged_with_previous,
    "merged_with_next": _merged_with_next,
}
