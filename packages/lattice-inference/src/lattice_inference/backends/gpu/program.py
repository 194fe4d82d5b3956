"""A program on a GPU: a step is one submission of kernels.

Its results are read when they are waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.batch_checks import (
    check_ids,
    check_inputs,
    check_pages,
    check_specs,
    check_state,
    id_tables,
    refuse_closed,
    refuse_foreign_state,
    refuse_non_finite,
)
from lattice_inference.backends.gpu.device import Bindings, Dispatch, GpuBuffer, GpuDevice, Reading, Span
from lattice_inference.backends.gpu.kernel_call import NO_PAGES, Launch, RecordTemplate
from lattice_inference.backends.gpu.lowering import LoweredProgram
from lattice_inference.backends.gpu.state import GpuState
from lattice_inference.backends.gpu.step_inputs import StepShape, attention_tiles, step_shape, step_words
from lattice_inference.backends.protocol import Outputs, PageStorage, WeightSize
from lattice_inference.errors import DeviceMemoryError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.compile import CompiledProgram
from lattice_inference.graph.memory import ALIGNMENT
from lattice_inference.graph.program import Rows

__all__ = ["GpuPending", "GpuProgram"]

STEP_TOKENS = 512
"""Tokens of a step: enough rows for every multiprocessor."""

SOFTWARE_STEP_TOKENS = 32
"""On a CPU that plays a GPU a step takes long, and a cancellation waits for it."""

Float32Array = npt.NDArray[np.float32]


class _Part(NamedTuple):
    """Where an output lies in what is read of a step."""

    name: str
    rows: int
    width: int
    first_column: int
    columns: int


class GpuPending:
    """A step that was submitted. Thread-safe."""

    def __init__(self, reading: Reading | None, parts: Sequence[_Part]) -> None:
        self._reading = reading
        self._parts = parts
        self._outputs: Outputs | None = None
        self._lock = threading.Lock()

    def wait(self) -> Outputs:
        """Return the outputs; see :class:`~lattice_inference.backends.protocol.Pending`."""
        with self._lock:
            if self._outputs is None:
                self._outputs = self._read()
                self._reading = None
        refuse_non_finite(self._outputs)
        return self._outputs

    def _read(self) -> Outputs:
        floats = np.empty(0, np.float32) if self._reading is None else self._reading.wait().view(np.float32)
        outputs = {}
        begin = 0
        for part in self._parts:
            whole = floats[begin : begin + part.rows * part.width].reshape(part.rows, part.width)
            outputs[part.name] = whole[:, part.first_column : part.first_column + part.columns].copy()
            begin += whole.size
        return outputs


@dataclass
class _Resources:
    """What a program holds on the device; bindings of a step are made anew when a buffer grows."""

    weights: tuple[Bindings | None, ...]
    no_pages: Bindings
    arena: GpuBuffer | None = None
    words: GpuBuffer | None = None
    records: GpuBuffer | None = None
    step: Bindings | None = None
    shape: StepShape | None = None  # of the records and dispatches below
    dispatches: tuple[Dispatch, ...] = ()
    pages: tuple[Bindings, ...] = ()  # that the dispatches name


class GpuProgram:
    """A program ready to run. Thread-safe: a lock orders submissions.

    Any number of steps may be in flight.

    Steps share one arena, since a device runs them in order.
    """

    def __init__(
        self,
        device: GpuDevice,
        compiled: CompiledProgram,
        lowered: LoweredProgram,
        frequencies: Sequence[Float32Array],
        weight_sizes: tuple[WeightSize, ...],
        threads: int | None,
    ) -> None:
        self.program = compiled.program
        self.threads = threads
        self.step_tokens = SOFTWARE_STEP_TOKENS if device.description.is_software else STEP_TOKENS
        self.weight_sizes = weight_sizes
        self.numerics: str | None = None
        self.device = device.description.kind
        self.device_identity: str | None = device.description.identity
        self._device = device
        self._memory = compiled.memory
        self._lowered = lowered
        self._frequencies = frequencies
        self._template = RecordTemplate(lowered.calls, compiled.memory)
        self._tables = id_tables(self.program)
        self._has_attention = any("attention" in op.kind for op in self.program.ops)
        empty = device.buffer(16)
        self._resources: _Resources | None = _Resources(
            tuple(
                None
                if call.weights is None
                else device.bind("weights", [empty if buffer is None else buffer for buffer in call.weights])
                for call in lowered.calls
            ),
            device.bind("pages", [device.buffer(16), device.buffer(16)]),
        )
        self._lock = threading.Lock()

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept on the device for the activations of later steps."""
        resources = self._resources
        return 0 if resources is None or resources.arena is None else resources.arena.nbytes

    def run(self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None) -> Outputs:
        """Run a step; see :class:`~lattice_inference.backends.protocol.BackendProgram`."""
        return self.submit(batch, outputs=outputs, state=state).wait()

    def submit(
        self, batch: Batch, *, outputs: Collection[str] | None = None, state: PageStorage | None = None
    ) -> GpuPending:
        """Begin a step; see :class:`~lattice_inference.backends.protocol.BackendProgram`.

        Raises:
            DeviceMemoryError: the device has no room for the step; nothing has changed.
            DeviceLostError: the device is lost.
        """
        with self._lock:
            resources = self._resources
            if resources is None:
                refuse_closed()
            check_state(self.program, batch, has_state=state is not None)
            pages: tuple[Bindings, ...] = ()
            kv_types: tuple[int, ...] = ()
            page_tokens = 0
            if state is not None:
                if not isinstance(state, GpuState) or state.device is not self._device:
                    refuse_foreign_state()
                check_specs(self.program, state.specs)
                check_pages(batch, page_tokens=state.page_tokens, pages=state.pages)
            # a device clamps what is out of range and says nothing
            check_ids(batch, self._tables)
            if batch.inputs is not None:
                check_inputs({}, batch)  # no kernel reads inputs
            self._device.check()
            if isinstance(state, GpuState):
                assert batch.block_table is not None
                pages = state.bindings(max(int(table.max()) for table in batch.block_table))
                kv_types, page_tokens = state.kv_types, state.page_tokens
            tiles = attention_tiles(batch, self._lowered.queries) if self._has_attention else np.zeros((0, 2), np.int32)
            shape = step_shape(batch, tiles, kv_types)
            angles = [
                _angles(batch, frequencies, scale)
                for frequencies, (_, scale) in zip(self._frequencies, self._lowered.angles, strict=True)
            ]
            words = step_words(batch, tiles, angles, page_tokens=page_tokens, segments=shape.segments)
            counts = {rows: shape.count(rows) for rows in (Rows.TOKENS, Rows.SEQUENCES, Rows.LOGIT_ROWS)}
            offsets, slots_bytes = self._memory.offsets(counts)
            self._prepare(resources, shape, offsets, slots_bytes, words, pages)
            spans, parts = self._spans(resources, outputs, offsets, counts)
            assert resources.step is not None
            reading = self._device.submit(resources.step, resources.dispatches, spans)
        return GpuPending(reading, parts)

    def trim(self) -> None:
        """Give the memory that steps left behind back to the device."""
        with self._lock:
            if self._resources is not None:
                self._resources = _Resources(self._resources.weights, self._resources.no_pages)

    def close(self) -> None:
        """Give the weights back; steps in flight keep them until they end."""
        with self._lock:
            self._resources = None

    def _prepare(
        self,
        resources: _Resources,
        shape: StepShape,
        offsets: Sequence[int],
        slots_bytes: int,
        words: npt.NDArray[np.uint32],
        pages: tuple[Bindings, ...],
    ) -> None:
        """Give the device what the step reads.

        Records and dispatches of a step of the same shape are there already.
        """
        scratch_bytes = 0
        if shape.is_short:
            scratch_bytes = 4 * shape.tokens * shape.segments * self._lowered.scratch_width
        arena, step_buffer = resources.arena, resources.words
        needed = max(slots_bytes + scratch_bytes, ALIGNMENT)
        if needed > self._device.max_binding_bytes:
            raise DeviceMemoryError(
                f"a step of {shape.tokens} tokens needs {needed} bytes for its activations, and the device binds at most "
                f"{self._device.max_binding_bytes}: pass shorter texts, or device='cpu'"
            )
        if arena is None or arena.nbytes < needed:
            arena = self._device.buffer(needed)
        if step_buffer is None or step_buffer.nbytes < words.nbytes:
            step_buffer = self._device.buffer(2 * words.nbytes)
        records = resources.records or self._device.buffer(max(1, len(self._lowered.calls)) * 256)
        if (arena, step_buffer, records) != (resources.arena, resources.words, resources.records):
            resources.step = self._device.bind("step", [arena, step_buffer, records])
            resources.arena, resources.words, resources.records = arena, step_buffer, records
        self._device.upload(step_buffer, words.view(np.uint8))
        if shape == resources.shape and pages == resources.pages:
            return
        resources.shape = None  # until all of what follows is done
        self._device.upload(records, self._template.fill(shape, offsets, slots_bytes))
        dispatches = []
        for index, call in enumerate(self._lowered.calls):
            launch: Launch | None = call.choose(shape.count(call.rows), shape)
            if launch is not None:
                kernel = self._device.kernel(launch.kernel, launch.constants)
                bindings = resources.weights[index]
                if call.layer is not None:
                    bindings = resources.no_pages if call.layer == NO_PAGES else pages[call.layer]
                dispatches.append(Dispatch(kernel, bindings, index, launch.groups))
        resources.dispatches, resources.pages, resources.shape = tuple(dispatches), pages, shape

    def _spans(
        self, resources: _Resources, wanted: Collection[str] | None, offsets: Sequence[int], counts: dict[Rows, int]
    ) -> tuple[list[Span], list[_Part]]:
        assert resources.arena is not None
        spans, parts = [], []
        for name, view in self.program.outputs.items():
            if wanted is not None and name not in wanted:
                continue
            rows, width = counts[view.rows], view.buffer.width
            if rows:
                spans.append(Span(resources.arena, offsets[self._memory.placement[view.buffer]], 4 * rows * width))
            parts.append(_Part(name, rows, width, view.column, view.width))
        return spans, parts


def _angles(batch: Batch, frequencies: Float32Array, scale: float) -> Float32Array:
    """Return cosines and sines of a step's positions, rounded to float32.

    They are computed in float64, which shading languages lack.
    """
    assert batch.positions is not None
    exact = (batch.positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    return np.concatenate([np.cos(exact), np.sin(exact)], axis=1).astype(np.float32) * np.float32(scale)
