"""The weights of a program as GPU backends keep them.

They are the file's bytes, in one layout for every device, never widened.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.device import GpuBuffer, GpuDevice
from lattice_inference.backends.gpu.mapped_weights import MappingDevice, bytes_in_file, follows, maps_weights
from lattice_inference.backends.protocol import WeightSize
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource
from lattice_inference.backends.weight_reading import (
    RepackedWeightsWarning,
    check_shapes,
    narrow,
    read_float32,
    read_int8,
)
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, BlockFormat, dequantize_blocks
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.cutting import cut_linear
from lattice_inference.graph.program import Op, Program, View, WeightRef
from lattice_inference.precision import Precision

__all__ = ["BLOCKS_AS_STORED", "ResidentWeight", "GpuWeights", "GpuWeightForms", "WeightPart", "upload_pieces"]

ByteArray = npt.NDArray[np.uint8]

BLOCKS_AS_STORED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Block formats that kernels read in ggml's own bytes; others become Q8_0."""

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
_SCALED = frozenset({"int8"})  # integers with a scale for each row
_FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class WeightPart:
    """Rows ``first`` to ``first + rows`` of a weight in a buffer."""

    buffer: GpuBuffer
    first: int
    rows: int


@dataclass(frozen=True)
class ResidentWeight:
    """A weight on the device.

    Attributes:
        form: what it is kept in: ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"int8"`` or a block format.
        parts: its rows; several where one binding cannot hold it.
        scales: a float for each row; of int8 only.
    """

    form: str
    parts: tuple[WeightPart, ...]
    scales: GpuBuffer | None = None


class GpuWeightForms:
    """Which form each weight is kept in, told by types and shapes.

    Args:
        precision: what the caller asks for; never ``"int8"``, which GPU backends refuse.
        source: where weights come from.
        are_mapped: whether weights that are kept as stored stay in the mapped file.
    """

    def __init__(self, precision: Precision, source: TensorSource, *, are_mapped: bool = False) -> None:
        self._precision = precision
        self._are_mapped = are_mapped
        self._stored = source if isinstance(source, StoredTensorSource) else None

    def choose(self, ref: WeightRef, name: str) -> str:
        """Return the form of the tensor ``name`` of a weight."""
        if ref.use == "vector":
            return "float32"
        if self._precision != "stored" or self._stored is None:
            return "float32" if self._precision == "stored" else self._precision
        if not ref.is_stack:
            return self._form_of(name)
        chosen = {self._form_of(source) for source in ref.sources}
        if len(chosen) == 1:
            return chosen.pop()
        return "Q8_0" if chosen <= BLOCK_FORMATS.keys() else "float32"

    def _form_of(self, name: str) -> str:
        assert self._stored is not None
        stored = self._stored.info(name).dtype
        if stored in BLOCK_FORMATS:
            return stored if stored in BLOCKS_AS_STORED else "Q8_0"
        return _FLOATS.get(stored, "float32")

    def is_stored(self, name: str, form: str) -> bool:
        """Whether ``form`` is what the tensor ``name`` is stored in."""
        if self._precision != "stored" or self._stored is None:
            return False
        stored = self._stored.info(name).dtype
        return form == (stored if stored in BLOCKS_AS_STORED else _FLOATS.get(stored))

    def nbytes(self, ref: WeightRef) -> int:
        """Return the bytes that a weight takes, without scales."""
        return math.prod(ref.shape[:-1]) * _row_bytes(self.choose(ref, ref.sources[0]), ref.shape[-1])

    def cut(self, program: Program) -> Program:
        """Return ``program`` with each linear of several forms cut into one for each run of a form.

        In a mapped file, tensors that do not lie one after the other are cut too, since they are not copied together.
        """
        return replace(program, ops=tuple(part for op in program.ops for part in self._parts(op)))

    def _parts(self, op: Op) -> Iterator[Op]:
        weight, source = op.weights.get("weight"), self._stored
        if weight is None or weight.use != "linear" or len(weight.sources) < 2 or source is None:
            yield op
            return
        widths = [source.info(name).shape[0] for name in weight.sources]
        runs = self._runs(weight.sources, source)

        def kind(part: WeightRef, output: View) -> tuple[str, int]:
            return self.choose(part, part.sources[0]), runs[part.sources[0]]

        yield from cut_linear(op, widths, kind)

    def _runs(self, names: Sequence[str], source: StoredTensorSource) -> dict[str, int]:
        """Return the number of each tensor's run in the file; 0 for all if none stays there."""
        runs = dict.fromkeys(names, 0)
        if not self._are_mapped or self._precision != "stored":
            return runs
        for former, name in pairwise(names):
            runs[name] = runs[former] + (not follows(source, name, former))
        return runs


