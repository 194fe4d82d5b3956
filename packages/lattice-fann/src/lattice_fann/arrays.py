"""Arrays as callers give them: read as numbers, or refused with what to do instead.

Every function that takes an array reads it here. A conversion that drops something without a word (a mask, an imaginary
part) is never made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.errors import FannError, InvalidInputError, NotNumbersError

__all__ = ["float32_of", "lost_in_float32", "number_array", "plain_array"]

_FEWEST_STEPS = 16  # of float32, between the least and the greatest value of a column
_SMALLEST = 1e-37  # below, float32 has fewer digits, and no scale makes 1 of a deviation

_DEEPEST_LIST = 64  # NumPy's most dimensions

_WHAT_TO_DO = {
    "c": "complex numbers. Complex data not supported: pass the real part, {name}.real, if it is meant",
    "U": "texts: convert them to numbers first",
    "T": "texts: convert them to numbers first",
    "S": "bytes: convert them to numbers first",
    "M": "dates: convert them to numbers first",
    "m": "durations: convert them to numbers first",
    "V": "records: pick the fields and put them side by side as numbers",
}


_NO_NUMBERS = (str, bytes, complex, np.complexfloating, np.ma.MaskedArray, type(None))  # astype would take these


def plain_array(values: Any, name: str, *, refusal: type[FannError] = InvalidInputError) -> npt.NDArray[Any]:
    """Return ``values`` as a plain array of whatever they are: numbers, texts, objects.

    Raises:
        refusal: None, a masked array or a list that holds one, a sparse matrix, or what NumPy makes no array of.
    """
    if values is None:
        raise refusal(f"{name} is None; an array is needed")
    if type(values) is not np.ndarray:
        if _holds_a_mask(values, _DEEPEST_LIST):
            raise refusal(
                f"{name} is, or holds, a masked array, whose mask would be lost: "
                "fill it (.filled(value)) or leave the masked samples out (numpy.ma.compress_rows)"
            )
        if hasattr(values, "nnz") and hasattr(values, "toarray"):
            raise refusal(f"{name} is a sparse matrix: pass {name}.toarray()")
    try:
        return np.asarray(values)
    except MemoryError:
        raise
    except Exception as error:  # an object's own __array__ may raise anything
        raise refusal(f"{name} must be an array of numbers or labels, all rows of one length: {error}") from None


def number_array(
    values: Any, name: str, *, refusal: type[FannError] = InvalidInputError, objects: bool = False
) -> npt.NDArray[Any]:
    """Return ``values`` as a plain array of booleans, integers or floating-point numbers.

    With ``objects``, an array of Python objects is read too if each of them is a real number: pandas gives such arrays.

    Raises:
        refusal: they are something else, or :func:`plain_array` refuses them.
    """
    array = plain_array(values, name, refusal=refusal)
    kind = array.dtype.kind
    if kind in "biuf":
        return array
    if kind != "O":
        raise refusal(f"{name} must be numbers; it holds {_WHAT_TO_DO[kind].format(name=name)} (dtype {array.dtype})")
    if array.ndim == 0:
        raise refusal(f"{name} is of type {type(array.item()).__name__}; an array of numbers is needed")
    if objects and not any(isinstance(element, _NO_NUMBERS) for element in array.flat):
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            kind_of_error = (
                NotNumbersError if isinstance(error, TypeError) and refusal is InvalidInputError else refusal
            )
            raise kind_of_error(f"{name} must be numbers that float64 can hold: {error}") from None
    kinds = sorted({type(element).__name__ for element in array.flat})
    what = ", ".join(kinds[:3]) or "nothing"
    advice = "an integer needs more than 64 bits" if kinds == ["int"] else f"pass {name}.astype(float) if they are"
    raise refusal(f"{name} must be numbers; it holds Python objects ({what}): {advice}")


def float32_of(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a C-contiguous float32 array.

    What is too large for float32 becomes infinite, without a warning.
    """
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)


def lost_in_float32(values: npt.NDArray[Any], converted: npt.NDArray[np.float32]) -> dict[int, str]:
    """Return the columns whose differences float32 does not hold, each with the remedy.

    Such are times in seconds since 1970: from one float32 number to the next it is two minutes.

    Args:
        values: (rows, columns), as given.
        converted: the same in float32, all finite.
    """
    if values.dtype.kind not in "iuf" or (values.dtype.kind == "f" and values.dtype.itemsize <= 4):
        return {}
    least, greatest = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    peak, extent = np.maximum(np.abs(least), np.abs(greatest)), greatest - least
    steps = np.spacing(peak.astype(np.float32)).astype(np.float64)
    few = (extent > 1e-12 * peak) & ((extent < _FEWEST_STEPS * steps) | (peak < _SMALLEST))
    return {
        int(i): f"float32 does not hold the differences between {least[i]:.10g} and {greatest[i]:.10g}: subtract an "
        "offset, or take another unit"
        for i in np.flatnonzero(few)
        if (values[:, i] != converted[:, i]).any()  # few whole numbers may be exact
    }


def _holds_a_mask(values: Any, depth: int) -> bool:
    if isinstance(values, np.ndarray):
        return isinstance(values, np.ma.MaskedArray)
    if depth == 0 or not isinstance(values, (list, tuple)):
        return False
    return any(
        _holds_a_mask(element, depth - 1)
        for element in values
        if isinstance(element, (list, tuple)) or (isinstance(element, np.ndarray) and type(element) is not np.ndarray)
    )
