"""Labels of a classifier: one per sample, of a finite set.

Other kinds of targets are refused by name.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.arrays import plain_array
from lattice_fann.errors import InvalidInputError, SizeMismatchError

__all__ = ["distinct", "indicators_of", "labels_of", "positions"]

Labels = npt.NDArray[Any]


def labels_of(y: npt.ArrayLike, samples: int | None = None, name: str = "y") -> Labels:
    """Return ``y`` as (samples,) labels; ``samples`` None takes any number but 0.

    Raises:
        SizeMismatchError: another number of labels, or several a sample.
        InvalidInputError: numbers that are not whole, values that are not finite, complex numbers, records.
    """
    labels = plain_array(y, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        raise SizeMismatchError(
            f"{name} has shape {labels.shape}: one label a sample is needed. "
            "For one-hot rows pass y.argmax(axis=1); several labels a sample are rows of 0 and 1"
        )
    if labels.ndim != 1 or not labels.size or (samples is not None and labels.size != samples):
        wanted = "(labels,)" if samples is None else f"({samples},)"
        raise SizeMismatchError(f"{name} must have one label a sample, shape {wanted}, not {labels.shape}")
    kind = labels.dtype.kind
    if kind in "cV":
        raise InvalidInputError(f"Unknown label type: {labels.dtype}; labels are numbers, texts, booleans or dates")
    if kind in "Mm" and np.isnat(labels).any():
        raise InvalidInputError(f"label {int(np.argmax(np.isnat(labels)))} of {name} is not a date (NaT)")
    if kind == "f":
        _check_numbers(labels, name)
    if kind == "O":
        for element in labels:
            if element is None or isinstance(element, (complex, np.ndarray)):
                raise InvalidInputError(f"Unknown label type: {name} holds a label of type {type(element).__name__}")
            if isinstance(element, numbers.Real) and not isinstance(element, numbers.Integral):
                _check_numbers(np.array([float(element)]), name)
    return labels


def indicators_of(y: npt.ArrayLike, samples: int) -> npt.NDArray[np.int64] | None:
    """Return ``y`` as (samples, labels) of 0 and 1, or None.

    It is None where ``y`` does not say which labels each sample has.

    Raises:
        SizeMismatchError: another number of rows.
        InvalidInputError: rows of numbers that hold something else than 0 and 1.
    """
    rows = plain_array(y, "y")
    if rows.ndim != 2 or rows.shape[1] < 2 or rows.dtype.kind not in "biuf":
        return None
    if len(rows) != samples:
        raise SizeMismatchError(f"y has {len(rows)} rows for {samples} samples")
    wrong = (rows != 0) & (rows != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InvalidInputError(
            f"Unknown label type: y has shape {rows.shape} and holds {rows[row, column]} in row {row}; several labels a "
            "sample are rows of 0 and 1"
        )
    return rows.astype(np.int64)


def _check_numbers(labels: Labels, name: str) -> None:
    finite = np.isfinite(labels)
    if not finite.all():
        raise InvalidInputError(f"label {int(np.argmin(finite))} of {name} is not finite")
    whole = labels == np.trunc(labels)
    if not whole.all():
        raise InvalidInputError(
            f"Unknown label type: continuous. {name} holds {labels[np.argmin(whole)]}, and classes are texts or whole "
            "numbers: take MLPRegressor for numbers to predict, or put them into classes with numpy.digitize"
        )


def distinct(labels: Labels) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Return the different labels, sorted, and the position of each label among them.

    Raises:
        InvalidInputError: they cannot be sorted.
    """
    try:
        classes, which = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InvalidInputError(f"the labels cannot be sorted: {error}") from None
    return classes, which.astype(np.int64).reshape(-1)


def positions(labels: Labels, classes: Labels) -> npt.NDArray[np.int64]:
    """Return the position of each label among sorted ``classes``; -1 for one that is not there.

    Raises:
        InvalidInputError: labels and classes are of kinds that have no order among them, such as texts and numbers.
    """
    if _family(labels) != _family(classes):
        raise InvalidInputError(f"the labels are of type {labels.dtype}, the classes of type {classes.dtype}")
    try:
        found = np.clip(np.searchsorted(classes, labels), 0, classes.size - 1).astype(np.int64)
        return np.where(classes[found] == labels, found, -1)
    except TypeError as error:
        raise InvalidInputError(f"the labels cannot be compared with the classes: {error}") from None


def _family(labels: Labels) -> str:
    """One letter for kinds whose values can equal each other."""
    kind = labels.dtype.kind
    if kind == "O":
        return "U" if all(isinstance(label, str) for label in labels) else "O"
    return "n" if kind in "biuf" else "U" if kind == "T" else kind
