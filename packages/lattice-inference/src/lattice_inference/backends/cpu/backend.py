"""Compiles programs for the CPU and runs them: weights packed once, a step as one call without the GIL."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.arena import ArenaPool
from lattice_inference.backends.cpu.lowering import IN_PLACE, RULES, lower
from lattice_inference.errors import CheckpointError, InvalidInputError, NonFiniteError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.compile import CompiledProgram, compile_program
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Program, Rows, WeightRef

__all__ = ["CpuBackend", "CpuProgram", "TensorSource"]

Float32Array = npt.NDArray[np.float32]


class TensorSource(Protocol):
    """Where weights come from: a checkpoint, or anything that can hand out named float32 tensors."""

    def float32(self, name: str) -> Float32Array:
        """Return a tensor as a new C-contiguous float32 array."""
        ...

    def drop_pages(self, name: str) -> None:
        """Let go of what the tensor's file holds in memory: it has been packed."""
        ...


class CpuBackend:
    """Runs programs on this machine's CPU.

    Args:
        isa: ``"baseline"``, ``"avx2"``, ``"avx512"`` or ``"neon"``; by default ``LATTICE_ISA``, else the best level here.
        fused: apply the fusions. They change no bit of a result; without them each op of the model is a pass of its own.
        threads: the most threads a step may use; by default all of the process's pool.
    """

    def __init__(self, *, isa: str | None = None, fused: bool = True, threads: int | None = None) -> None:
        self.isa = _cpu.select_isa(isa)
        self.fused = fused
        self.threads = threads

    def compile(self, program: Program, source: TensorSource) -> CpuProgram:
        """Return ``program`` ready to run, its weights read from ``source`` and packed.

        Raises:
            CheckpointError: a tensor is missing or has another shape than the program says.
        """
        compiled = compile_program(program, rules=RULES if self.fused else (), in_place=IN_PLACE)
        if len(compiled.memory.slots) > _cpu.MAX_SLOTS:
            raise UnsupportedError(
                f"the program needs {len(compiled.memory.slots)} slots, {_cpu.MAX_SLOTS} are possible"
            )
        return CpuProgram(compiled, ResidentWeights(compiled.program, source), self.isa, self.threads)


class ResidentWeights:
    """The one form that each weight of a program is kept in: panels, rows, or a vector."""

    def __init__(self, program: Program, source: TensorSource) -> None:
        refs = list(dict.fromkeys(ref for op in program.ops for ref in op.weights.values()))
        self._panels: dict[WeightRef, int] = {}
        total = 0
        for ref in refs:
            if ref.use == "linear":
                self._panels[ref] = total
                total += _panel_bytes(ref)
        self.memory = _cpu.Memory(total, huge_pages=total >= 4 << 20)
        self._arrays: dict[WeightRef, Float32Array] = {}
        for ref in refs:
            if ref in self._panels:
                _cpu.pack_panels(_gather(ref, source), self.memory, self._panels[ref])
            else:
                self._arrays[ref] = _gather(ref, source)
            for name in ref.sources:
                source.drop_pages(name)

    def __getitem__(self, ref: WeightRef) -> Float32Array | tuple[_cpu.Memory, int]:
        """Return the panels' memory and byte offset of a linear weight, or the array of another."""
        if ref in self._panels:
            return self.memory, self._panels[ref]
        return self._arrays[ref]

    def array(self, ref: WeightRef) -> Float32Array:
        """Return a weight that is not packed."""
        return self._arrays[ref]


