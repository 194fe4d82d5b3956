"""Weights as floats of 32 or 16 bits, which kernels widen to float32 where they use them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows
from lattice_inference.backends.cpu.forms.weight_form import (
    LinearUse,
    PlacedWeight,
    StoredArray,
    Terms,
    WeightForm,
    WeightUse,
)
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.backends.weight_reading import narrow, read_float32
from lattice_inference.checkpoint.safetensors_writer import StoredTensor

__all__ = ["FLOAT16", "FLOAT32", "FloatForm"]

Float32Array = npt.NDArray[np.float32]


class FloatForm(WeightForm):
    """Floats in panels [n / 16][k][16]; tables stay in rows."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = self.dtype = self.weight_type = name
        self._itemsize = itemsize

    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel, which holds elements only."""
        return _cpu.PANEL * depth * self._itemsize

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row, which holds elements only."""
        return width * self._itemsize

    def input_rows(self, use: LinearUse) -> InputRows:
        """Return float32."""
        return FloatRows.FLOAT32

    def kernel(self, rows: InputRows) -> str:
        """Return the kernel of floats."""
        return "linear"

    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> StoredArray | None:
        """Round a weight, and pack it if it is a linear's."""
        values = self.rounded(read_float32(weight.ref, source), weight.name)
        if weight.offset is None:
            return values
        self.pack(values, memory, weight.offset)
        return None

    def rounded(self, values: Float32Array, name: str) -> StoredArray:
        """Return values as they are kept; ``name`` is for messages."""
        return narrow(values, self.dtype, name)

    def pack(self, values: StoredArray, memory: _cpu.Memory, offset: int) -> None:
        """Write values into panels."""
        _cpu.pack_panels(values, memory, offset)


class _Float32(FloatForm):
    """Float32, which suits every weight: it is the last form of the list."""

    def serves(self, terms: Terms) -> bool:
        """Say yes."""
        return True


class _Float16(FloatForm):
    """Float16, also for tables where the caller wants int8.

    Rounding tables to int8 would cost as much quality as rounding all linears to int8.
    """

    def serves(self, terms: Terms) -> bool:
        """Whether the caller wants float16 or int8."""
        return terms.asks("float16", "F16") or terms.asks("int8", "I8")

    def suits(self, use: WeightUse) -> bool:
        """Whether the caller wants float16, or the weight is a table."""
        return use.ref.use == "rows" or use.terms.asks("float16", "F16")

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return one tensor."""
        return [StoredTensor(name, "F16", shape)]

    def file_arrays(self, weight: Float32Array, name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield its halves."""
        yield narrow(weight, self.dtype, name).view(np.float16)


FLOAT32 = _Float32("float32", 4)
FLOAT16 = _Float16("float16", 2)
