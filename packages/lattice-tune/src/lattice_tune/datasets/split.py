"""Splits by hash: an example's part depends on that example alone.

Other examples and their order have no effect.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate

import numpy as np

from lattice_tune.arguments import instance, real, text_of, whole
from lattice_tune.datasets.example import TrainingExample, checked_examples
from lattice_tune.errors import DatasetError, InvalidInputError, shown

__all__ = ["SplitRule", "checked_parts", "hash_position"]


@dataclass(frozen=True)
class SplitRule:
    """Which part an example belongs to.

    Each example has a position in [0, 1): a hash of the seed and its text (else its vector), or of its group's value. The
    parts lie on this line one after the other. So equal texts are in one part, a group is in one part, and a new example
    moves no old one.

    Attributes:
        parts: the share of each part, with the sum 1.
        seed: another seed gives another split.
        group: the metadata field whose values are kept together; None keeps equal texts together.
        bounds: for a stratified rule, where each part ends on the line, by label.

    >>> from lattice_tune import TrainingExample
    >>> rule = SplitRule({"train": 0.8, "test": 0.2}, seed=1)
    >>> [rule.part_of(TrainingExample(text=text)) for text in ("one", "two", "three", "four", "five")]
    ['test', 'train', 'train', 'train', 'train']
    """

    parts: dict[str, float]
    seed: int = 0
    group: str | None = None
    bounds: Mapping[str | None, tuple[float, ...]] | None = None
    _ends: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", checked_parts(self.parts))
        object.__setattr__(self, "_ends", tuple(accumulate(self.parts.values())))
        whole(self.seed, "seed", most=2**63 - 1)
        if self.group is not None:
            text_of(self.group, "group")
        if self.bounds is not None and not isinstance(self.bounds, Mapping):
            raise InvalidInputError(f"bounds is {shown(self.bounds)}; use SplitRule.stratified")

    def position(self, example: TrainingExample) -> float:
        """Return the example's place in [0, 1).

        Raises:
            DatasetError: its metadata lack the group's field, or its value is no text or number.
        """
        key = instance(example, "example", TrainingExample).key
        if self.group is not None:
            value = example.metadata.get(self.group)
            if not isinstance(value, (str, int, float)):
                raise DatasetError(f"the example {shown(example.text)} has no {shown(self.group)} in its metadata")
            key = f"{type(value).__name__}:{value}".encode()
        return hash_position(key, self.seed)

    def part_of(self, example: TrainingExample) -> str:
        """Return the name of the example's part."""
        position = self.position(example)
        ends = self._ends if self.bounds is None else self.bounds.get(example.hard_label, self._ends)
        for name, end in zip(self.parts, ends, strict=True):
            if position < end:
                return name
        return next(reversed(self.parts))  # shares may sum to a little less than 1

    def stratified(self, examples: Iterable[TrainingExample]) -> SplitRule:
        """Return a rule that splits each label's examples exactly, to within one per part.

        It depends on which examples there are, not on their order; a new example may move the one at a part's end. Takes
        8 bytes an example.

        Raises:
            InvalidInputError: the rule keeps groups together.
        """
        if self.group is not None:
            raise InvalidInputError("a split is stratified or by a group, not both: a group may have several labels")
        positions: dict[str | None, array[float]] = {}
        for example in checked_examples(examples, "examples"):
            positions.setdefault(example.hard_label, array("d")).append(self.position(example))
        bounds: dict[str | None, tuple[float, ...]] = {}
        for label in list(positions):
            ordered = np.sort(np.frombuffer(positions.pop(label)))
            ranks = [math.floor(share * ordered.size + 0.5) for share in self._ends]
            bounds[label] = tuple(1.0 if rank >= ordered.size else float(ordered[rank]) for rank in ranks)
        return SplitRule(self.parts, self.seed, None, bounds)


def hash_position(key: bytes, seed: int) -> float:
    """Return a number in [0, 1) that depends on ``key`` and ``seed`` alone."""
    digest = blake2b(key, digest_size=8, key=seed.to_bytes(8, "little"), person=b"lattice-split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def checked_parts(parts: object) -> dict[str, float]:
    """Return the shares of parts by name.

    Raises:
        InvalidInputError: fewer than two, or shares that are not above 0 with the sum 1.
    """
    if not isinstance(parts, Mapping) or len(parts) < 2:
        raise InvalidInputError(f"parts is {shown(parts)}; it must map at least two names to shares")
    found = {
        text_of(name, "the name of a part"): real(share, f"the share of {shown(name)}", "above 0", above=0, most=1)
        for name, share in parts.items()
    }
    if "" in found:
        raise InvalidInputError("the name of a part is empty")
    total = sum(found.values())
    if not abs(total - 1.0) <= 1e-9 * len(found) + 1e-12:
        raise InvalidInputError(f"the shares sum to {total:.10g}, not to 1")
    return found