def _panel_bytes(ref: WeightRef) -> int:
    columns, depth = ref.shape
    nbytes = 4 * depth * -(-columns // _cpu.PANEL) * _cpu.PANEL
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _gather(ref: WeightRef, source: TensorSource) -> Float32Array:
    tensors = [source.float32(name) for name in ref.sources]
    if any(tensor.shape[1:] != ref.shape[1:] for tensor in tensors) or sum(len(t) for t in tensors) != ref.shape[0]:
        names = " + ".join(f"{name} {tensor.shape}" for name, tensor in zip(ref.sources, tensors, strict=True))
        raise CheckpointError(f"the model needs a tensor of shape {ref.shape}, the checkpoint has {names}")
    return np.ascontiguousarray(tensors[0] if len(tensors) == 1 else np.concatenate(tensors))


class CpuProgram:
    """A program ready to run. Thread-safe: concurrent runs take turns on the pool and have memory of their own."""

    def __init__(self, compiled: CompiledProgram, weights: ResidentWeights, isa: str, threads: int | None) -> None:
        self.program = compiled.program
        self._memory = compiled.memory
        self._threads = threads
        self._arenas = ArenaPool()
        self._plan = _cpu.Plan(isa)
        lower(compiled, weights, self._plan)

    def run(self, batch: Batch, *, outputs: Collection[str] | None = None) -> dict[str, Float32Array]:
        """Return the named outputs of the program (all of them by default) for ``batch``, in new arrays.

        Raises:
            InvalidInputError: an id lies outside its table, or the batch carries state that the program has not.
            NonFiniteError: an output holds NaN or infinity; its ``rows`` are rows of that output.
        """
        if batch.carries_state:
            raise InvalidInputError(
                "this program keeps no state: pages, slots, adapters and logit rows have no meaning"
            )
        counts = {Rows.TOKENS: batch.tokens, Rows.SEQUENCES: batch.sequences}
        offsets, slots_bytes = self._memory.offsets(counts)
        threads = min(_cpu.get_num_threads(), self._threads or _cpu.get_num_threads())
        scratch_bytes = self._plan.scratch_bytes(batch.max_seqlen)
        arena = self._arenas.take(slots_bytes + threads * scratch_bytes)
        try:
            outside = self._plan.run(
                batch.token_ids,
                _required(batch.token_type_ids),
                _required(batch.positions),
                batch.cu_seqlens,
                batch.max_seqlen,
                arena,
                offsets,
                slots_bytes,
                scratch_bytes,
                threads,
            )
            if outside is not None:
                self._refuse_id(batch, *outside)
            results = self._copy_outputs(outputs, arena, offsets, counts)
        finally:
            self._arenas.give_back(arena)
        _refuse_non_finite(results)
        return results

    def _copy_outputs(
        self, wanted: Collection[str] | None, arena: _cpu.Memory, offsets: Sequence[int], counts: Mapping[Rows, int]
    ) -> dict[str, Float32Array]:
        outputs = {}
        for name, view in self.program.outputs.items():
            if wanted is not None and name not in wanted:
                continue
            rows, width = counts[view.rows], view.buffer.width
            offset = offsets[self._memory.placement[view.buffer]]
            whole = np.frombuffer(memoryview(arena), np.float32, rows * width, offset).reshape(rows, width)
            outputs[name] = whole[:, view.column : view.column + view.width].copy()
        return outputs

    @staticmethod
    def _refuse_id(batch: Batch, which: int, row: int) -> None:
        name = ("token_ids", "token_type_ids", "positions")[which]
        sequence = int(np.searchsorted(batch.cu_seqlens, row, side="right")) - 1
        value = int(getattr(batch, name)[row])
        raise InvalidInputError(f"{name} of sequence {sequence} holds {value}, which the model's table has no row for")


def _required(array: npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32]:
    assert array is not None  # Batch fills it in
    return array


def _refuse_non_finite(outputs: Mapping[str, Float32Array]) -> None:
    for name, array in outputs.items():
        # the sum is finite when every element is, unless it overflows: then each row is looked at
        if not math.isfinite(float(array.sum(dtype=np.float64))):
            bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
            if len(bad):
                raise NonFiniteError(
                    f"output {name!r} holds NaN or infinity in rows {bad[:8].tolist()}: the weights are damaged or the "
                    "computation overflowed",
                    tuple(bad.tolist()),
                )
