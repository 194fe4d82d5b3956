"""Exact and near duplicates of texts, in one dataset and between two.

Near duplicates: the Jaccard similarity of two texts is the share of common character 5-grams. Texts are compared
after NFKC and case folding, with runs of spaces as one. Candidates come from MinHash signatures in bands [Broder
1997; Leskovec et al. 2014, chapter 3] and are then compared exactly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import instance, real
from lattice_tune.datasets.example import TrainingExample, checked_examples

__all__ = ["Duplicate", "DuplicateFinder", "find_duplicates", "find_overlap"]

_GRAM = 5
_BANDS, _ROWS = 32, 4
_MOST_COMPARED = 16  # earlier texts of a bucket that a text is compared with
_CHUNK = 4096
LEAST_SIMILARITY = 0.6

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Duplicate:
    """An example that repeats an earlier one.

    Attributes:
        index: its place, from 0.
        original: the place of the earlier one, of the first of its kind.
        similarity: 1.0 for the same text, else the Jaccard similarity.
        conflicting: whether the two have different hard labels.
    """

    index: int
    original: int
    similarity: float
    conflicting: bool


class DuplicateFinder:
    """Tells of each example whether it repeats one that was kept. Not thread-safe.

    Args:
        near: the least similarity of near duplicates, from 0.6 to 1; None finds exact ones alone. Above 0.7, fewer than one
            pair in a thousand is missed; at 0.6, one in a hundred.
    """

    def __init__(self, near: float | None = None) -> None:
        least = LEAST_SIMILARITY
        self._near = None if near is None else real(near, "near", "from 0.6 to 1, or None", least=least, most=1.0)
        self._exact: dict[bytes, int] = {}
        self._labels: dict[int, str | None] = {}
        self._grams: dict[int, UInt64Array] = {}
        self._buckets: dict[tuple[int, bytes], list[int]] = {}
        draws = np.random.RandomState(0)
        size = (1, _BANDS * _ROWS)
        self._multipliers = draws.randint(0, 2**63, size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._offsets = draws.randint(0, 2**63, size, dtype=np.uint64)

    def find(self, index: int, example: TrainingExample, *, keep: bool = True) -> Duplicate | None:
        """Return what the example repeats, or None; it is then kept, for later ones, if ``keep``."""
        digest = blake2b(instance(example, "example", TrainingExample).key, digest_size=16).digest()
        original = self._exact.get(digest)
        if original is not None:
            return self._duplicate(index, original, 1.0, example)
        signature: list[tuple[int, bytes]] = []
        grams: UInt64Array | None = None
        if self._near is not None and example.text is not None:
            grams = _grams(example.text)
            signature = self._signature(grams)
            best, best_similarity = None, 0.0
            for candidate in self._candidates(signature):
                similarity = _jaccard(grams, self._grams[candidate])
                if similarity >= self._near and similarity > best_similarity:
                    best, best_similarity = candidate, similarity
            if best is not None:
                return self._duplicate(index, best, best_similarity, example)
        if keep:
            self._exact[digest] = index
            self._labels[index] = example.hard_label
            if grams is not None:
                self._grams[index] = grams
                for band in signature:
                    self._buckets.setdefault(band, []).append(index)
        return None

    def _duplicate(self, index: int, original: int, similarity: float, example: TrainingExample) -> Duplicate:
        label, other = example.hard_label, self._labels[original]
        return Duplicate(index, original, similarity, label is not None and other is not None and label != other)

    def _signature(self, grams: UInt64Array) -> list[tuple[int, bytes]]:
        lowest = np.full(_BANDS * _ROWS, 2**32 - 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for start in range(0, grams.size, _CHUNK):
                hashed = (grams[start : start + _CHUNK, None] * self._multipliers + self._offsets) >> np.uint64(32)
                np.minimum(lowest, hashed.min(axis=0), out=lowest)
        rows = lowest.astype(np.uint32).reshape(_BANDS, _ROWS)
        return [(band, row.tobytes()) for band, row in enumerate(rows)]

    def _candidates(self, signature: list[tuple[int, bytes]]) -> list[int]:
        found: dict[int, None] = {}
        for band in signature:
            found.update(dict.fromkeys(self._buckets.get(band, [])[:_MOST_COMPARED]))
        return list(found)


def find_duplicates(examples: Iterable[TrainingExample], *, near: float | None = None) -> Iterator[Duplicate]:
    """Yield the examples that repeat an earlier one; ``near`` as for :class:`DuplicateFinder`."""
    finder = DuplicateFinder(near)
    for index, example in enumerate(checked_examples(examples, "examples")):
        found = finder.find(index, example)
        if found is not None:
            yield found


def find_overlap(
    first: Iterable[TrainingExample], second: Iterable[TrainingExample], *, near: float | None = None
) -> Iterator[Duplicate]:
    """Yield the examples of ``second`` that repeat one of ``first``.

    ``original`` is an index in ``first``.
    """
    finder = DuplicateFinder(near)
    for index, example in enumerate(checked_examples(first, "first")):
        finder.find(index, example)
    for index, example in enumerate(checked_examples(second, "second")):
        found = finder.find(index, example, keep=False)
        if found is not None:
            yield found


def _grams(text: str) -> UInt64Array:
    """The hashes of a text's 5-grams, each once, in order."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    letters = np.frombuffer(folded.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    if letters.size < _GRAM:
        letters = np.concatenate([letters, np.zeros(_GRAM - letters.size, dtype=np.uint64)])
    windows = np.lib.stride_tricks.sliding_window_view(letters, _GRAM)
    hashed = np.zeros(len(windows), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(_GRAM):
            hashed = (hashed ^ windows[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            hashed ^= hashed >> np.uint64(29)
    return np.unique(hashed)


def _jaccard(first: UInt64Array, second: UInt64Array) -> float:
    shared = np.intersect1d(first, second, assume_unique=True).size
    return float(shared / (first.size + second.size - shared))