class GpuWeights:
    """All weights of a program on a device; each once, whatever ops read it.

    Args:
        program: after :meth:`GpuWeightForms.cut`.
        source: where weights come from.
        forms: which form each has.
        device: what keeps them; None to tell sizes only.
        max_binding_bytes: weights above this are cut by rows.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or a value that its form cannot hold.
        DeviceMemoryError: the device has no room.
        UnsupportedError: one row is above ``max_binding_bytes``.
    """

    def __init__(
        self,
        program: Program,
        source: TensorSource,
        forms: GpuWeightForms,
        device: GpuDevice | None,
        max_binding_bytes: int,
    ) -> None:
        self._forms = forms
        self._device = device
        self._limit = max_binding_bytes
        self._kept: dict[tuple[tuple[str, ...], str], ResidentWeight] = {}
        self._sizes: dict[tuple[tuple[str, ...], str], WeightSize] = {}
        for op in program.ops:
            for ref in op.weights.values():
                key = self._key(ref)
                if key in self._sizes:
                    continue
                nbytes = forms.nbytes(ref)
                if key[1] in _SCALED:
                    nbytes += 4 * math.prod(ref.shape[:-1])
                self._sizes[key] = WeightSize(ref.text if ref.is_stack else ", ".join(ref.sources), key[1], nbytes)
                if device is not None:
                    self._kept[key] = self._keep(ref, key[1], source, device)

    def _key(self, ref: WeightRef) -> tuple[tuple[str, ...], str]:
        return ref.sources, self._forms.choose(ref, ref.sources[0])

    def __getitem__(self, ref: WeightRef) -> ResidentWeight:
        return self._kept[self._key(ref)]

    def vector(self, ref: WeightRef) -> GpuBuffer:
        """Return the buffer of a vector."""
        return self[ref].parts[0].buffer

    def sizes(self) -> tuple[WeightSize, ...]:
        """Return what each weight takes."""
        return tuple(self._sizes.values())

    def _keep(self, ref: WeightRef, form: str, source: TensorSource, device: GpuDevice) -> ResidentWeight:
        row_bytes = _row_bytes(form, ref.shape[-1])
        rows = math.prod(ref.shape[:-1]) if len(ref.shape) > 1 else 1
        most = self._limit // max(1, row_bytes)
        if most == 0:
            raise UnsupportedError(f"{ref.text} has rows of {row_bytes} bytes, and this device binds {self._limit}")
        if maps_weights(device):
            mapped = self._map(ref, form, source, device, rows, most)
            if mapped is not None:
                return mapped
        scales: list[ByteArray] = []
        pieces = _pieces(ref, form, source, scales)
        parts = []
        if rows <= most:
            parts.append(WeightPart(upload_pieces(device, rows * row_bytes, pieces), 0, rows))
        else:
            whole = list(pieces)
            for first in range(0, rows, most):
                count = min(most, rows - first)
                parts.append(
                    WeightPart(upload_pieces(device, count * row_bytes, _rows(whole, first, count)), first, count)
                )
        scale_bytes = sum(part.size for part in scales)
        return ResidentWeight(form, tuple(parts), upload_pieces(device, scale_bytes, scales) if scales else None)

    def _map(
        self, ref: WeightRef, form: str, source: TensorSource, device: GpuDevice, rows: int, most: int
    ) -> ResidentWeight | None:
        """Return a weight that stays in the mapped file; None if kernels cannot read it there.

        No page is read for it. A damaged scale is found when the first step's results are not finite.
        """
        matrices = list(ref.matrices())
        names = [name for matrix in matrices for name in matrix.sources]
        if ref.use == "vector" or not all(self._forms.is_stored(name, form) for name in names):
            return None
        assert isinstance(source, StoredTensorSource)
        assert isinstance(device, MappingDevice)
        for matrix in matrices:
            check_shapes(matrix, [source.info(name).shape for name in matrix.sources])
        data = bytes_in_file(source, names, form)
        row_bytes = _row_bytes(form, ref.shape[-1])
        if data is None or data.size != rows * row_bytes:
            return None
        parts = []
        for first in range(0, rows, most):
            count = min(most, rows - first)
            buffer = device.map_bytes(data[first * row_bytes : (first + count) * row_bytes])
            if buffer is None:
                return None
            parts.append(WeightPart(buffer, first, count))
        if form not in _SCALED:
            return ResidentWeight(form, tuple(parts))
        scales = np.concatenate([read_int8(matrix, source).scales for matrix in matrices]).astype(np.float32)
        return ResidentWeight(form, tuple(parts), upload_pieces(device, scales.nbytes, [scales.view(np.uint8)]))


