"""How good probabilities are: against a teacher, or against gold labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import instance, listed, number_rows, plain_numbers, whole
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.errors import InvalidInputError

__all__ = ["Deferral", "Evaluation", "LabelScores", "WorstExample", "deferral_table", "evaluate"]

_TINY = float(np.finfo(np.float32).tiny)
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class LabelScores:
    """Precision, recall and their harmonic mean for one label; 0 where nothing can be divided."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class WorstExample:
    """An example whose expected label has a low probability."""

    index: int
    text: str | None
    expected: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class Evaluation:
    """How good probabilities are.

    Attributes:
        count: examples.
        accuracy: part whose most probable label is the expected one; against a teacher, the agreement.
        macro_f1: mean F1 over the labels that are expected or predicted.
        log_loss: mean negative logarithm of the expected label's probability, in nats.
        expected_calibration_error: mean distance of confidence and accuracy over ``bins`` equal bins of confidence.
        labels: the label set's names.
        confusion: (labels, labels) counts, expected by row, predicted by column.
        by_label: scores of each label.
        worst: the examples whose expected label has the lowest probability.
    """

    count: int
    accuracy: float
    macro_f1: float
    log_loss: float
    expected_calibration_error: float
    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    by_label: dict[str, LabelScores]
    worst: tuple[WorstExample, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Deferral:
    """What passing examples of low confidence back to the teacher would do.

    Attributes:
        threshold: examples with a lower confidence are passed back.
        passed_back: their part.
        accuracy_kept: accuracy on the others; None if there are none.
        accuracy_passed_back: the student's accuracy on those passed back; None if there are none.
    """

    threshold: float
    passed_back: float
    accuracy_kept: float | None
    accuracy_passed_back: float | None


def evaluate(
    probabilities: npt.ArrayLike,
    expected: npt.ArrayLike,
    labels: LabelSet,
    *,
    texts: Sequence[str | None] | None = None,
    worst: int = 10,
    bins: int = 15,
) -> Evaluation:
    """Compare probabilities with expected labels.

    Args:
        probabilities: (examples, labels).
        expected: (examples,) classes, or (examples, labels) whose largest value is the expected label.
        labels: their names.
        texts: shown with the worst examples.
        worst: how many of these.
        bins: of the calibration error.

    Raises:
        InvalidInputError: no examples, or arrays that do not fit each other.
    """
    given, classes = _checked(probabilities, expected, instance(labels, "labels", LabelSet))
    names = labels.names
    shown_texts = [None] * len(given) if texts is None else listed(texts, "texts", "texts")
    if len(shown_texts) != len(given):
        raise InvalidInputError(f"there are {len(given)} examples and {len(shown_texts)} texts")
    predicted = given.argmax(axis=1)
    of_expected = given[np.arange(len(given)), classes]
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(confusion, (classes, predicted), 1)
    by_label, scores = {}, []
    for number, name in enumerate(names):
        right, wanted, found = (
            int(n) for n in (confusion[number, number], confusion[number].sum(), confusion[:, number].sum())
        )
        f1 = 2.0 * right / (wanted + found) if wanted + found else 0.0
        by_label[name] = LabelScores(right / found if found else 0.0, right / wanted if wanted else 0.0, f1, wanted)
        if wanted + found:
            scores.append(f1)
    order = np.argsort(of_expected, kind="stable")[: whole(worst, "worst", most=1_000_000)]
    return Evaluation(
        count=len(given),
        accuracy=float((predicted == classes).mean()),
        macro_f1=float(np.mean(scores)),
        log_loss=abs(float(np.log(np.maximum(of_expected.astype(np.float64), _TINY)).mean())),
        expected_calibration_error=_calibration_error(
            given.max(axis=1), predicted == classes, whole(bins, "bins", least=1, most=10_000)
        ),
        labels=names,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        by_label=by_label,
        worst=tuple(
            WorstExample(
                int(index),
                shown_texts[index],
                names[classes[index]],
                names[predicted[index]],
                float(of_expected[index]),
            )
            for index in order
        ),
    )


def deferral_table(
    probabilities: npt.ArrayLike, expected: npt.ArrayLike, labels: LabelSet, *, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[Deferral, ...]:
    """Return what passing back below each threshold would do; arguments as for :func:`evaluate`."""
    given, classes = _checked(probabilities, expected, instance(labels, "labels", LabelSet))
    right, confidence = given.argmax(axis=1) == classes, given.max(axis=1)
    rows = []
    for threshold in number_rows([listed(thresholds, "thresholds", "numbers")], "thresholds")[0]:
        low = confidence < threshold
        rows.append(
            Deferral(
                round(float(threshold), 6),
                float(low.mean()),
                None if low.all() else float(right[~low].mean()),
                float(right[low].mean()) if low.any() else None,
            )
        )
    return tuple(rows)


def _checked(
    probabilities: npt.ArrayLike, expected: npt.ArrayLike, labels: LabelSet
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    given = number_rows(probabilities, "probabilities")
    if not len(given) or given.shape[1] != len(labels):
        raise InvalidInputError(f"probabilities have shape {given.shape}; examples and {len(labels)} labels are needed")
    if (given < 0).any() or not (np.abs(given.sum(axis=1) - 1) <= 1e-3).all():
        raise InvalidInputError("a row of probabilities is no distribution: at least 0 with the sum 1 is needed")
    classes = plain_numbers(expected, "expected")
    if classes.ndim == 2:
        rows = number_rows(expected, "expected")
        if rows.shape != given.shape:
            raise InvalidInputError(f"expected has shape {rows.shape}, probabilities {given.shape}")
        return given, rows.argmax(axis=1).astype(np.int64)
    if classes.shape != (len(given),) or classes.dtype.kind not in "iu":
        raise InvalidInputError(f"expected must be {len(given)} classes, or rows like those of probabilities")
    if not (classes.min() >= 0 and classes.max() < len(labels)):
        raise InvalidInputError(f"classes of expected must be from 0 to {len(labels) - 1}")
    return given, classes.astype(np.int64)


def _calibration_error(confidence: npt.NDArray[np.float32], right: npt.NDArray[np.bool_], bins: int) -> float:
    places = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    counts = np.bincount(places, minlength=bins)
    means = np.bincount(places, confidence, bins) - np.bincount(places, right, bins)
    return float(np.abs(means).sum() / max(1, counts.sum()))
