"""The weights of a compiled program as the CPU keeps them: read from a checkpoint once, rounded, packed."""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.weight_sizes import WeightSize
from lattice_inference.checkpoint.dtypes import bfloat16_bits
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Program, WeightRef
from lattice_inference.precision import Precision

__all__ = ["ResidentWeights", "TensorSource", "narrow"]

Float32Array = npt.NDArray[np.float32]
StoredArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


class TensorSource(Protocol):
    """Where weights come from: a checkpoint, or anything that can hand out named float32 tensors."""

    def float32(self, name: str) -> Float32Array:
        """Return a tensor as a new C-contiguous float32 array."""
        ...

    def drop_pages(self, name: str) -> None:
        """Let go of what the tensor's file holds in memory: it has been packed."""
        ...


class ResidentWeights:
    """The one form that each weight of a program is kept in: panels, rows, or a vector.

    Attributes:
        precision: of the panels and rows; vectors are always float32.
        memory: what the panels lie in.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the program says, or a value too large for
            ``precision``.
    """

    def __init__(self, program: Program, source: TensorSource, precision: Precision = "float32") -> None:
        self.precision: Precision = precision
        refs = list(dict.fromkeys(ref for op in program.ops for ref in op.weights.values()))
        self._panels: dict[WeightRef, int] = {}
        total = 0
        for ref in refs:
            if ref.use == "linear":
                self._panels[ref] = total
                total += _panel_bytes(ref, 4 if precision == "float32" else 2)
        self.memory = _cpu.Memory(total, huge_pages=total >= 4 << 20)
        self._arrays: dict[WeightRef, StoredArray] = {}
        for ref in refs:
            if ref in self._panels:
                _cpu.pack_panels(self._stored(ref, source), self.memory, self._panels[ref])
            else:
                self._arrays[ref] = self._stored(ref, source)
            for name in ref.sources:
                source.drop_pages(name)

    def _stored(self, ref: WeightRef, source: TensorSource) -> StoredArray:
        weight = _gather(ref, source)
        return weight if ref.use == "vector" else narrow(weight, self.precision, " + ".join(ref.sources))

    def __getitem__(self, ref: WeightRef) -> StoredArray | tuple[_cpu.Memory, int]:
        """Return the panels' memory and byte offset of a linear weight, or the array of another."""
        if ref in self._panels:
            return self.memory, self._panels[ref]
        return self._arrays[ref]

    def array(self, ref: WeightRef) -> StoredArray:
        """Return a weight that is not packed."""
        return self._arrays[ref]

    def form(self, ref: WeightRef) -> str:
        """Return what a weight is kept in."""
        return "float32" if ref.use == "vector" else self.precision

    def sizes(self) -> tuple[WeightSize, ...]:
        """Return what each weight takes; two that share one form count once."""
        starts = sorted(set(self._panels.values()))
        ends = dict(itertools.pairwise([*starts, self.memory.nbytes]))
        owners = {start: ref for ref, start in reversed(self._panels.items())}
        kept = [(ref, ends[start] - start) for start, ref in sorted(owners.items())]
        kept += [(ref, array.nbytes) for ref, array in self._arrays.items()]
        return tuple(WeightSize(" + ".join(ref.sources), self.form(ref), nbytes) for ref, nbytes in kept)


def narrow(weight: Float32Array, precision: Precision, name: str) -> StoredArray:
    """Return ``weight`` in ``precision``, rounded to nearest even; 16-bit types as the uint16 of their bits.

    Raises:
        CheckpointError: a finite value would become infinite; ``name`` says of which tensor.
    """
    if precision == "float32":
        return weight
    finite = np.isfinite(weight)
    if precision == "float16":
        with np.errstate(over="ignore"):
            halves = weight.astype(np.float16).view(np.uint16)
    else:
        halves = bfloat16_bits(weight)
    infinite = (halves & 0x7FFF) == (0x7C00 if precision == "float16" else 0x7F80)
    if (infinite & finite).any():
        limit = 65504.0 if precision == "float16" else 3.3895e38
        raise CheckpointError(
            f"{name} holds {float(np.abs(weight[finite]).max()):g} and {precision} ends at {limit:g}: load the model with "
            "precision='float32'" + (" or 'bfloat16'" if precision == "float16" else "")
        )
    return np.ascontiguousarray(halves)


def _panel_bytes(ref: WeightRef, element_bytes: int) -> int:
    columns, depth = ref.shape
    nbytes = element_bytes * depth * -(-columns // _cpu.PANEL) * _cpu.PANEL
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _gather(ref: WeightRef, source: TensorSource) -> Float32Array:
    tensors = [source.float32(name) for name in ref.sources]
    if any(tensor.shape[1:] != ref.shape[1:] for tensor in tensors) or sum(len(t) for t in tensors) != ref.shape[0]:
        names = " + ".join(f"{name} {tensor.shape}" for name, tensor in zip(ref.sources, tensors, strict=True))
        raise CheckpointError(f"the model needs a tensor of shape {ref.shape}, the checkpoint has {names}")
    return np.ascontiguousarray(tensors[0] if len(tensors) == 1 else np.concatenate(tensors))
