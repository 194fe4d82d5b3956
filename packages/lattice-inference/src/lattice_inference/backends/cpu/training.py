"""Programs for training on the CPU, over one set of resident weights.

Factors and gradients have other memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.batch_checks import refuse_closed, refuse_id, refuse_non_finite
from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.arena import ArenaPool
from lattice_inference.backends.cpu.lowering import IN_PLACE
from lattice_inference.backends.cpu.reverse_lowering import REVERSE_IN_PLACE, REVERSE_LOWERINGS
from lattice_inference.backends.cpu.step_memory import step_memory
from lattice_inference.backends.cpu.step_outputs import calls_of, copy_outputs
from lattice_inference.backends.cpu.step_plan import StepPlan
from lattice_inference.backends.training_protocol import SiteFactors
from lattice_inference.cancellation import check_cancelled
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.memory import pack_memory
from lattice_inference.graph.program import Program
from lattice_inference.graph.training_batch import Dropout, Noise, TrainingBatch

if TYPE_CHECKING:
    from lattice_inference.backends.cpu.weights import ResidentWeights
    from lattice_inference.backends.protocol import Outputs

__all__ = ["CpuFactors", "CpuTraining", "training_plan"]

Float32Array = npt.NDArray[np.float32]

KEPT_BYTES = 1 << 62
"""The arena of a step stays for the next one, however large: a training run needs it again."""


class CpuFactors:
    """Factors and gradients in native memory.

    See :class:`~lattice_inference.backends.training_protocol.Factors`.
    """

    def __init__(self, sizes: Mapping[str, SiteFactors]) -> None:
        self.native = _cpu.TrainedFactors([(size.rank, size.inputs, size.outputs) for size in sizes.values()])
        self._arrays = dict(zip(sizes, self.native.arrays, strict=True))

    def write(self, site: str, a: Float32Array, b: Float32Array) -> None:
        """Set A and B of a site."""
        for own, given in zip(self._arrays[site], (a, b), strict=False):
            if own.shape != given.shape:
                raise InvalidInputError(f"factors of {site} have the shape {given.shape}, not {own.shape}")
            own[:] = given

    def read(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return A and B of a site."""
        a, b, _, _ = self._arrays[site]
        return a.copy(), b.copy()

    def zero_gradients(self) -> None:
        """Set all gradients to 0."""
        self.native.zero_gradients()

    def gradients(self, site: str) -> tuple[Float32Array, Float32Array]:
        """Return dA and dB of a site."""
        _, _, da, db = self._arrays[site]
        return da.copy(), db.copy()


class CpuTraining:
    """Programs that share weights and factors.

    See :class:`~lattice_inference.backends.training_protocol.CompiledTraining`.

    Args:
        plans: the programs by name, ready to run.
        weights: the weights of all of them.
        factors: the factors.
        threads: the most threads of a run; None for all of the process's pool.
    """

    def __init__(
        self, plans: Mapping[str, StepPlan], weights: ResidentWeights, factors: CpuFactors, threads: int | None
    ) -> None:
        self.factors: CpuFactors = factors
        self._plans = dict(plans)
        self._threads = threads
        self._arenas = ArenaPool(keep_bytes=KEPT_BYTES)
        self._fixed = sum(size.nbytes for size in weights.sizes()) + factors.native.nbytes
        self._most = 0

    @property
    def peak_bytes(self) -> int:
        """The most memory that weights, factors and one run have taken together so far."""
        return self._fixed + self._most

    def run(self, name: str, batch: TrainingBatch) -> Outputs:
        """Run the program with this name."""
        if not self._plans:
            refuse_closed()
        plan = self._plans[name]
        native = plan.native
        training = _cpu.StepTraining(
            self.factors.native,
            targets=batch.targets,
            target_weights=batch.target_weights,
            dropout=_dropout(batch.dropout),
            noise=_noise(batch.noise),
        )
        memory = step_memory(plan, batch, self._threads)
        if memory.nbytes > self._arenas.idle_bytes:
            self._arenas.trim()  # the smaller one would never be used again
        arena = self._arenas.take(memory.nbytes)
        self._most = max(self._most, memory.nbytes)
        try:
            step = memory.step(
                batch,
                arena,
                inputs=plan.checked_inputs(batch),
                training=training,
            )
            for first, end in calls_of(len(native)):
                outside = native.run(step, first, end)
                if outside is not None:
                    refuse_id(batch, *outside)
                check_cancelled()
            results = copy_outputs(plan, None, arena, memory.slot_offsets, memory.counts)
        finally:
            self._arenas.give_back(arena)
        refuse_non_finite(results)
        return results

    def close(self) -> None:
        """Release weights, factors and memory for steps."""
        self._plans = {}
        self.factors = CpuFactors({})
        self._arenas.trim()


def _dropout(draws: Dropout | None) -> tuple[int, int, int, float, float] | None:
    return None if draws is None else (draws.seed, draws.step, draws.threshold, float(draws.factor), 0.0)


def _noise(draws: Noise | None) -> tuple[int, int, int, float, float] | None:
    return None if draws is None else (draws.seed, draws.step, 0, 0.0, draws.alpha)


def training_plan(
    program: Program, weights: ResidentWeights, native: _cpu.Plan, sizes: Mapping[str, SiteFactors]
) -> StepPlan:
    """Return one program for training, ready to run with factors of these sizes."""
    native.use_factors({name: (size.rank, size.inputs, size.outputs) for name, size in sizes.items()})
    return StepPlan(program, weights, native, REVERSE_LOWERINGS, {**IN_PLACE, **REVERSE_IN_PLACE}, pack_memory)
