"""What weights may be kept in, and what they are multiplied by."""

from __future__ import annotations

from typing import Literal, get_args

from lattice_inference.errors import UnsupportedError
from lattice_inference.value_text import value_text

__all__ = ["Activations", "Precision", "check_precision"]

Precision = Literal["float32", "bfloat16", "float16", "int8", "stored"]
"""What linear weights and embedding tables are kept in.

Sums are float32. Where the CPU multiplies bfloat16, a linear with such weights rounds its input to it. With int8 a linear
multiplies integers, having quantized its input row by row. Everything between linears is float32. ``"stored"`` keeps what
the file has: a quantized one stays as it is.
"""

Activations = Literal["int8", "float32"]
"""What quantized weights are multiplied by: rows rounded to integers, or floats."""


def check_precision(precision: str) -> None:
    """Raise UnsupportedError for a precision that does not exist."""
    if not isinstance(precision, str) or precision not in get_args(Precision):
        raise UnsupportedError(
            f"precision must be one of {', '.join(get_args(Precision))}, not {value_text(precision)}"
        )
