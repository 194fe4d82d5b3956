"""What a dataset holds, in numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from lattice_tune.datasets.example import TrainingExample

__all__ = ["DatasetStats", "dataset_stats"]


@dataclass(frozen=True)
class DatasetStats:
    """What a dataset holds.

    Attributes:
        count: examples.
        labels: how many examples have each hard label, most frequent first.
        unlabelled: examples without a label.
        soft: examples with probabilities.
        with_text, with_vector: examples that have one.
        dimension: of the vectors; None without any.
        characters: least, median, mean and most characters of a text; None without texts.
        duplicates: examples whose text (else vector) an earlier one has.
        conflicts: texts (else vectors) that occur with different hard labels.
        skipped: rows that were left out because something is wrong with them.
        skipped_errors: what was wrong with the first of them.
    """

    count: int
    labels: dict[str, int]
    unlabelled: int
    soft: int
    with_text: int
    with_vector: int
    dimension: int | None
    characters: dict[str, float] | None
    duplicates: int
    conflicts: int
    skipped: int = 0
    skipped_errors: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON has them."""
        return asdict(self)


def dataset_stats(examples: Iterable[TrainingExample]) -> DatasetStats:
    """Go over ``examples`` once; takes about 30 bytes an example.

    Texts are compared by 64 bits of a hash.
    """
    numbers: dict[str, int] = {}
    counts: list[int] = []
    digests, classes, lengths = array("Q"), array("l"), array("l")
    soft = with_text = with_vector = 0
    dimension = None
    for example in examples:
        label = example.hard_label
        number = -1
        if label is not None:
            number = numbers.setdefault(label, len(counts))
            if number == len(counts):
                counts.append(0)
            counts[number] += 1
        classes.append(number)
        digests.append(int.from_bytes(blake2b(example.key, digest_size=8).digest(), "little"))
        soft += example.labels is not None
        if example.text is not None:
            with_text += 1
            lengths.append(len(example.text))
        if example.vector is not None:
            with_vector += 1
            dimension = dimension or example.vector.size
    duplicates, conflicts = _repeated(np.frombuffer(digests, np.uint64), np.frombuffer(classes, np.dtype("l")))
    by_count = sorted(
        ((name, counts[number]) for name, number in numbers.items()), key=lambda item: (-item[1], item[0])
    )
    characters = None
    if lengths:
        sizes = np.frombuffer(lengths, np.dtype("l"))
        characters = {
            "least": float(sizes.min()),
            "median": float(np.median(sizes)),
            "mean": float(sizes.mean()),
            "most": float(sizes.max()),
        }
    return DatasetStats(
        count=len(classes),
        labels=dict(by_count),
        unlabelled=len(classes) - sum(counts),
        soft=soft,
        with_text=with_text,
        with_vector=with_vector,
        dimension=dimension,
        characters=characters,
        duplicates=duplicates,
        conflicts=conflicts,
    )


def _repeated(digests: Any, classes: Any) -> tuple[int, int]:
    """How many repeat an earlier one, and how many different ones have several labels."""
    if not digests.size:
        return 0, 0
    order = np.argsort(digests, kind="stable")
    ordered, labels = digests[order], classes[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    highest = np.maximum.reduceat(labels, starts)
    known = np.where(labels < 0, np.iinfo(labels.dtype).max, labels)
    lowest = np.minimum.reduceat(known, starts)
    return int(ordered.size - starts.size), int(((highest >= 0) & (lowest < highest)).sum())
