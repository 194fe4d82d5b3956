"""What rows a linear multiplies its weights by: floats, rows rounded to bfloat16, or integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from lattice_inference.backends.cpu import _cpu
from lattice_inference.calibration import InputRange
from lattice_inference.graph.program import AttributeValue

__all__ = ["FloatRows", "InputRows", "IntegerRows"]


class FloatRows(Enum):
    """Rows that are not integers."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class IntegerRows:
    """Rows of integers, and what makes them.

    Attributes:
        kind: the op: ``"quantize_rows"``, one scale a row, ``"quantize_blocks"``, one for 32 elements, or
            ``"quantize_block_pairs"``, twice, the second time what rounding left out the first time.
        range: what a calibration fixed for all rows of ``quantize_rows``; without it each row has its own.
    """

    kind: Literal["quantize_rows", "quantize_blocks", "quantize_block_pairs"]
    range: InputRange | None = None

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The attributes of the op."""
        return {} if self.range is None else {"low": self.range.low, "high": self.range.high}

    @property
    def linear(self) -> str | None:
        """The op that multiplies such rows, where it is another than the linear that wants them."""
        return "linear_pairs" if self.kind == "quantize_block_pairs" else None

    def floats(self, elements: int) -> int:
        """Return the floats that a row of so many elements takes."""
        return _FLOATS[self.kind](elements)

    def in_norm(self, kind: str) -> str | None:
        """Return the norm that writes its rows as such integers too, for a norm of this kind; None if there is none."""
        return _NORMS.get(kind) if self.kind == "quantize_rows" else None


InputRows = FloatRows | IntegerRows

_FLOATS: Mapping[str, Callable[[int], int]] = {
    "quantize_rows": _cpu.integer_row_floats,
    "quantize_blocks": _cpu.block_row_floats,
    "quantize_block_pairs": lambda elements: 2 * _cpu.block_row_floats(elements),
}
_NORMS = {"layer_norm": "layer_norm_quantized"}
