"""Checks arrays: real numbers of a known shape.

An error says what to do.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.errors import InvalidInputError, OutOfMemoryError

__all__ = ["as_numbers", "as_real", "large_matrix"]

_Array = npt.NDArray[Any]


def as_numbers(values: npt.ArrayLike, name: str) -> _Array:
    """Return ``values`` as an array of real numbers, in the dtype and shape that they have.

    Raises:
        InvalidInputError: a masked or sparse array, or one that does not hold real numbers.
    """
    if type(values) is np.ndarray and values.dtype.kind in "fiub":
        return values
    if _is_masked(values):
        raise InvalidInputError(
            f"{name} is a masked array, and the mask would be ignored; leave out the masked rows, for example with "
            "x[~np.ma.getmaskarray(x).any(axis=1)].data, or give a value to them with x.filled(value)"
        )
    if hasattr(values, "toarray") and not isinstance(values, np.ndarray):
        raise InvalidInputError(f"{name} is a sparse {type(values).__name__}; make it dense with .toarray()")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what NumPy warns of is refused below
            array = np.asarray(values)
    except Exception as error:  # an object may raise what it likes when it is made an array
        raise InvalidInputError(f"{name} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "fiub":
        remedy = {
            "O": "object, which is no type of numbers; convert it with x.astype(float) after removing what is no number",
            "c": f"{array.dtype}; take the real part with x.real if the rest does not count",
            "U": "strings; convert them with x.astype(float)",
            "S": "bytes; convert them with x.astype(float)",
        }.get(array.dtype.kind, str(array.dtype))
        raise InvalidInputError(f"{name} must hold real numbers; it holds {remedy}")
    return array


def _is_masked(values: object) -> bool:
    if isinstance(values, (list, tuple)):
        return any(_is_masked(part) for part in values if not isinstance(part, (int, float)))
    return isinstance(values, np.ma.MaskedArray)


def as_real(values: npt.ArrayLike, name: str, dimensions: int) -> _Array:
    """Return ``values`` as a C-contiguous float32 or float64 array.

    float32 stays and float16 becomes float32; all else becomes float64.

    Raises:
        InvalidInputError: not real numbers, or another number of dimensions.
    """
    array = as_numbers(values, name)
    if array.ndim != dimensions:
        plural = "" if dimensions == 1 else "s"
        remedy = {(1, 2): ": reshape(-1, 1) makes rows of one number", (2, 1): ": ravel() makes one row of numbers"}
        hint = remedy.get((array.ndim, dimensions), "")
        raise InvalidInputError(f"{name} has shape {array.shape}; it must have {dimensions} dimension{plural}{hint}")
    if array.dtype == np.float64 or array.dtype == np.float32:
        return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    with np.errstate(over="ignore"):  # of longer floats: infinity is refused by what follows
        return np.ascontiguousarray(array, np.float32 if array.dtype == np.float16 else np.float64)


def large_matrix(what: str, rows: int, columns: int, dtype: npt.DTypeLike = np.float64) -> _Array:
    """Return a matrix of zeros that grows with the product of two numbers of points.

    Raises:
        OutOfMemoryError: there is no memory for it.
    """
    try:
        return np.zeros((rows, columns), dtype)
    except (MemoryError, ValueError):  # a ValueError: more bytes than an address space has
        raise OutOfMemoryError(what, rows, columns) from None
