"""Weights in the block formats of ggml, multiplied by rows of integers with a scale for each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.block_packing import pack_block_weights
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows, IntegerRows
from lattice_inference.backends.cpu.forms.weight_form import LinearUse, PlacedWeight, Terms, WeightForm, WeightUse
from lattice_inference.backends.cpu.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS

__all__ = ["BLOCKS"]

_REPACKED = frozenset(BLOCK_FORMATS) - frozenset(_cpu.BLOCK_FORMATS)


class _Blocks(WeightForm):
    """One block format. Formats without a kernel are kept as Q8_0.

    Rows are rounded once, but where much hangs on a small part of the products: for the logits, which are the result
    itself, and for the values of attention, which all later tokens add up. There what rounding left out is rounded and
    multiplied too (of linears without bias).
    """

    in_panels = True

    def __init__(self, name: str) -> None:
        self.name = self.dtype = self.weight_type = name
        self._formats = {name} | (_REPACKED if name == "Q8_0" else set())

    @property
    def pack_together(self) -> Callable[[Sequence[PlacedWeight], StoredTensorSource, _cpu.Memory], None]:
        """What packs all block formats on all threads."""
        return pack_block_weights

    def serves(self, terms: Terms) -> bool:
        """Whether weights stay as they are stored."""
        return terms.precision == "stored"

    def suits(self, use: WeightUse) -> bool:
        """Whether the weight is stored so."""
        return use.stored in self._formats

    def repacks(self, stored: str) -> bool:
        """Whether that is another block format."""
        return stored != self.name

    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel."""
        return _cpu.block_panel_bytes(self.name, depth)

    def input_rows(self, use: LinearUse) -> InputRows:
        """Return integers in blocks, unless activations stay floats."""
        if use.terms.activations == "float32":
            return FloatRows.FLOAT32
        return IntegerRows("quantize_block_pairs" if use.is_exact else "quantize_blocks")

    def kernel(self, rows: InputRows) -> int:
        """Return the kernel of blocks, or the one that widens weights."""
        return _cpu.BLOCK_LINEAR if isinstance(rows, IntegerRows) else _cpu.DEQUANTIZED_LINEAR

    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> None:
        """Pack one weight."""
        assert isinstance(source, StoredTensorSource)
        pack_block_weights([weight], source, memory)


BLOCKS = tuple(map(_Blocks, _cpu.BLOCK_FORMATS))
