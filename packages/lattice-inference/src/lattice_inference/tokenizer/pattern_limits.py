"""Cost limits of a tokenizer file's regex: size before compiling, time on a call's texts."""

from __future__ import annotations

import re
import threading
import time

from lattice_inference.errors import TokenizerError

__all__ = [
    "MAX_PATTERN_CHARACTERS",
    "MAX_PATTERN_SIZE",
    "QUICK_SECONDS",
    "SECONDS_PER_CALL",
    "SECONDS_PER_CHARACTER",
    "SETTLED_CHARACTERS",
    "PatternClock",
    "check_pattern_size",
]

MAX_PATTERN_CHARACTERS = 8192
"""Longest pattern: those of published models have less than a thousand characters."""

MAX_PATTERN_SIZE = 100_000
"""Most elements of a pattern whose repetitions are written out, as the engine does: ``(?:ab){1,50}`` has 100."""

SECONDS_PER_CHARACTER = 10e-6
"""What each character may cost; published patterns take less than a tenth of it."""

SECONDS_PER_CALL = 2.0
"""What the texts of one call may cost above that, in seconds of the calling thread."""

QUICK_SECONDS = 0.01
"""A search that takes longer is looked at alone; below it the clock is read once in some thousand characters."""

SETTLED_CHARACTERS = 4096
"""After how many characters a :class:`PatternClock` is settled."""

_ELEMENT = re.compile(r"\\[pPx]\{[^{}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:<?[=!]|[a-zA-Z-]*:))?|.", re.DOTALL)
_COUNT = re.compile(r"\{(\d*),?(\d*)\}")


def check_pattern_size(pattern: str, where: str) -> None:
    """Refuse a pattern that is too large, as it stands or with repetitions written out.

    Raises TokenizerError.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise TokenizerError(
            f"{where}.pattern has {len(pattern):,} characters; the limit is {MAX_PATTERN_CHARACTERS:,}: {pattern:.80}"
        )
    size = _size(pattern)
    if size > MAX_PATTERN_SIZE:
        raise TokenizerError(
            f"{where}.pattern has more than {MAX_PATTERN_SIZE:,} elements once its repetitions are written out; "
            f"use + or * in place of large counts: {pattern:.80}"
        )


def _size(pattern: str) -> int:
    """Return how many elements ``pattern`` has.

    Each is counted as often as it may be repeated.
    """
    totals = [0]  # of the whole pattern, and of each group that is open
    last = 0  # of the element before, which a count multiplies
    i = 0
    while i < len(pattern):
        count = _COUNT.match(pattern, i)
        if count is not None and any(count.groups()):
            times = max(int(digits[:9]) for digits in count.groups() if digits)
            totals[-1] += last * (times - 1) if times else 0
            last *= max(1, times)
            i = count.end()
            continue
        element = _ELEMENT.match(pattern, i)
        assert element is not None  # its last alternative takes any character
        i = element.end()
        if element[0].startswith("("):
            totals.append(0)
        elif element[0] == ")" and len(totals) > 1:
            last = totals.pop() + 1
            totals[-1] += last
        elif element[0] not in ("?", "*", "+"):
            last = 1
            totals[-1] += 1
    return sum(totals)


class PatternClock(threading.local):
    """Counts what the patterns of one call cost its thread beyond a share for each character.

    A thread has one, which all patterns of a tokenizer use: they add to ``characters`` what they are about to search.
    Unused time is not saved up for long. So one hostile text among many good ones ends as soon as it would alone.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a call."""
        self.left: float = SECONDS_PER_CALL
        self.characters: int = 0
        self._mark = time.thread_time()

    def settle(self, characters: int = 0) -> None:
        """Charge what was used since the last time.

        The last ``characters`` of it are still to be searched.
        """
        now = time.thread_time()
        self.left -= max(0.0, now - self._mark - (self.characters - characters) * SECONDS_PER_CHARACTER)
        self.characters = characters
        self._mark = now
