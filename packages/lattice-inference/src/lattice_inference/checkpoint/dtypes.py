"""The element types of safetensors files, and their exact widening to float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DTYPES", "Dtype", "bfloat16_bits", "to_float32"]


@dataclass(frozen=True)
class Dtype:
    """One element type.

    Attributes:
        name: the name in a safetensors header, such as ``"BF16"``.
        bits: bits an element; less than eight where elements are packed.
        storage: the NumPy type that an array of it is handed out as. NumPy's type if it exists, else an unsigned
            integer of the same width: ``uint16`` for BF16, ``uint8`` for 8-bit floats. None for packed types, which
            have no array form here.
        widens: whether :func:`to_float32` takes it.
    """

    name: str
    bits: int
    storage: np.dtype[np.generic] | None
    widens: bool = False


def _dtype(name: str, bits: int, storage: str | None, *, widens: bool = False) -> Dtype:
    # Files are little-endian whatever the machine is.
    return Dtype(name, bits, None if storage is None else np.dtype(storage).newbyteorder("<"), widens)


#: Every element type that the safetensors format defines, by its name there.
DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        _dtype("BOOL", 8, "bool"),
        _dtype("U8", 8, "u1"),
        _dtype("I8", 8, "i1"),
        _dtype("U16", 16, "u2"),
        _dtype("I16", 16, "i2"),
        _dtype("U32", 32, "u4"),
        _dtype("I32", 32, "i4"),
        _dtype("U64", 64, "u8"),
        _dtype("I64", 64, "i8"),
        _dtype("F64", 64, "f8", widens=True),
        _dtype("F32", 32, "f4", widens=True),
        _dtype("F16", 16, "f2", widens=True),
        _dtype("BF16", 16, "u2", widens=True),
        _dtype("F8_E4M3", 8, "u1", widens=True),
        _dtype("F8_E5M2", 8, "u1", widens=True),
        _dtype("F8_E8M0", 8, "u1"),
        _dtype("F8_E4M3FNUZ", 8, "u1"),
        _dtype("F8_E5M2FNUZ", 8, "u1"),
        _dtype("C64", 64, "c8"),
        _dtype("F6_E2M3", 6, None),
        _dtype("F6_E3M2", 6, None),
        _dtype("F4", 4, None),
    )
}


def to_float32(values: npt.NDArray[Any], dtype: Dtype, out: npt.NDArray[np.float32]) -> None:
    """Write ``values``, whose elements are of type ``dtype``, into ``out`` as float32.

    Exact for every type but F64, which rounds to nearest (and to infinity where float32 ends).

    Args:
        values: 1-D array in the storage type of ``dtype``.
        dtype: one whose ``widens`` is true.
        out: 1-D float32 array of the same length.
    """
    if dtype.name == "BF16":
        # BF16 is the upper half of a float32.
        np.left_shift(values, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    elif dtype.name in _FLOAT8_TABLES:
        np.take(_FLOAT8_TABLES[dtype.name], values, out=out)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, values, casting="same_kind")


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return float32 numbers as bfloat16, rounded to nearest even.

    Too large numbers become infinite.
    """
    bits = values.view(np.uint32)
    # half of what is cut off, less one where the last bit that stays is 0: ties go to even; NaN keeps a set bit
    rounded = np.where(np.isnan(values), bits | 0x0040_0000, bits + 0x7FFF + (bits >> 16 & 1))
    return (rounded >> 16).astype(np.uint16)


def _float8_table(exponent_bits: int, *, infinities: bool) -> npt.NDArray[np.float32]:
    """Return the values of the 256 bit patterns.

    A pattern is a sign, ``exponent_bits`` of exponent, and the mantissa. With ``infinities`` the top exponent is
    IEEE's (infinity and NaN). Without, only its all-ones mantissa is NaN and the rest are numbers: the "FN" kind.
    """
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = code & (2**mantissa_bits - 1)
    normal = np.ldexp(1.0 + mantissa / 2**mantissa_bits, exponent - bias)
    subnormal = np.ldexp(mantissa / 2**mantissa_bits, 1 - bias)
    magnitude = np.where(exponent == 0, subnormal, normal)
    top = exponent == 2**exponent_bits - 1
    if infinities:
        magnitude[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        magnitude[top & (mantissa == 2**mantissa_bits - 1)] = np.nan
    values: npt.NDArray[np.float32] = np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)
    return values


_FLOAT8_TABLES = {
    "F8_E4M3": _float8_table(4, infinities=False),
    "F8_E5M2": _float8_table(5, infinities=True),
}
