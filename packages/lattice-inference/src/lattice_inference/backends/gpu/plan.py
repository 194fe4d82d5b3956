"""A program as a device runs it: kernel calls, their records, and the buffers of its steps."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.adapter import GpuAdapter
from lattice_inference.backends.gpu.device import Bindings, Dispatch, GpuBuffer, GpuDevice, Prepared, Reading, Span
from lattice_inference.backends.gpu.kernel_call import NO_PAGES, RecordTemplate
from lattice_inference.backends.gpu.lowering import LoweredProgram
from lattice_inference.backends.gpu.record import RECORD_STRIDE
from lattice_inference.backends.gpu.state import GpuState, KeptStep
from lattice_inference.backends.gpu.step_inputs import StepShape, attention_tiles, step_shape, step_words
from lattice_inference.errors import DeviceMemoryError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.compile import CompiledProgram
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Rows

__all__ = ["GpuPlan", "OutputPart"]

Float32Array = npt.NDArray[np.float32]

_ROWS = (Rows.TOKENS, Rows.SEQUENCES, Rows.LOGIT_ROWS)


class OutputPart(NamedTuple):
    """Where an output lies in what is read of a step."""

    name: str
    rows: int
    width: int
    first_column: int
    columns: int


class _Choices(NamedTuple):
    """What decides the dispatches of a step: equal choices run the same ones."""

    shape: StepShape
    pages: tuple[Bindings, ...]
    slots: tuple[GpuBuffer, ...]
    adapters: tuple[GpuAdapter, ...]


@dataclass
class _Resources:
    """What a plan holds on the device; bindings of a step are made anew when a buffer grows."""

    arena: GpuBuffer | None = None
    words: GpuBuffer | None = None
    records: GpuBuffer | None = None
    step: Bindings | None = None
    kept: weakref.ref[KeptStep] | None = None  # the step whose records these are
    own: KeptStep = field(default_factory=KeptStep)  # of steps without state


class GpuPlan:
    """A compiled program, its weights bound. Not thread-safe: a program's lock orders its steps.

    Steps share one arena, since a device runs them in order.

    Args:
        device: what runs it.
        compiled: the program and its memory plan.
        lowered: its kernel calls.
        frequencies: of each op of angles.
    """

    def __init__(
        self,
        device: GpuDevice,
        compiled: CompiledProgram,
        lowered: LoweredProgram,
        frequencies: Sequence[Float32Array],
    ) -> None:
        self.program = compiled.program
        self._device = device
        self._memory = compiled.memory
        self._lowered = lowered
        self._frequencies = frequencies
        self._template = RecordTemplate(lowered.calls, compiled.memory)
        self._has_attention = any("attention" in op.kind for op in self.program.ops)
        self._empty = device.buffer(16)
        self._weights: tuple[Bindings | None, ...] = tuple(
            None
            if call.weights is None or call.spec is not None
            else device.bind("weights", [buffer or self._empty for buffer in call.weights])
            for call in lowered.calls
        )
        self._no_pages = device.bind("pages", [device.buffer(16), device.buffer(16)])
        self._resources = _Resources()

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept on the device for the activations of later steps."""
        arena = self._resources.arena
        return 0 if arena is None else arena.nbytes

    def trim(self) -> None:
        """Give the memory that steps left behind back to the device."""
        self._resources = _Resources()

    def submit(
        self,
        batch: Batch,
        outputs: Collection[str] | None,
        state: GpuState | None,
        adapters: Sequence[GpuAdapter],
    ) -> tuple[Reading, list[OutputPart]]:
        """Begin a step whose batch was checked."""
        pages: tuple[Bindings, ...] = ()
        slots: tuple[GpuBuffer, ...] = ()
        kv_types: tuple[int, ...] = ()
        page_tokens = 0
        if state is not None:
            if batch.block_table is not None:
                pages = state.bindings(max([int(table.max()) for table in batch.block_table if len(table)], default=0))
            kv_types, page_tokens = state.kv_types, state.page_tokens
            if state.recurrent is not None and batch.read_slots is not None and batch.write_slots is not None:
                slots = state.recurrent.buffers(int(max(batch.read_slots.max(), batch.write_slots.max())))
        used: list[GpuAdapter] = []
        numbers = None
        if adapters and batch.adapter is not None:
            used = [adapters[index] for index in np.unique(batch.adapter).tolist() if index >= 0]
            numbers = np.array([*(adapter.number for adapter in adapters), 0], np.int32)[
                batch.adapter
            ]  # -1 is the last
        tiles = attention_tiles(batch, self._lowered.queries) if self._has_attention else np.zeros((0, 2), np.int32)
        shape = step_shape(batch, tiles, kv_types)
        tables = [
            _angles(batch, frequencies, scale)
            for frequencies, (_, scale) in zip(self._frequencies, self._lowered.angles, strict=True)
        ]
        tables += [] if batch.inputs is None else [batch.inputs[name] for name in self._lowered.given]
        words = step_words(
            batch, tiles, tables, page_tokens=page_tokens, segments=shape.segments, adapter_numbers=numbers
        )
        counts = {rows: shape.count(rows) for rows in _ROWS}
        offsets, slots_bytes = self._memory.offsets(counts)
        scratch_bytes = 4 * max(counts.values()) * max([adapter.most_rank for adapter in used], default=0)
        if shape.is_short:
            scratch_bytes = max(scratch_bytes, 4 * shape.tokens * shape.segments * self._lowered.scratch_width)
        step = self._buffers(shape, slots_bytes + scratch_bytes, words)
        kept = self._resources.own if state is None else state.kept_step(self)
        dispatches = self._choose(_Choices(shape, pages, slots, tuple(used)), kept, offsets, slots_bytes)
        spans, parts = self._spans(outputs, offsets, counts)
        return self._device.submit(step, dispatches, spans), parts

    def _buffers(self, shape: StepShape, arena_bytes: int, words: npt.NDArray[np.uint32]) -> Bindings:
        """Return the bindings of a step, whose words are on their way."""
        resources = self._resources
        arena, step_buffer = resources.arena, resources.words
        needed = max(arena_bytes, ALIGNMENT)
        if needed > self._device.max_binding_bytes:
            raise DeviceMemoryError(
                f"a step of {shape.tokens} tokens needs {needed} bytes for its activations, and the device binds at most "
                f"{self._device.max_binding_bytes}: pass shorter texts, or device='cpu'"
            )
        if arena is None or arena.nbytes < needed:
            arena = self._device.buffer(needed)
        if step_buffer is None or step_buffer.nbytes < words.nbytes:
            step_buffer = self._device.buffer(2 * words.nbytes)
        records = resources.records or self._device.buffer(max(1, len(self._lowered.calls)) * RECORD_STRIDE)
        step = resources.step
        if step is None or (arena, step_buffer) != (resources.arena, resources.words):
            resources.step = step = self._device.bind("step", [arena, step_buffer, records])
            resources.arena, resources.words, resources.records = arena, step_buffer, records
        self._device.upload(step_buffer, words.view(np.uint8))
        return step

    def _choose(self, choices: _Choices, kept: KeptStep, offsets: Sequence[int], slots_bytes: int) -> Prepared:
        """Prepare records and dispatches; those of equal choices are there already."""
        resources = self._resources
        is_present = resources.kept is not None and resources.kept() is kept
        if is_present and choices == kept.choices and kept.dispatches is not None:
            return kept.dispatches
        resources.kept = None  # until all of what follows is done
        shape, pages, slots, adapters = choices
        assert resources.records is not None
        self._device.upload(resources.records, self._template.fill(shape, offsets, slots_bytes))
        dispatches: list[Dispatch] = []
        for index, call in enumerate(self._lowered.calls):
            if call.site is not None and not adapters:
                continue
            launch = call.choose(shape.count(call.rows), shape)
            if launch is None:
                continue
            if call.site is not None:
                for adapter in adapters:
                    dispatches += adapter.dispatches(call.site, launch, index)
                continue
            bindings = self._weights[index]
            if call.spec is not None:
                bindings = self._bound_slots(slots, kept)[index]
            elif call.layer is not None:
                bindings = self._no_pages if call.layer == NO_PAGES else pages[call.layer]
            kernel = self._device.kernel(launch.kernel, launch.constants)
            dispatches.append(Dispatch(kernel, bindings, index, launch.groups))
        kept.choices, kept.dispatches = choices, self._device.prepare(dispatches)
        resources.kept = weakref.ref(kept)
        return kept.dispatches

    def _bound_slots(self, slots: tuple[GpuBuffer, ...], kept: KeptStep) -> dict[int, Bindings]:
        """Return the bindings of each call that has recurrent state, by its number."""
        if kept.slots != slots:
            bound = {}
            for index, call in enumerate(self._lowered.calls):
                if call.spec is not None and call.weights is not None:
                    first, _, second = call.weights
                    buffer = slots[self.program.recurrent_specs.index(call.spec)]
                    bound[index] = self._device.bind("slots", [buffer, first or self._empty, second or self._empty])
            kept.slots, kept.bound = slots, bound
        return kept.bound

    def _spans(
        self, wanted: Collection[str] | None, offsets: Sequence[int], counts: dict[Rows, int]
    ) -> tuple[list[Span], list[OutputPart]]:
        arena = self._resources.arena
        assert arena is not None
        spans, parts = [], []
        for name, view in self.program.outputs.items():
            if wanted is not None and name not in wanted:
                continue
            rows, width = counts[view.rows], view.buffer.width
            if rows:
                spans.append(Span(arena, offsets[self._memory.placement[view.buffer]], 4 * rows * width))
            parts.append(OutputPart(name, rows, width, view.column, view.width))
        return spans, parts


def _angles(batch: Batch, frequencies: Float32Array, scale: float) -> Float32Array:
    """Return cosines and sines of a step's positions, rounded to float32.

    They are computed in float64, which shading languages lack.
    """
    assert batch.positions is not None
    exact = (batch.positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    return np.concatenate([np.cos(exact), np.sin(exact)], axis=1).astype(np.float32) * np.float32(scale)
