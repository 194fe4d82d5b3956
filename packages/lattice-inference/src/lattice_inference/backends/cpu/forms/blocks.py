"""Weights in ggml's block formats, multiplied by integer rows with a scale per block."""

from __future__ import annotations

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.block_packing import pack_block_weights
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows, IntegerRows
from lattice_inference.backends.cpu.forms.weight_form import LinearUse, PlacedWeight, Terms, WeightForm
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS

__all__ = ["BLOCKS"]

_REPACKED = frozenset(BLOCK_FORMATS) - frozenset(_cpu.BLOCK_FORMATS)


class _Blocks(WeightForm):
    """One block format. Formats without a kernel are kept as Q8_0.

    Most linears round their rows once. Two kinds of linears without bias also round and multiply what the first rounding
    left out, because errors matter more there. One kind gives the logits, which are the result itself. The other gives
    the values of attention, which all later tokens add up.
    """

    in_panels = True

    def __init__(self, name: str) -> None:
        self.name = self.dtype = self.weight_type = name
        self.pack_together = pack_block_weights  # all formats at once, on all threads
        self.repacked = _REPACKED if name == "Q8_0" else frozenset()

    def serves(self, terms: Terms) -> bool:
        """Whether a weight stays as stored, and this form holds the stored type."""
        return terms.stored == self.name or terms.stored in self.repacked

    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel."""
        return _cpu.block_panel_bytes(self.name, depth)

    def input_rows(self, use: LinearUse) -> InputRows:
        """Return integers in blocks, unless activations stay floats."""
        if use.terms.activations == "float32":
            return FloatRows.FLOAT32
        return IntegerRows("quantize_block_pairs" if use.is_exact else "quantize_blocks")

    def kernel(self, rows: InputRows) -> str:
        """Return the kernel of blocks, or the one that widens weights."""
        return "block_linear" if isinstance(rows, IntegerRows) else "dequantized_linear"

    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> None:
        """Pack one weight."""
        assert isinstance(source, StoredTensorSource)
        pack_block_weights([weight], source, memory)


BLOCKS = tuple(map(_Blocks, _cpu.BLOCK_FORMATS))
