"""How much of a vector is kept: from float32 down to one bit a dimension."""

from __future__ import annotations

import sys
from enum import Enum

import numpy as np

from lattice_embed.argument_checks import check_integer
from lattice_embed.errors import InvalidInputError

__all__ = ["QuantizationTier"]

HOUR, DAY, WEEK = 3_600.0, 86_400.0, 604_800.0


class QuantizationTier(Enum):
    """The precision that vectors are stored at.

    FULL, INT8, INT4 and BINARY form the ladder that :meth:`from_age_seconds` descends; BFLOAT16 and FLOAT16 halve the
    memory of FULL at next to no loss.
    """

    FULL = "full"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    BINARY = "binary"

    @property
    def bytes_per_dim(self) -> float:
        """Bytes that one dimension takes."""
        return _BYTES[self]

    def storage_bytes(self, dims: int) -> int:
        """Return the bytes of a vector's components, rounded up; scales and norms come on top."""
        dims = check_integer("dims", dims, lowest=0, highest=sys.maxsize)
        return -int(-dims * _BYTES[self] // 1)

    @classmethod
    def from_age_seconds(cls, age: float) -> QuantizationTier:
        """Return the tier for a vector last used ``age`` seconds ago.

        FULL below an hour, INT8 below a day, INT4 below a week, BINARY from then on.

        Raises:
            InvalidInputError: the age is negative or NaN.
        """
        if isinstance(age, bool) or not isinstance(age, int | float | np.number) or not age >= 0:
            raise InvalidInputError(f"age is {age!r:.80}; it must be at least 0 seconds")
        return cls.FULL if age < HOUR else cls.INT8 if age < DAY else cls.INT4 if age < WEEK else cls.BINARY


_BYTES = {
    QuantizationTier.FULL: 4.0,
    QuantizationTier.BFLOAT16: 2.0,
    QuantizationTier.FLOAT16: 2.0,
    QuantizationTier.INT8: 1.0,
    QuantizationTier.INT4: 0.5,
    QuantizationTier.BINARY: 0.125,
}
