"""A teacher's answer to a text: probabilities of the labels, or a named outcome."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lattice_tune.errors import InvalidInputError, shown
from lattice_tune.teachers.task import LabelingTask

__all__ = ["Outcome", "TeacherAnswer", "read_distribution", "read_label", "to_task"]

SUM_TOLERANCE = 0.02
"""How far from 1 the probabilities of a teacher may add up; within it they are scaled to 1."""


class Outcome(enum.StrEnum):
    """What came of asking for a text's label. Only ``LABELLED`` is kept in a store."""

    LABELLED = "labelled"
    REFUSED = "refused"
    CUT_OFF = "cut off"
    UNKNOWN_LABEL = "unknown label"
    WRONG_SUM = "wrong sum"
    MALFORMED = "malformed"
    FAILED = "failed"
    NOT_ASKED = "not asked"


MOST_DETAIL = 500
"""Characters of what is wrong."""


@dataclass(frozen=True)
class TeacherAnswer:
    """A teacher's answer to one text.

    Attributes:
        outcome: whether it is a label.
        probabilities: of each label, in the order of the task's labels, adding up to 1; empty for all other outcomes.
        detail: what is wrong, for all other outcomes; one line without control characters, whatever a server has sent.
        input_tokens: tokens that the server says it read, or ``None``.
        output_tokens: tokens that the server says it wrote, or ``None``.
        cut_characters: characters at the text's end that the teacher has not seen.
    """

    outcome: Outcome
    probabilities: tuple[float, ...] = ()
    detail: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cut_characters: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", _one_line(self.detail))


def read_label(given: object, task: LabelingTask) -> TeacherAnswer:
    """Return the answer that names one label."""
    index = task.index_of(given) if isinstance(given, str) else None
    if index is None:
        return TeacherAnswer(Outcome.UNKNOWN_LABEL, detail=f"{shown(given)} is none of the {len(task.labels)} labels")
    return TeacherAnswer(Outcome.LABELLED, tuple(float(number == index) for number in range(len(task.labels))))


def read_distribution(given: object, task: LabelingTask) -> TeacherAnswer:
    """Return the answer that gives probabilities by label. A label that is left out has none."""
    if not isinstance(given, Mapping):
        return TeacherAnswer(Outcome.MALFORMED, detail=f"{shown(given)} gives no probabilities by label")
    values: dict[int, float] = {}
    for name, value in given.items():
        index = task.index_of(name) if isinstance(name, str) else None
        if index is None:
            return TeacherAnswer(
                Outcome.UNKNOWN_LABEL, detail=f"{shown(name)} is none of the {len(task.labels)} labels"
            )
        if index in values:
            return TeacherAnswer(Outcome.MALFORMED, detail=f"{shown(name)} has two probabilities")
        number = _probability(value)
        if number is None:
            return TeacherAnswer(Outcome.MALFORMED, detail=f"{shown(name)} has the probability {shown(value)}")
        values[index] = number
    return _distribution([values.get(index, 0.0) for index in range(len(task.labels))])


def to_task(given: object, task: LabelingTask) -> TeacherAnswer:
    """Return the answer that a function gave: a label, or probabilities by label or in order."""
    if isinstance(given, str):
        return read_label(given, task)
    if isinstance(given, Mapping):
        return of_kind(read_distribution(given, task), task)
    try:
        numbers = [_probability(value) for value in given]  # type: ignore[attr-defined]
    except TypeError:
        numbers = []
    if len(numbers) != len(task.labels) or None in numbers:
        wanted = f"a label, a mapping of labels to probabilities, or {len(task.labels)} probabilities"
        return TeacherAnswer(Outcome.MALFORMED, detail=f"{shown(given)} is not {wanted}")
    return of_kind(_distribution([number for number in numbers if number is not None]), task)


def of_kind(answer: TeacherAnswer, task: LabelingTask) -> TeacherAnswer:
    """Return an answer of the task's kind: a hard one has all on its most probable label."""
    if answer.outcome is not Outcome.LABELLED or task.kind == "soft":
        return answer
    best = int(np.argmax(answer.probabilities))
    return TeacherAnswer(
        Outcome.LABELLED,
        tuple(float(index == best) for index in range(len(task.labels))),
        cut_characters=answer.cut_characters,
    )


def softmax(scores: Sequence[float] | Any) -> tuple[float, ...]:
    """Return probabilities that are proportional to the exponentials of ``scores``.

    Raises:
        InvalidInputError: a score is NaN or infinite.
    """
    values = np.asarray(scores, np.float64)
    if not np.isfinite(values).all():
        raise InvalidInputError("a score is NaN or infinite: the model cannot tell the labels apart")
    weights = np.exp(values - values.max())
    return tuple(float(value) for value in weights / weights.sum())


def _distribution(values: list[float]) -> TeacherAnswer:
    total = sum(values)
    if not abs(total - 1.0) <= SUM_TOLERANCE:
        return TeacherAnswer(Outcome.WRONG_SUM, detail=f"the probabilities add up to {total:.4g}, not to 1")
    return TeacherAnswer(Outcome.LABELLED, tuple(value / total for value in values))


def _one_line(words: str) -> str:
    line = "".join(character if character.isprintable() else "?" for character in " ".join(words.split()))
    return line if len(line) <= MOST_DETAIL else f"{line[:MOST_DETAIL]}..."


def _probability(value: Any) -> float | None:
    """Return a number from 0 to 1, or ``None`` for anything else; a bool is no number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) if 0.0 <= value <= 1.0 else None
