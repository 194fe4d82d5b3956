"""Teachers: functions from texts to probabilities over a label set, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import instance, listed
from lattice_tune.datasets.dataset import Dataset
from lattice_tune.datasets.example import SUM_TOLERANCE
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.errors import InvalidInputError, TeacherAnswerError, shown

__all__ = ["Answer", "RecordedTeacher", "Teacher", "ask_teacher"]

Answer = Mapping[str, float] | Sequence[float] | str | None
"""Probabilities by label, or in the label set's order; a label alone; None where the teacher has no answer."""


@runtime_checkable
class Teacher(Protocol):
    """Anything that labels texts: a function will do.

    An attribute ``fingerprint`` is a text that changes when the answers would. A teacher with it is not called again
    for texts that it has labelled; one without is called at each run.
    """

    def __call__(self, texts: Sequence[str], /) -> Iterable[Answer]:
        """Return an answer for each text, in order."""


class RecordedTeacher:
    """Answers with the labels of a dataset, by text: labels that are already there.

    Args:
        dataset: its examples have texts and labels; of a text that occurs again, the first counts.

    Attributes:
        fingerprint: a digest of the dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        data = instance(dataset, "dataset", Dataset).load()
        self._answers: dict[str, Answer] = {}
        for example in data:
            if example.text is not None and (example.labels or example.label):
                self._answers.setdefault(example.text, example.labels or example.label)
        if not self._answers:
            raise InvalidInputError("no example of the dataset has both a text and a label")
        self.fingerprint: str = f"recorded:{data.digest()}"

    def __call__(self, texts: Sequence[str], /) -> list[Answer]:
        """Return the recorded labels, None for texts without."""
        return [self._answers.get(text) for text in listed(texts, "texts", "texts")]


def ask_teacher(
    teacher: Teacher,
    texts: Sequence[str],
    labels: LabelSet,
    *,
    batch: int,
    progress: Callable[[int, int], object] | None = None,
) -> npt.NDArray[np.float32]:
    """Return a teacher's probabilities, (texts, labels).

    NaN in the rows of texts without an answer.

    Raises:
        TeacherAnswerError: another number of answers than texts, a label that is none of ``labels``, no distribution.
    """
    rows = np.full((len(texts), len(labels)), np.nan, dtype=np.float32)
    for start in range(0, len(texts), batch):
        asked = list(texts[start : start + batch])
        given = teacher(asked)
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            raise TeacherAnswerError(f"the teacher returned {shown(given)}; an answer for each text is needed")
        answers = list(given)
        if len(answers) != len(asked):
            raise TeacherAnswerError(f"the teacher returned {len(answers)} answers for {len(asked)} texts")
        for index, answer in enumerate(answers, start):
            if answer is not None:
                rows[index] = _row(answer, labels, index)
        if progress is not None:
            progress(start + len(asked), len(texts))
    return rows


def _row(answer: Answer, labels: LabelSet, index: int) -> npt.NDArray[np.float32]:
    try:
        if isinstance(answer, str):
            return labels.row({answer: 1.0})
        row = labels.row(answer) if isinstance(answer, Mapping) else np.asarray(answer, dtype=np.float32)
    except (InvalidInputError, TypeError, ValueError, OverflowError) as error:
        raise TeacherAnswerError(f"the teacher's answer to text {index}: {error}") from None
    if row.shape != (len(labels),):
        raise TeacherAnswerError(
            f"the teacher's answer to text {index} has shape {row.shape}; there are {len(labels)} labels"
        )
    if not (row >= 0).all() or not abs(float(row.sum()) - 1.0) <= SUM_TOLERANCE:
        raise TeacherAnswerError(
            f"the teacher's answer to text {index} is no distribution, at least 0 with the sum 1: {shown(row.tolist())}"
        )
    return row
