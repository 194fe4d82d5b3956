"""Weights in int8 with a scale for each output, multiplied by rows of integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows, IntegerRows
from lattice_inference.backends.cpu.forms.weight_form import LinearUse, PlacedWeight, Terms, WeightForm, WeightUse
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.backends.weight_reading import read_int8
from lattice_inference.checkpoint.int8_weights import SCALE_SUFFIX, quantize_matrix
from lattice_inference.checkpoint.safetensors_writer import StoredTensor
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.program import WeightRef

__all__ = ["INT8"]


class _Int8(WeightForm):
    """Int8 with a scale for each output.

    Two sorts of weights are not kept in int8, even if the caller wants int8:

    * weights that multiply whole sequences only, such as the heads of a model. They are used once a text, and what they
      compute is the result itself. If they are stored as int8, they stay int8;
    * tables, unless the same tensors are also a linear's weight: such a table reads the linear's panels.
    """

    name = dtype = weight_type = "int8"
    in_panels = True
    takes_range = True

    def serves(self, terms: Terms) -> bool:
        """Whether the caller wants int8."""
        return terms.asks("int8", "I8")

    def suits(self, use: WeightUse) -> bool:
        """Whether the weight is none of the exceptions."""
        if use.ref.use == "rows":
            return use.linear is self
        return use.terms.stored is not None or not use.is_over_sequences

    def panel_bytes(self, depth: int) -> int:
        """Return the bytes of a panel: integers, scales and sums."""
        return _cpu.int8_panel_bytes(depth)

    def input_rows(self, use: LinearUse) -> InputRows:
        """Return integers with a scale for each row, or floats if activations stay floats."""
        if use.terms.activations == "float32":
            return FloatRows.FLOAT32
        return IntegerRows("quantize_rows", use.range())

    def kernel(self, rows: InputRows) -> str:
        """Return the kernel of integers, or the one that widens weights."""
        return "int8_linear" if isinstance(rows, IntegerRows) else "dequantized_linear"

    def keep(self, weight: PlacedWeight, source: TensorSource, memory: _cpu.Memory) -> None:
        """Pack the source's integers, or its floats rounded."""
        _check_depth(weight.ref, weight.name)
        matrix = read_int8(weight.ref, source)
        _cpu.pack_int8_panels(matrix.integers, matrix.scales, memory, weight.panels)

    def file_tensors(self, name: str, shape: tuple[int, ...]) -> list[StoredTensor]:
        """Return integers and scales."""
        return [StoredTensor(name, "I8", shape), StoredTensor(name + SCALE_SUFFIX, "F32", shape[:1])]

    def file_arrays(self, weight: npt.NDArray[np.float32], name: str) -> Iterator[npt.NDArray[np.generic]]:
        """Yield integers and scales."""
        matrix = quantize_matrix(weight, name)
        yield matrix.integers
        yield matrix.scales


INT8 = _Int8()


def _check_depth(ref: WeightRef, name: str) -> None:
    if ref.shape[1] > _cpu.INT8_DEPTH:
        raise UnsupportedError(
            f"{name} has {ref.shape[1]} inputs and int8 sums take at most {_cpu.INT8_DEPTH}: load the model with another "
            "precision"
        )
