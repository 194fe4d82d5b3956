"""The weights of a compiled program as the CPU keeps them: read from a checkpoint once, rounded, packed."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.block_packing import BlockWeight, pack_block_weights
from lattice_inference.backends.cpu.int8_weights import SCALE_SUFFIX, Int8Matrix, quantize_matrix
from lattice_inference.backends.cpu.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.backends.cpu.weight_forms import PANEL_FORMS, WeightForms
from lattice_inference.backends.weight_sizes import WeightSize
from lattice_inference.checkpoint.dtypes import bfloat16_bits
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Program, WeightRef

__all__ = ["ResidentWeights", "StoredTensorSource", "TensorSource", "narrow"]

Float32Array = npt.NDArray[np.float32]

StoredArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


class ResidentWeights:
    """The one form that each weight of a program is kept in: panels, rows, or a vector.

    Attributes:
        forms: which form each has.
        memory: what the panels lie in.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the program says, or a value that its form cannot hold.
    """

    def __init__(self, program: Program, source: TensorSource, forms: WeightForms) -> None:
        self.forms = forms
        refs = list(dict.fromkeys(ref for op in program.ops for ref in op.weights.values()))
        self._panels: dict[WeightRef, int] = {}
        total = 0
        for ref in refs:
            if ref not in forms.twins and (ref.use == "linear" or forms[ref] in PANEL_FORMS):
                self._panels[ref] = total
                total += _panel_bytes(ref, forms[ref])
        self._panels |= {ref: self._panels[forms.twins[ref]] for ref in refs if ref in forms.twins}
        self.memory = _cpu.Memory(total, huge_pages=total >= _cpu.HUGE_PAGE)
        self._arrays: dict[WeightRef, StoredArray] = {}
        in_blocks = {ref: None for ref in refs if self.forms[ref] in _cpu.BLOCK_FORMATS and ref not in forms.twins}
        if in_blocks:
            assert isinstance(source, StoredTensorSource)
            for ref in in_blocks:
                _check_shapes(ref, [source.info(name).shape for name in ref.sources])
            weights = [BlockWeight(ref, self.forms[ref], self._panels[ref]) for ref in in_blocks]
            pack_block_weights(weights, source, self.memory)
        for ref in refs:
            if ref not in in_blocks:
                self._keep(ref, source)
                for name in ref.sources:
                    source.drop_pages(name)

    def _keep(self, ref: WeightRef, source: TensorSource) -> None:
        form, name = self.forms[ref], " + ".join(ref.sources)
        if ref in self.forms.twins:
            return
        if form == "int8":
            _check_depth(ref, name)
            matrix = _gather_int8(ref, source)
            _cpu.pack_int8_panels(matrix.integers, matrix.scales, self.memory, self._panels[ref])
            return
        weight = narrow(_gather(ref, source), form.removesuffix("_pairs"), name)
        if form == "bfloat16_pairs":
            _cpu.pack_bfloat16_panels(weight.view(np.uint16), self.memory, self._panels[ref])
        elif ref.use == "linear":
            _cpu.pack_panels(weight, self.memory, self._panels[ref])
        else:
            self._arrays[ref] = weight

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
        return self.forms[ref]

    def sizes(self) -> tuple[WeightSize, ...]:
        """Return what each weight takes; two that share one form count once."""
        starts = sorted(set(self._panels.values()))
        ends = dict(itertools.pairwise([*starts, self.memory.nbytes]))
        owners = {start: ref for ref, start in reversed(self._panels.items())}
        kept = [(ref, ends[start] - start) for start, ref in sorted(owners.items())]
        kept += [(ref, array.nbytes) for ref, array in self._arrays.items()]
        return tuple(
            WeightSize(" + ".join(ref.sources), self.form(ref).removesuffix("_pairs"), nbytes) for ref, nbytes in kept
        )


def narrow(weight: Float32Array, precision: str, name: str) -> StoredArray:
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


def _panel_bytes(ref: WeightRef, form: str) -> int:
    columns, depth = ref.shape
    panels = -(-columns // _cpu.PANEL)
    if form in _cpu.BLOCK_FORMATS:
        nbytes = panels * _cpu.block_panel_bytes(form, depth)
    elif form == "bfloat16_pairs":
        nbytes = panels * _cpu.bfloat16_panel_bytes(depth)
    elif form == "int8":
        nbytes = panels * _cpu.int8_panel_bytes(depth)
    else:
        nbytes = panels * _cpu.PANEL * depth * (4 if form == "float32" else 2)
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _check_depth(ref: WeightRef, name: str) -> None:
    if ref.shape[1] > _cpu.INT8_DEPTH:
        raise UnsupportedError(
            f"{name} has {ref.shape[1]} inputs and int8 sums take at most {_cpu.INT8_DEPTH}: load the model with another "
            "precision"
        )


def _gather(ref: WeightRef, source: TensorSource) -> Float32Array:
    tensors = [_float32(name, source) for name in ref.sources]
    _check_shapes(ref, [tensor.shape for tensor in tensors])
    return np.ascontiguousarray(tensors[0] if len(tensors) == 1 else np.concatenate(tensors))


def _gather_int8(ref: WeightRef, source: TensorSource) -> Int8Matrix:
    parts = [_int8(name, source) or quantize_matrix(_float32(name, source), name) for name in ref.sources]
    _check_shapes(ref, [part.integers.shape for part in parts])
    if len(parts) == 1:
        return parts[0]
    return Int8Matrix(
        np.concatenate([part.integers for part in parts]), np.concatenate([part.scales for part in parts])
    )


def _float32(name: str, source: TensorSource) -> Float32Array:
    stored = _int8(name, source)
    return source.float32(name) if stored is None else stored.float32()


def _int8(name: str, source: TensorSource) -> Int8Matrix | None:
    """Return a matrix that the source has as int8 with scales, else None.

    Raises:
        CheckpointError: it has int8 without scales that fit.
    """
    if not isinstance(source, StoredTensorSource) or source.info(name).dtype != "I8":
        return None
    info = source.info(name)
    if name + SCALE_SUFFIX not in source:
        raise CheckpointError(f"{name} is int8 and the checkpoint has no scales for it, {name + SCALE_SUFFIX}")
    scales = source.float32(name + SCALE_SUFFIX)
    if len(info.shape) != 2 or scales.size != info.shape[0]:
        raise CheckpointError(f"{name} is int8 of shape {info.shape} and has scales of shape {scales.shape}")
    integers = np.ascontiguousarray(source.array(name), np.int8)
    if integers.size and int(integers.min()) < -127:
        raise CheckpointError(f"{name} holds -128: int8 weights go from -127 to 127")
    return Int8Matrix(integers, scales.reshape(-1))


def _check_shapes(ref: WeightRef, shapes: list[tuple[int, ...]]) -> None:
    if any(shape[1:] != ref.shape[1:] for shape in shapes) or sum(shape[0] for shape in shapes) != ref.shape[0]:
        names = " + ".join(f"{name} {shape}" for name, shape in zip(ref.sources, shapes, strict=True))
        raise CheckpointError(f"the model needs a tensor of shape {ref.shape}, the checkpoint has {names}")
