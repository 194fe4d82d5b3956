"""English-like texts of an exact number of tokens, equal for every engine and machine.

Words come from ``data/english_words.json``, grouped by how many WordPiece tokens bert-base-uncased's vocabulary gives
them. BERT cuts at spaces and punctuation first, so the tokens of a text are the sum of its words' and of its
punctuation marks. A token count always includes the two special tokens, as the model sees it.
"""

from __future__ import annotations

import json
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

__all__ = ["CELLS", "SEED", "WARM_UP_TEXTS", "Cell", "make_text", "make_texts"]

SEED = 20_240_229
"""Seed of all texts; part of what a figure means."""

WARM_UP_TEXTS = 32
"""Texts of a cell that an engine embeds untimed at the start of each of its turns."""

SPECIAL_TOKENS = 2
PIECE_SHARES = {1: 0.88, 2: 0.08, 3: 0.04}
WORDS_FILE = Path(__file__).parent.parent / "data" / "english_words.json"


@dataclass(frozen=True)
class Cell:
    """One workload: the texts of one call.

    Attributes:
        name: what ``--cells`` calls it.
        title: what tables call it.
        lengths: tokens of each text, special tokens included.
        calls: timed calls in one turn of an engine.
        takes_seconds: a call is long enough that fewer turns give a steady median.
    """

    name: str
    title: str
    lengths: tuple[int, ...]
    calls: int
    takes_seconds: bool = False

    def turns(self, repeats: int) -> int:
        """Return how many turns each engine gets for a requested number of ``repeats``."""
        return max(repeats // 3, min(repeats, 3)) if self.takes_seconds else repeats

    def texts(self) -> list[str]:
        """Return the texts, always the same."""
        return make_texts(self.lengths, seed=SEED)


def _mixed_lengths(count: int, shortest: int, longest: int) -> tuple[int, ...]:
    draw = random.Random(SEED)
    return tuple(shortest + int(draw.random() * (longest - shortest + 1)) for _ in range(count))


CELLS: dict[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell("1x10", "one text of 10 tokens", (10,), 20),
        Cell("32x20", "32 texts of 20 tokens", (20,) * 32, 4),
        Cell("32x128", "32 texts of 128 tokens", (128,) * 32, 1),
        Cell("8x256", "8 texts of 256 tokens", (256,) * 8, 1),
        Cell("mixed", "1,000 texts of 2 to 200 tokens", _mixed_lengths(1_000, 2, 200), 1, takes_seconds=True),
    )
}


def make_texts(lengths: Sequence[int], *, seed: int) -> list[str]:
    """Return one text for each number of tokens."""
    draw = random.Random(seed)
    return [make_text(length, draw) for length in lengths]


def make_text(tokens: int, draw: random.Random) -> str:
    """Return a text of exactly ``tokens`` tokens: sentences of 5 to 14 words, some with a comma.

    Only ``draw.random()`` is used, whose sequence Python keeps from version to version.

    Raises:
        ValueError: ``tokens`` is below 2, the special tokens of an empty text.
    """
    if not tokens >= SPECIAL_TOKENS:
        raise ValueError(f"a text has at least {SPECIAL_TOKENS} tokens, the special ones; {tokens} were requested")
    left = tokens - SPECIAL_TOKENS
    sentences: list[str] = []
    while left:
        sentence, used = _sentence(left, draw)
        sentences.append(sentence)
        left -= used
    return " ".join(sentences)


def _sentence(budget: int, draw: random.Random) -> tuple[str, int]:
    """Return a sentence of at most ``budget`` tokens, and its length.

    It takes all of the budget if little would be left.
    """
    wanted = 5 + int(draw.random() * 10)
    words: list[str] = []
    used = 0
    while used < budget - 1 and (len(words) < wanted or budget - used < 4):
        word, pieces = _word(budget - 1 - used, draw)
        used += pieces
        if used < budget - 2 and draw.random() < 0.06:
            word, used = word + ",", used + 1
        words.append(word)
    if not words:
        return _word(1, draw)  # a budget of one token holds a word and no full stop
    return " ".join(words).capitalize() + ".", used + 1


def _word(most: int, draw: random.Random) -> tuple[str, int]:
    """Return a word of at most ``most`` tokens, and its length.

    Common words are drawn more often (Zipf's law).
    """
    pieces = 1
    chance = draw.random()
    for pieces, share in PIECE_SHARES.items():
        if chance < share or pieces == min(most, len(PIECE_SHARES)):
            break
        chance -= share
    words, weights = _words(pieces)
    return words[min(bisect(weights, draw.random() * weights[-1]), len(words) - 1)], pieces


@cache
def _words(pieces: int) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The words of so many tokens, and the running sum of their weights."""
    words = tuple(json.loads(WORDS_FILE.read_text(encoding="utf-8"))[str(pieces)])
    return words, tuple(accumulate(1 / (rank + 3) for rank in range(len(words))))
