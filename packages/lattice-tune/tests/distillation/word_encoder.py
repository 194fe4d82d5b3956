"""An encoder for tests: each word has a random vector drawn from its hash, a text their normalised sum."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from lattice_tune import Dataset, TrainingExample

__all__ = ["LABELS", "WordEncoder", "questions"]

LABELS = ("number", "person", "place")
_WORDS = {
    "number": ["many", "much", "count", "sum", "percent"],
    "person": ["who", "wrote", "inventor", "actor", "president"],
    "place": ["where", "city", "country", "river", "located"],
}
_FILLERS = [
    "the",
    "of",
    "a",
    "is",
    "in",
    "was",
    "did",
    "first",
    "old",
    "new",
    "world",
    "film",
    "year",
    "water",
    "house",
]


@cache
def _word_vector(word: str, dimension: int) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")
    return np.random.RandomState(seed).standard_normal(dimension)


class WordEncoder:
    """Counts its calls and the texts that it was given."""

    def __init__(self, *, fingerprint: str = "words-1", dimension: int = 32) -> None:
        self.fingerprint, self.dimension = fingerprint, dimension
        self.calls = self.texts = 0

    def encode(self, texts: Sequence[str], *, prompt: str = "") -> SimpleNamespace:
        self.calls += 1
        self.texts += len(texts)
        rows = []
        for text in texts:
            total = np.zeros(self.dimension)
            for word in (prompt + text).lower().split():
                total += _word_vector(f"{self.fingerprint}{word}", self.dimension)
            rows.append(total / max(float(np.linalg.norm(total)), 1e-9))
        return SimpleNamespace(vectors=np.array(rows, np.float32).reshape(len(texts), self.dimension))


def questions(count: int, seed: int = 0) -> Dataset:
    """Return texts of eight words, two of which tell the label."""
    draws = np.random.RandomState(seed)
    examples = []
    for _ in range(count):
        label = LABELS[draws.randint(3)]
        words = [*draws.choice(_WORDS[label], 2), *draws.choice(_FILLERS, 6)]
        examples.append(TrainingExample(text=" ".join(draws.permutation(words)), label=label))
    return Dataset(examples)
