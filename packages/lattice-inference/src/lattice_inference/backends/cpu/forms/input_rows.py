"""The rows that a linear multiplies its weights by: float32, bfloat16 or integers."""

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
    """Rows of integers, and the op that makes them.

    Attributes:
        kind: the op. ``"quantize_rows"`` has one scale per row, ``"quantize_blocks"`` one per 32 elements.
            ``"quantize_block_pairs"`` quantizes blocks twice: the second time it takes what the first rounding left out.
        range: the range that a calibration fixed for all rows of ``quantize_rows``. Without it each row has its own range.
    """

    kind: Literal["quantize_rows", "quantize_blocks", "quantize_block_pairs"]
    range: InputRange | None = None

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The attributes of the op."""
        return {} if self.range is None else {"low": self.range.low, "high": self.range.high}

    @property
    def linear(self) -> str | None:
        """The op that multiplies such rows, or None if the linear itself does."""
        return "linear_pairs" if self.kind == "quantize_block_pairs" else None

    def floats(self, elements: int) -> int:
        """Return the size in floats of a row with so many elements."""
        return _FLOATS[self.kind](elements)

    def in_norm(self, kind: str) -> str | None:
        """Return the variant of norm ``kind`` that writes such integers too, or None.

        None means that there is no such norm.
        """
        return _NORMS.get(kind) if self.kind == "quantize_rows" else None


InputRows = FloatRows | IntegerRows

_FLOATS: Mapping[str, Callable[[int], int]] = {
    "quantize_rows": _cpu.integer_row_floats,
    "quantize_blocks": _cpu.block_row_floats,
    "quantize_block_pairs": lambda elements: 2 * _cpu.block_row_floats(elements),
}
_NORMS = {"layer_norm": "layer_norm_quantized"}
