"""Weights as whole numbers of units, in which the flows of the exact solver are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["Units", "common_units", "rounded_units"]

_Float64 = npt.NDArray[np.float64]
_Int64 = npt.NDArray[np.int64]
Units = tuple[_Int64, _Int64, int]
"""Supply, demand, and their sum."""

_MOST_UNITS = 1 << 52


def rounded_units(a: _Float64, b: _Float64) -> Units:
    """Return weights of equal mass in about 2^52 units, none 0.

    The largest weight takes the rounding. Equal weights are whole numbers of units on both sides.
    """
    pairs = len(a) * len(b)
    total = _MOST_UNITS // pairs * pairs
    return _rounded(a, total), _rounded(b, total), total


def _rounded(weights: _Float64, total: int) -> _Int64:
    units: _Int64 = np.maximum(np.rint(weights * (total / weights.sum())), 1.0).astype(np.int64)
    units[np.argmax(units)] += total - int(units.sum())
    return units


def common_units(a: _Float64, b: _Float64, *, single: bool) -> Units | None:
    """Return weights as exact multiples of one unit, or None if there is no such unit.

    Weights like 3/7 are rounded in floating point. Sums of some sources and targets that should be equal then differ
    by a last bit. So a bit of mass has to go where no mass should.

    Args:
        a, b: positive weights of equal mass.
        single: whether the weights were rounded to float32.
    """
    whole = _whole(a), _whole(b)
    if whole[0] is not None and whole[1] is not None and whole[0].sum() == whole[1].sum():
        return whole[0], whole[1], int(whole[0].sum())
    shares = np.concatenate([a / a.sum(), b / b.sum()])
    # a larger denominator would fit any number
    most, tolerance = (1 << 9, 4.0 * float(np.finfo(np.float32).eps)) if single else (1 << 22, 2.0**-49)
    denominator = 1
    while denominator <= most:
        scaled = shares * denominator
        nearest = np.maximum(np.rint(scaled), 1.0)
        off = np.abs(scaled - nearest) > tolerance * nearest
        if not off.any():
            units = nearest.astype(np.int64)
            supply, demand = units[: len(a)], units[len(a) :]
            exact = int(supply.sum()) == int(demand.sum()) == denominator
            return (supply, demand, denominator) if exact else None
        value = float(scaled[np.argmax(off)])
        step = Fraction(value).limit_denominator(most).denominator
        if step == 1:
            return None
        denominator *= step
    return None


def _whole(weights: _Float64) -> _Int64 | None:
    if not (float(weights.sum()) < _MOST_UNITS and np.array_equal(weights, np.rint(weights))):
        return None
    return weights.astype(np.int64)
