"""One example: a text or its vector, with a hard label or probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import instance, real, text_of
from lattice_tune.errors import InvalidInputError, shown

__all__ = ["SUM_TOLERANCE", "TrainingExample", "checked_examples"]

SUM_TOLERANCE = 1e-3
"""How far from 1 the sum of probabilities may be."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TrainingExample:
    """A text or its vector, or both, and what is known of its label.

    Attributes:
        text: the text, without NUL; None where only the vector is there.
        vector: (dimension,) finite numbers, kept as float32.
        label: the hard label.
        labels: probabilities by label: not negative, with the sum 1 to within 0.001. Beside a ``label``, they are a
            teacher's and the label is gold.
        weight: how much the example counts, at least 0.
        metadata: anything else by name, as JSON has it.

    Raises:
        InvalidInputError: neither text nor vector, or a value that breaks these rules.

    >>> example = TrainingExample(text="What is it?", label="question", weight=2.0)
    >>> example.text, example.label, example.weight
    ('What is it?', 'question', 2.0)
    """

    text: str | None = None
    vector: npt.NDArray[np.float32] | None = None
    label: str | None = None
    labels: Mapping[str, float] | None = None
    weight: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.text is None and self.vector is None:
            raise InvalidInputError("an example needs a text or a vector")
        if self.text is not None:
            text_of(self.text, "the text")
        if self.vector is not None:
            object.__setattr__(self, "vector", _vector(self.vector))
        if self.label is not None and not text_of(self.label, "the label"):
            raise InvalidInputError("the label is empty")
        if self.labels is not None:
            object.__setattr__(self, "labels", _probabilities(self.labels))
        if type(self.weight) is not float or not 0.0 <= self.weight < 1e30:
            object.__setattr__(self, "weight", real(self.weight, "the weight", "from 0 to 1e30", least=0, most=1e30))
        if not isinstance(self.metadata, Mapping):
            raise InvalidInputError(f"metadata is {shown(self.metadata)}; it must map names to values")

    @property
    def hard_label(self) -> str | None:
        """``label``, else the most probable of ``labels`` (of several, the first), else None."""
        if self.label is not None or self.labels is None:
            return self.label
        return max(self.labels, key=self.labels.__getitem__)

    @property
    def key(self) -> bytes:
        """What tells the example from others: its text, or the bytes of its vector."""
        if self.text is not None:
            return self.text.encode()
        assert self.vector is not None
        return b"\0" + self.vector.tobytes()


def checked_examples(values: object, name: str) -> Iterable[TrainingExample]:
    """Return what yields examples, each checked as it comes.

    Raises:
        InvalidInputError: it cannot be iterated; later, one is no example.
    """
    if isinstance(values, (str, bytes, Mapping, np.ndarray)) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{name} is {shown(values)}; it must be a dataset or a list of examples")
    return (instance(value, f"one of {name}", TrainingExample) for value in values)


def _vector(values: Any) -> npt.NDArray[np.float32]:
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidInputError("the vector is a masked array: fill it first")
    try:
        with np.errstate(over="ignore"):
            given = np.asarray(values)
            if given.dtype.kind not in "iuf":
                raise TypeError(f"it holds {given.dtype}")
            vector = np.array(given, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the vector must be numbers: {error}") from None
    if vector.ndim != 1 or not vector.size:
        raise InvalidInputError(f"the vector has shape {vector.shape}; it must have one dimension and a number in it")
    if not np.isfinite(vector).all():
        raise InvalidInputError(f"number {int(np.argmin(np.isfinite(vector)))} of the vector is not finite in float32")
    vector.setflags(write=False)
    return vector


def _probabilities(labels: Any) -> dict[str, float]:
    if not isinstance(labels, Mapping) or not labels:
        raise InvalidInputError(f"labels is {shown(labels)}; it must map labels to probabilities")
    found = {
        text_of(name, "a label"): real(value, f"the probability of {shown(name)}", "from 0 to 1", least=0, most=1.0001)
        for name, value in labels.items()
    }
    if "" in found:
        raise InvalidInputError("a label is empty")
    total = sum(found.values())
    if not abs(total - 1.0) <= SUM_TOLERANCE:
        raise InvalidInputError(f"the probabilities sum to {total:.6g}, not to 1: divide them by their sum")
    return found
