"""Weights in bfloat16, widened when used, or in pairs for the CPU's instructions."""

from __future__ import annotations

import numpy as np

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.float import FloatForm
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows
from lattice_inference.backends.cpu.forms.weight_form import LinearUse, StoredArray, Terms, WeightUse

__all__ = ["BFLOAT16", "BFLOAT16_PAIRS"]


class _Bfloat16(FloatForm):
    """Weights that are widened and multiplied by rows of float32."""

    def serves(self, terms: Terms) -> bool:
        """Whether the caller wants bfloat16."""
        return terms.asks("bfloat16", "BF16")


class _Bfloat16Pairs(FloatForm):
    """The same values in pairs of k, multiplied by rows rounded to bfloat16.

    Linears over whole sequences or logits, and linears whose weight is also a table, keep rows in float32.
    """

    def __init__(self) -> None:
        super().__init__("bfloat16_pairs", 2)
        self.dtype = "bfloat16"

    def serves(self, terms: Terms) -> bool:
        """Whether the caller wants bfloat16 and the CPU multiplies it."""
        return terms.products != "float32" and terms.asks("bfloat16", "BF16")

    def suits(self, use: WeightUse) -> bool:
        """Whether only linears over tokens read the weight."""
        return use.is_over_tokens

    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel, whose depth is rounded up."""
        return _cpu.bfloat16_panel_bytes(depth)

    def input_rows(self, use: LinearUse) -> InputRows:
        """Return bfloat16."""
        return FloatRows.BFLOAT16

    def kernel(self, rows: InputRows) -> str:
        """Return the kernel of bfloat16."""
        return "bfloat16_linear"

    def pack(self, values: StoredArray, memory: _cpu.Memory, offset: int) -> None:
        """Write values into panels of pairs."""
        _cpu.pack_bfloat16_panels(values.view(np.uint16), memory, offset)


BFLOAT16 = _Bfloat16("bfloat16", 2)
BFLOAT16_PAIRS = _Bfloat16Pairs()