def _pieces(ref: WeightRef, form: str, source: TensorSource, scales: list[ByteArray]) -> Iterator[ByteArray]:
    """Yield the bytes of a weight's rows, those of a stack a matrix at a time.

    ``scales`` gets what stands beside them.
    """
    for matrix in ref.matrices():
        if form in _SCALED:
            integers = read_int8(matrix, source)
            scales.append(np.ascontiguousarray(integers.scales, np.float32).view(np.uint8))
            yield np.ascontiguousarray(integers.integers).view(np.uint8)
        elif form in _FLOAT_BYTES:
            values = narrow(read_float32(matrix, source), form, matrix.sources[0])
            yield np.ascontiguousarray(np.atleast_2d(values)).view(np.uint8)
        else:
            assert isinstance(source, StoredTensorSource)
            check_shapes(matrix, [source.info(name).shape for name in matrix.sources])
            for name in matrix.sources:
                yield _block_rows(source, name, form)
        for name in matrix.sources:
            source.drop_pages(name)


def _row_bytes(form: str, width: int) -> int:
    if form in _FLOAT_BYTES:
        return width * _FLOAT_BYTES[form]
    format = BLOCK_FORMATS[form]
    return width // format.elements * format.nbytes


def _rows(pieces: Sequence[ByteArray], first: int, count: int) -> Iterator[ByteArray]:
    """Yield rows ``first`` to ``first + count`` of pieces that lie one after the other."""
    begin = 0
    for piece in pieces:
        part = piece[max(first - begin, 0) : max(first + count - begin, 0)]
        if len(part):
            yield part
        begin += len(piece)


def upload_pieces(device: GpuDevice, nbytes: int, pieces: Iterable[ByteArray]) -> GpuBuffer:
    """Return a buffer with the bytes of ``pieces``, and a word more that kernels may read.

    Kernels ignore what they read there. Pieces of whole words go up one by one.
    """
    buffer = device.buffer(-(-nbytes // 4) * 4 + 4)
    rest: list[ByteArray] = []
    place = 0
    for piece in pieces:
        rest.append(piece.reshape(-1))
        size = sum(part.size for part in rest)
        if size % 4 == 0:
            device.upload(buffer, rest[0] if len(rest) == 1 else np.concatenate(rest), place)
            place += size
            rest = []
    if rest:
        device.upload(buffer, np.concatenate(rest), place)
    return buffer


def _block_rows(source: StoredTensorSource, name: str, form: str) -> ByteArray:
    """Return a tensor of blocks as the bytes of its rows, in the format ``form``.

    A tensor of another format is requantized.
    """
    stored = source.info(name).dtype
    format = BLOCK_FORMATS[stored]
    blocks = source.array(name)
    _check_scales(blocks, format, name)
    if stored != form:
        from lattice_inference.checkpoint.rounding import quantize_rows

        warnings.warn(
            f"weights in {stored} (the first is {name}) are kept as {form}, which takes more memory",
            RepackedWeightsWarning,
            stacklevel=2,
        )
        flat = np.ascontiguousarray(blocks).reshape(-1).view(format.layout)
        blocks = quantize_rows(dequantize_blocks(flat, format).reshape(len(blocks), -1), form)
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), -1)


def _check_scales(blocks: npt.NDArray[np.generic], format: BlockFormat, name: str) -> None:
    for field in ("scale", "offset", "minimum"):
        if field in (format.layout.names or ()) and not np.isfinite(blocks.view(format.layout)[field]).all():
            raise CheckpointError(f"{name} has a scale that is NaN or infinite: the file is damaged")
