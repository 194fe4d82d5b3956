"""Targets of distillation: a teacher's probabilities and hard labels in one row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_fann.arguments import real
from lattice_fann.arrays import number_array
from lattice_fann.errors import InvalidInputError, SizeMismatchError
from lattice_fann.layer import Float32Array

__all__ = ["mixed_targets"]


def mixed_targets(
    soft: npt.ArrayLike, hard: npt.ArrayLike | None = None, *, temperature: float, hard_share: float
) -> Float32Array:
    """Return targets for ``Loss.DISTILLATION``, (samples, classes).

    Args:
        soft: (samples, classes) a teacher's probabilities at ``temperature``.
        hard: (samples,) classes, or (samples, classes) distributions; None takes each row's most probable class.
        temperature, hard_share: as in the :class:`TrainingConfig` that trains on them.

    Raises:
        SizeMismatchError: shapes that do not fit each other.
        InvalidInputError: rows that are no distributions, classes that are none.
    """
    heat = real(temperature, "temperature", "above 0", above=0)
    share = real(hard_share, "hard_share", "from 0 to 1", least=0, most=1)
    rows = number_array(soft, "soft").astype(np.float64)
    if rows.ndim != 2:
        raise SizeMismatchError(f"soft must have shape (samples, classes), not {rows.shape}")
    _check_rows(rows, "soft")
    given = rows.argmax(axis=1) if hard is None else number_array(hard, "hard")
    if given.ndim == 1 and given.dtype.kind in "iu":
        if given.shape != rows.shape[:1]:
            raise SizeMismatchError(f"there are {rows.shape[0]} rows of soft and {given.size} of hard")
        if given.size and not (given.min() >= 0 and given.max() < rows.shape[1]):
            raise InvalidInputError(
                f"classes of hard must be from 0 to {rows.shape[1] - 1}; they go from {given.min()} to {given.max()}"
            )
        one_hot = np.zeros(rows.shape)
        one_hot[np.arange(given.size), given] = 1.0
        given = one_hot
    if given.shape != rows.shape:
        raise SizeMismatchError(f"hard must have shape {rows.shape[:1]} or {rows.shape}, not {given.shape}")
    _check_rows(given, "hard")
    return ((1.0 - share) * heat * rows + share * given).astype(np.float32)


def _check_rows(rows: npt.NDArray[np.float64], name: str) -> None:
    good = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) <= 1e-3)
    if not good.all():
        row = int(np.argmin(good))
        raise InvalidInputError(f"row {row} of {name} is no distribution: its values must be at least 0 and sum to 1")
