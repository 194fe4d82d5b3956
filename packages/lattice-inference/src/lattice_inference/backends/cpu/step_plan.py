"""One way to run a program: where its buffers lie, and its ops as the kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.batch_checks import check_inputs, input_shapes
from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.low_rank_groups import join_low_rank
from lattice_inference.backends.cpu.lowering import IN_PLACE, Lowering, lower
from lattice_inference.backends.cpu.weights import ResidentWeights
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.compile import CompiledProgram
from lattice_inference.graph.memory import MemoryPlan, plan_memory
from lattice_inference.graph.program import Program

__all__ = ["StepPlan"]


class StepPlan:
    """A program that is ready to run over resident weights. Several may share one set of them.

    Args:
        program: the program after fusion and the choice of forms.
        weights: its weights.
        native: takes its ops.
        lowerings: of ops that are not of inference.
        in_place: the ops that may write over an input, and which one.
        planner: gives each buffer its place.

    Attributes:
        program: what it runs, fused.
        memory: where its buffers lie.
        native: its ops.
        groups: the sites of each op that adapters add to.
        inputs: rows and width of each of the batch's inputs.
        places_of_outputs: view, kind of rows and slot of each output.
    """

    def __init__(
        self,
        program: Program,
        weights: ResidentWeights,
        native: _cpu.Plan,
        lowerings: Mapping[str, Lowering] | None = None,
        in_place: Mapping[str, int] = IN_PLACE,
        planner: Callable[[Program, Mapping[str, int]], MemoryPlan] = plan_memory,
    ) -> None:
        self.program, self.groups = join_low_rank(program)
        self.memory = planner(self.program, in_place)
        if len(self.memory.slots) > _cpu.MAX_SLOTS:
            raise UnsupportedError(f"the program needs {len(self.memory.slots)} slots, {_cpu.MAX_SLOTS} are possible")
        self.inputs = input_shapes(self.program)
        self.native = native
        self.places_of_outputs = {
            name: (view, view.rows, self.memory.placement[view.buffer]) for name, view in self.program.outputs.items()
        }
        lower(CompiledProgram(self.program, self.memory), weights, native, lowerings)

    def checked_inputs(self, batch: Batch) -> tuple[npt.NDArray[np.float32], ...]:
        """Return the batch's rows for each op that reads an input, in order.

        Raises:
            InvalidInputError: the batch has other inputs than the program reads.
        """
        check_inputs(self.inputs, batch)
        return tuple([batch.inputs[name] for name, _, _ in self.native.inputs_used] if batch.inputs else ())
