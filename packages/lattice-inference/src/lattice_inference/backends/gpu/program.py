"""A program on a GPU: a step is one submission of kernels.

Its results are read when they are waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from lattice_inference.backends.batch_checks import (
    check_adapters,
    check_ids,
    check_inputs,
    check_pages,
    check_slots,
    check_specs,
    check_state,
    id_tables,
    input_shapes,
    refuse_closed,
    refuse_foreign_adapter,
    refuse_foreign_state,
    refuse_non_finite,
)
from lattice_inference.backends.gpu.adapter import GpuAdapter
from lattice_inference.backends.gpu.device import GpuDevice, Reading
from lattice_inference.backends.gpu.plan import GpuPlan, OutputPart
from lattice_inference.backends.gpu.state import GpuState
from lattice_inference.backends.protocol import LowRankFactors, Outputs, PageStorage, PreparedAdapter, WeightSize
from lattice_inference.graph.batch import Batch
from lattice_inference.process_lock import ProcessLock

__all__ = ["GpuPending", "GpuProgram"]

STEP_TOKENS = 512
"""Tokens of a step: enough rows for every multiprocessor."""

SOFTWARE_STEP_TOKENS = 32
"""On a CPU that plays a GPU a step takes long, and a cancellation waits for it."""


class GpuPending:
    """A step that was submitted. Thread-safe."""

    def __init__(self, reading: Reading | None, parts: Sequence[OutputPart]) -> None:
        self._reading = reading
        self._parts = parts
        self._outputs: Outputs | None = None
        self._lock = ProcessLock()

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


class GpuProgram:
    """A program ready to run. Thread-safe: a lock orders submissions.

    Any number of steps may be in flight.

    Args:
        device: what runs it.
        plan: the program without adapters.
        weight_sizes: the size of each weight.
        threads: the most threads that work beside the device may use.
        sites: the shape of each weight that adapters may change, by its tensor's name.
        adapted: makes the plan that has places for adapters.
    """

    def __init__(
        self,
        device: GpuDevice,
        plan: GpuPlan,
        weight_sizes: tuple[WeightSize, ...],
        threads: int | None,
        sites: Mapping[str, tuple[int, int]],
        adapted: Callable[[], GpuPlan],
    ) -> None:
        self.program = plan.program
        self.threads = threads
        self.adapter_sites = sites
        self.step_tokens = SOFTWARE_STEP_TOKENS if device.description.is_software else STEP_TOKENS
        self.weight_sizes = weight_sizes
        self.numerics: str | None = None
        self.device = device.description.kind
        self.device_identity: str | None = device.description.identity
        self._device = device
        self._tables = id_tables(self.program)
        self._inputs = input_shapes(self.program)
        self._plan: GpuPlan | None = plan
        self._adapted: GpuPlan | None = None
        self._compile_adapted: Callable[[], GpuPlan] | None = adapted
        self._prepared = 0
        self._lock = ProcessLock()

    @property
    def arena_bytes(self) -> int:
        """Bytes that are kept on the device for the activations of later steps."""
        return sum(plan.arena_bytes for plan in (self._plan, self._adapted) if plan is not None)

    def prepare_adapter(self, factors: Mapping[str, LowRankFactors]) -> GpuAdapter:
        """Return an adapter for steps of this program; see the protocol ``AdaptingProgram``.

        Raises:
            DeviceMemoryError: the device has no room.
            InvalidInputError: the program is closed.
        """
        with self._lock:
            if self._compile_adapted is None:
                refuse_closed()
            if self._adapted is None:  # the first adapter makes the plan that has places for adapters
                self._adapted = self._compile_adapted()
            self._prepared += 1
            return GpuAdapter(self._device, self, self._prepared, factors)

    def run(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> Outputs:
        """Run a step; see :class:`~lattice_inference.backends.protocol.BackendProgram`."""
        return self.submit(batch, outputs=outputs, state=state, adapters=adapters).wait()

    def submit(
        self,
        batch: Batch,
        *,
        outputs: Collection[str] | None = None,
        state: PageStorage | None = None,
        adapters: Sequence[PreparedAdapter] = (),
    ) -> GpuPending:
        """Begin a step; see :class:`~lattice_inference.backends.protocol.AdaptingProgram`.

        Raises:
            DeviceMemoryError: the device has no room for the step; nothing has changed.
            DeviceLostError: the device is lost.
        """
        with self._lock:
            if self._plan is None:
                refuse_closed()
            plan = self._adapted if adapters else self._plan
            own = [each for each in adapters if isinstance(each, GpuAdapter) and each.owner is self]
            if plan is None or len(own) < len(adapters):
                refuse_foreign_adapter()
            check_state(self.program, batch, has_state=state is not None)
            check_adapters(batch, adapters)
            if self._inputs or batch.inputs is not None:
                check_inputs(self._inputs, batch)
            if state is not None:
                if not isinstance(state, GpuState) or state.device is not self._device:
                    refuse_foreign_state()
                if self.program.kv_specs:
                    check_specs(self.program, state.specs)
                    check_pages(batch, page_tokens=state.page_tokens, pages=state.pages)
                check_slots(self.program, batch, state.recurrent)
            # a device clamps what is out of range and says nothing
            check_ids(batch, self._tables)
            self._device.check()
            return GpuPending(*plan.submit(batch, outputs, state if isinstance(state, GpuState) else None, own))

    def trim(self) -> None:
        """Give the memory that steps left behind back to the device."""
        with self._lock:
            for plan in (self._plan, self._adapted):
                if plan is not None:
                    plan.trim()

    def close(self) -> None:
        """Give the weights back; steps in flight keep them until they end."""
        with self._lock:
            self._plan = self._adapted = self._compile_adapted = None
