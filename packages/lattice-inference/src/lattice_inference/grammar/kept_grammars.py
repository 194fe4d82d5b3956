"""Compiled grammars that are kept for the next text, within a bound of estimated bytes.

The texts of a grammar share its lexer, whose states are computed when a text needs them and stay. So a kept grammar grows
with use, and a limit of its lexer would end all its texts. One that has grown much is dropped, and compiled again for the
next text.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from lattice_inference.process_lock import ProcessLock

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["MOST_GROWN_BYTES", "MOST_KEPT_BYTES", "KeptGrammar", "KeptGrammars", "lexer_cost"]

MOST_KEPT_BYTES = 64_000_000
"""How many bytes the kept grammars may take together, as they are estimated."""

MOST_GROWN_BYTES = 8_000_000
"""How many bytes of states a kept grammar may have computed; 50,000, the engine's limit, have twice that or more."""

MASKS_BETWEEN_LOOKS = 256
"""After how many masks a grammar's size is estimated again."""

QUICK_CHARACTERS = 10_000
QUICK_COST = 100_000

# Measured with llguidance 1.9 as what malloc had given out, on 33 grammars and 10 texts; each is near the largest found.
BASE_BYTES = 100_000
USED_BYTES = 500_000  # the first states
BYTES_OF_CHARACTER = 80  # of rules; patterns and choices take 12
BYTES_OF_COST = 25  # of a compiled lexer
BYTES_OF_GROWN_COST = 45
MOST_LEXER_BYTES = 80_000_000  # at the limit of 50,000 states

_COST = re.compile(r'"lexer_cost": (\d+)')
_NO_TOKEN = 2**31 - 2


def lexer_cost(matcher: LLMatcher) -> int | None:
    """Return what a lexer has spent, which its memory follows; ``None`` if it passed a limit."""
    probe = matcher.deep_copy()
    probe.compute_bitmask()  # notes the cost
    if probe.is_error():
        return None
    probe.consume_token(_NO_TOKEN)  # the error tells it
    found = _COST.search(probe.get_error())
    return int(found[1]) if found else 0


class KeptGrammar:
    """One compiled grammar.

    Args:
        matcher: at the beginning of a text.
        text: the grammar as the engine reads it.

    Attributes:
        masks: how many masks its texts have made.
        has_failed: whether its lexer has passed a limit.
        cost: what its lexer had spent when it was compiled.
        is_quick: whether it is compiled in some milliseconds.
    """

    def __init__(self, matcher: LLMatcher, text: str) -> None:
        self.matcher = matcher
        self.masks = 0
        self.has_failed = False
        self.cost = lexer_cost(matcher) or 0
        self.is_quick: bool = len(text) <= QUICK_CHARACTERS and self.cost <= QUICK_COST
        self._compiled_bytes = BASE_BYTES + BYTES_OF_CHARACTER * len(text) + BYTES_OF_COST * self.cost
        self._grown_bytes = 0
        self._looked_at = 0

    @property
    def bytes(self) -> int:
        """The bytes that it takes, as they were estimated last."""
        return self._compiled_bytes + self._grown_bytes + (USED_BYTES if self.masks else 0)

    @property
    def has_grown(self) -> bool:
        """Whether it is better compiled again."""
        return self.has_failed or self._grown_bytes > MOST_GROWN_BYTES

    def look(self) -> None:
        """Estimate its size, if it was used since."""
        if self.has_failed or self.masks - self._looked_at < MASKS_BETWEEN_LOOKS:
            return
        self._looked_at = self.masks
        cost = lexer_cost(self.matcher)
        if cost is None:
            self.has_failed = True
        else:
            self._grown_bytes = min(BYTES_OF_GROWN_COST * (cost - self.cost), MOST_LEXER_BYTES)


class KeptGrammars:
    """Compiled grammars by their texts. For several threads at once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptGrammar] = OrderedDict()
        self._lock = ProcessLock()

    @property
    def bytes(self) -> int:
        """The bytes that all take, as they were estimated last."""
        with self._lock:
            return sum(kept.bytes for kept in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, text: str) -> KeptGrammar | None:
        """Return the grammar of a text, unless it is not kept or has grown too much."""
        with self._lock:
            kept = self._kept.get(text)
        if kept is None:
            return None
        kept.look()
        with self._lock:
            if self._kept.get(text) is not kept:
                return None
            if kept.has_grown:
                del self._kept[text]
                return None
            self._kept.move_to_end(text)
        return kept

    def keep(self, text: str, kept: KeptGrammar) -> None:
        """Keep a grammar; others that have grown too much, or were used longest ago, are dropped."""
        with self._lock:
            others = list(self._kept.items())
        for _, other in others:
            other.look()
        with self._lock:
            for name, other in others:
                if other.has_grown and self._kept.get(name) is other:
                    del self._kept[name]
            self._kept[text] = kept
            taken = self.bytes
            while taken > MOST_KEPT_BYTES and len(self) > 1:
                taken -= self._kept.popitem(last=False)[1].bytes
