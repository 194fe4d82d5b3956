"""Float numbers to ggml's types: the bytes that ggml's reference quantizers make.

A block of 32 numbers x is divided by its scale d. Stored are d as float16, and for each number the integer nearest to
x / d, with d in float32:

* Q8_0: d = max|x| / 127;
* Q4_0, Q5_0: d = m / -8 or m / -16 for the number m of the largest magnitude, so that m itself is met whatever its sign;
* Q4_1, Q5_1: d = (max x - min x) / 15 or / 31, of x - min x, with min x stored as float16.

Source: the functions quantize_row_*_ref in ``ggml-quants.c`` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, BlockArray
from lattice_inference.checkpoint.dtypes import bfloat16_bits
from lattice_inference.errors import InvalidInputError

__all__ = ["QUANTIZERS", "QuantizedType", "quantize_rows"]

QuantizedType = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
"""The types that tensors can be written in."""

Float32Array = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]


def quantize_rows(values: Float32Array, dtype: str) -> npt.NDArray[np.generic]:
    """Return ``values`` in a type of ggml's, rounded as ggml rounds.

    Args:
        values: finite float32, C-contiguous, of at least one dimension.
        dtype: one of :data:`QuantizedType`. For a block type the last axis must be a multiple of 32.

    Returns:
        An array of the type's elements: float32, float16, uint16 (the bits of BF16), or blocks, of which the last axis has
        one for 32 numbers.

    Raises:
        InvalidInputError: no such type, a row of another length, or a number (or a block's scale) that the type's
            floats cannot hold.
    """
    if dtype not in QUANTIZERS:
        raise InvalidInputError(f"there is no quantizer for {dtype!r}; there are {', '.join(QUANTIZERS)}")
    if dtype in BLOCK_FORMATS:
        elements = BLOCK_FORMATS[dtype].elements
        if values.shape[-1] % elements:
            raise InvalidInputError(
                f"rows of {values.shape[-1]} are no multiple of the {elements} of a block of {dtype}"
            )
        shape = (*values.shape[:-1], values.shape[-1] // elements)
        return QUANTIZERS[dtype](values.reshape(-1, elements)).reshape(shape)
    return QUANTIZERS[dtype](values)


def _float16(values: Float32Array) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        worst = float(np.abs(values).max())
        raise InvalidInputError(f"{worst:g} is beyond the largest float16, 65504: write this tensor in F32 or BF16")
    return halves


def _bfloat16(values: Float32Array) -> npt.NDArray[np.uint16]:
    bits = bfloat16_bits(values)
    if ((bits & 0x7F80) == 0x7F80).any():
        worst = float(np.abs(values).max())
        raise InvalidInputError(f"{worst:g} is beyond the largest bfloat16, 3.39e38: write this tensor in F32")
    return bits.astype("<u2")


def _inverse(scales: Float32Array) -> Float32Array:
    """Return 1 / scale, or 0 for a block of zeros.

    Also 0 for numbers so small that float16 has no scale for them.
    """
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _blocks(count: int, dtype: str) -> BlockArray:
    return np.zeros(count, BLOCK_FORMATS[dtype].layout)


def _nibbles(quants: ByteArray) -> ByteArray:
    """Return numbers (n, 32) as bytes (n, 16).

    Element j is in the low nibble of byte j, element j + 16 in the high one.
    """
    return quants[:, :16] & np.uint8(15) | quants[:, 16:] << np.uint8(4)


def _fifth_bits(quants: ByteArray) -> ByteArray:
    return np.packbits(quants >> np.uint8(4), axis=1, bitorder="little")


def _q8_0(values: Float32Array) -> BlockArray:
    blocks = _blocks(len(values), "Q8_0")
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(scales)
    whole = np.trunc(scaled)
    # halves away from zero; adding a half before cutting would round 0.49999997 up, as the sum itself is rounded
    blocks["quants"] = whole + np.copysign(np.abs(scaled - whole) >= np.float32(0.5), scaled)
    blocks["scale"] = _float16(scales[:, 0])
    return blocks


def _around_middle(values: Float32Array, middle: int) -> tuple[Float32Array, ByteArray]:
    """Return the scales of a type whose numbers lie around ``middle``, and the numbers."""
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)
    scales = largest / np.float32(-middle)
    quants = np.trunc(values * _inverse(scales) + np.float32(middle + 0.5))
    return scales[:, 0], np.minimum(quants, 2 * middle - 1).astype(np.uint8)


def _from_least(values: Float32Array, most: int) -> tuple[Float32Array, Float32Array, ByteArray]:
    """Return the scales and minima of a type with numbers from 0 to ``most``, and the numbers."""
    least = values.min(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too far apart for float32 are so for float16: checked
        scales = (values.max(axis=1, keepdims=True) - least) / np.float32(most)
        quants = np.trunc((values - least) * _inverse(scales) + np.float32(0.5))
        return scales[:, 0], least[:, 0], np.minimum(quants, most).astype(np.uint8)


def _q4_0(values: Float32Array) -> BlockArray:
    blocks = _blocks(len(values), "Q4_0")
    scales, quants = _around_middle(values, 8)
    blocks["scale"], blocks["quants"] = _float16(scales), _nibbles(quants)
    return blocks


def _q5_0(values: Float32Array) -> BlockArray:
    blocks = _blocks(len(values), "Q5_0")
    scales, quants = _around_middle(values, 16)
    blocks["scale"], blocks["quants"], blocks["high_bits"] = _float16(scales), _nibbles(quants), _fifth_bits(quants)
    return blocks


def _q4_1(values: Float32Array) -> BlockArray:
    blocks = _blocks(len(values), "Q4_1")
    scales, offsets, quants = _from_least(values, 15)
    blocks["scale"], blocks["offset"], blocks["quants"] = _float16(scales), _float16(offsets), _nibbles(quants)
    return blocks


def _q5_1(values: Float32Array) -> BlockArray:
    blocks = _blocks(len(values), "Q5_1")
    scales, offsets, quants = _from_least(values, 31)
    blocks["scale"], blocks["offset"] = _float16(scales), _float16(offsets)
    blocks["quants"], blocks["high_bits"] = _nibbles(quants), _fifth_bits(quants)
    return blocks


#: What turns float32 numbers, blocks of them (n, 32) for the block types, into each type.
QUANTIZERS: dict[str, Callable[[Float32Array], npt.NDArray[np.generic]]] = {
    "F32": lambda values: values.astype("<f4"),
    "F16": _float16,
    "BF16": _bfloat16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
}
