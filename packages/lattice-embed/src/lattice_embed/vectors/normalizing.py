"""Vectors of length one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_flag
from lattice_embed.arrays import plain_array, without_mask
from lattice_embed.errors import InvalidInputError
from lattice_embed.vectors import _vectors

__all__ = ["normalize"]

_Float32Array = npt.NDArray[np.float32]


def normalize(vectors: npt.ArrayLike, *, out: _Float32Array | None = None, in_place: bool = False) -> _Float32Array:
    """Divide a vector, or each row of a matrix, by its length.

    Vectors of zeros stay as they are. A vector with NaN or infinity in it becomes NaN.

    Args:
        vectors: of shape (dim,) or (n, dim).
        out: where to write; float32, C-contiguous, of the same shape. It may be ``vectors`` itself.
        in_place: write to ``vectors``, which then must be such an array.

    Returns:
        The array that was written to: a new one, ``out``, or ``vectors``.

    Raises:
        InvalidInputError: a wrong shape, or a target that cannot be written to.
    """
    if check_flag("in_place", in_place):
        if out is not None:
            raise InvalidInputError("in_place=True and out= contradict each other: pass one of them")
        if not isinstance(vectors, np.ndarray):
            raise InvalidInputError(f"in_place=True needs a float32 array, not a {type(vectors).__name__}")
        out = vectors
    array = plain_array(vectors, "vectors")
    if isinstance(vectors, np.ndarray):
        array = vectors  # so that the target is known for the same array
    source = _vectors.as_float32(array, 1 if array.ndim == 1 else 2, "vectors")
    if out is None:
        out = np.empty(source.shape, np.float32)
    elif not _is_writable_float32(out) or out.shape != source.shape:
        raise InvalidInputError(
            f"the target must be a writable, C-contiguous float32 array of shape {source.shape}; it is {_describe(out)}"
        )
    target = without_mask(out, "out")
    if target is not source and np.may_share_memory(target, source):
        source = source.copy()  # a shifted view would be overwritten before it is read
    _vectors._normalize(np.atleast_2d(source), target.reshape(1, -1) if target.ndim == 1 else target)
    return out


def _is_writable_float32(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and bool(array.flags.carray)


def _describe(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    order = "" if array.flags.c_contiguous else ", not contiguous"
    return f"{array.dtype} of shape {array.shape}{order}{'' if array.flags.writeable else ', read-only'}"
