"""Reads the caller's arrays; refuses values that lose their meaning as plain real numbers.

Every function and class of this package that takes an array takes it through here. NumPy would give the values under a
mask, a sparse matrix as one object, complex numbers without their imaginary parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_embed.errors import InvalidInputError

__all__ = ["LARGEST_FLOAT32", "float32_array", "plain_array", "row_index", "without_mask"]

REAL = "fiub"
"""Kinds of dtype that are real numbers: floats, integers of both signs, booleans."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def plain_array(values: Any, name: str, *, kinds: str = REAL) -> npt.NDArray[Any]:
    """Return ``values`` as a plain NumPy array of a dtype of ``kinds``.

    It is copied only if it must be. A masked array without a masked value is taken as its data.

    Raises:
        InvalidInputError: masked values, a sparse matrix, rows of several lengths, or no numbers of these kinds.
    """
    if type(values) is not np.ndarray:
        values = without_mask(values, name)
        if hasattr(values, "toarray") and hasattr(values, "nnz"):
            raise InvalidInputError(f"{name} is sparse ({type(values).__name__}): pass {name} as values.toarray()")
        if isinstance(values, list | tuple):
            _check_elements(values, name)
        try:
            values = np.asarray(values)
        except MemoryError:
            raise
        except Exception as error:  # __array__ of another library may raise anything
            raise InvalidInputError(f"{name} cannot be read as an array: {error}") from None
    array: npt.NDArray[Any] = values
    if array.dtype.kind not in kinds and not (array.size == 0 and array.dtype == np.float64):
        raise InvalidInputError(
            f"{name} {_holds(array)}; it must hold {'real numbers' if 'f' in kinds else 'integers'}"
        )
    return array


def float32_array(values: Any, name: str) -> npt.NDArray[np.float32]:
    """Return ``values`` as float32, C-contiguous and aligned, copied only if it must be.

    Raises:
        InvalidInputError: as :func:`plain_array`, or a finite number is too large for float32.
    """
    if type(values) is np.ndarray and values.dtype == np.float32 and values.flags.c_contiguous and values.flags.aligned:
        return values
    array = plain_array(values, name)
    try:
        with np.errstate(over="raise", invalid="ignore"):  # a NaN may be a signalling one, of which some CPUs tell
            return np.require(array, np.float32, ["C", "A"])
    except FloatingPointError:
        magnitudes = np.abs(array[np.isfinite(array)])
        raise InvalidInputError(
            f"{name} holds a magnitude of {float(magnitudes.max()):g}; float32 ends at {LARGEST_FLOAT32:g}: scale it"
        ) from None


def without_mask(values: Any, name: str) -> Any:
    """Return ``values``, or the data of a masked array whose mask hides nothing.

    Raises:
        InvalidInputError: a value is masked.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    hidden = int(np.count_nonzero(np.ma.getmaskarray(values)))
    if hidden:
        raise InvalidInputError(
            f"{name} has {hidden:,} masked values, which have no place in a vector: leave those rows out "
            "(np.ma.compress_rows), or say what they are (filled)"
        )
    return np.ma.getdata(values)


def row_index(rows: Any, count: int) -> Any:
    """Return the selected ones of ``count`` rows.

    The selection is a slice, positions, or a mask of booleans as long as the rows.

    Raises:
        InvalidInputError: none of these, or a position out of range.
    """
    if isinstance(rows, slice):
        return rows
    index = plain_array(rows, "rows", kinds="iub")
    if index.ndim != 1:
        raise InvalidInputError(f"rows has shape {index.shape}; pass a slice, a vector of positions or a mask")
    if index.dtype == np.bool_:
        if len(index) != count:
            raise InvalidInputError(f"the mask has {len(index)} values for {count} rows")
        return index
    if index.size and not (-count <= int(index.min()) and int(index.max()) < count):
        wrong = int(index.min()) if int(index.min()) < -count else int(index.max())
        raise InvalidInputError(f"rows holds {wrong}; there are {count} rows, the first is 0")
    return index.astype(np.intp, copy=False)


def _check_elements(values: list[Any] | tuple[Any, ...], name: str) -> None:
    """Refuse masked and sparse elements of nested lists.

    NumPy would take the values under the mask. Types are collected first, so that a list of numbers is not walked in
    Python.
    """
    for kind in set(map(type, values)):
        if issubclass(kind, list | tuple):
            for each in values:
                if isinstance(each, list | tuple):
                    _check_elements(each, name)
        elif issubclass(kind, np.ma.MaskedArray):
            for each in values:
                without_mask(each, name)
        elif hasattr(kind, "toarray") and hasattr(kind, "nnz"):
            raise InvalidInputError(f"{name} holds sparse rows ({kind.__name__}): pass each as row.toarray()[0]")


def _holds(array: npt.NDArray[Any]) -> str:
    """What a wrong array holds, in words."""
    if array.dtype.kind == "O" and array.ndim == 0:
        return f"is {array.item()!r:.80}"
    if array.dtype.kind == "O" and array.size:
        return f"holds objects such as {array.flat[0]!r:.80}"
    return f"holds {array.dtype}"
