"""Label sets: which classes there are, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import listed, real, text_of
from lattice_tune.errors import InvalidInputError, shown

__all__ = ["MOST_LABELS", "IntentLabels", "LabelSet"]

MOST_LABELS = 65_536


class LabelSet:
    """Class names in order.

    Immutable; equal to another with the same names in the same order.

    Args:
        names: at least one, all different, not empty.

    >>> labels = LabelSet(["question", "answer"])
    >>> labels.index("answer"), labels.row({"question": 0.25, "answer": 0.75}).tolist()
    (1, [0.25, 0.75])
    """

    def __init__(self, names: Iterable[str]) -> None:
        given = tuple(text_of(name, "a label") for name in listed(names, "names", "texts"))
        if not given:
            raise InvalidInputError("a label set needs at least one label")
        if len(given) > MOST_LABELS:
            raise InvalidInputError(f"{len(given):,} labels; the most is {MOST_LABELS:,}")
        if "" in given:
            raise InvalidInputError("a label is empty")
        self._index = {name: index for index, name in enumerate(given)}
        if len(self._index) < len(given):
            twice = next(name for index, name in enumerate(given) if self._index[name] != index)
            raise InvalidInputError(f"the label {shown(twice)} is given twice")
        self._names = given

    @property
    def names(self) -> tuple[str, ...]:
        """The labels in their order."""
        return self._names

    def index(self, label: str) -> int:
        """Return the position of ``label``.

        Raises:
            InvalidInputError: it is none of the set.
        """
        found = self._index.get(label) if isinstance(label, str) else None
        if found is None:
            known = ", ".join(self._names[:10]) + (", ..." if len(self._names) > 10 else "")
            raise InvalidInputError(f"the label {shown(label)} is not one of {known}")
        return found

    def row(self, labels: Mapping[str, float]) -> npt.NDArray[np.float32]:
        """Return probabilities by label as a row, (labels,); labels that are not named have 0.

        Raises:
            InvalidInputError: a label is none of the set, or a value is no probability.
        """
        if not isinstance(labels, Mapping):
            raise InvalidInputError(f"labels is {shown(labels)}; it must map labels to probabilities")
        row = np.zeros(len(self._names), dtype=np.float32)
        for name, value in labels.items():
            row[self.index(name)] = real(value, f"the probability of {shown(name)}", "from 0 to 1", least=0, most=1.001)
        return row

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, label: object) -> bool:
        return label in self._index if isinstance(label, str) else False

    def __eq__(self, other: object) -> bool:
        return self._names == other._names if isinstance(other, LabelSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return f"LabelSet({list(self._names)!r})"


class IntentLabels(LabelSet):
    """The six intents of a message in a conversation, in the reference's order."""

    def __init__(self) -> None:
        super().__init__(
            ("continuation", "topic_shift", "explicit_query", "person_lookup", "health_check", "task_status")
        )
