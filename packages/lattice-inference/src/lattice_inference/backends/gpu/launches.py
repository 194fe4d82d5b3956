"""What the functions of the lowering share.

That is what holds for a whole program, and how many workgroups a kernel has.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice_inference.backends.gpu.device import sorted_constants
from lattice_inference.backends.gpu.kernel_call import WORKGROUP, Launch
from lattice_inference.backends.gpu.step_inputs import StepShape
from lattice_inference.backends.gpu.weights import GpuWeights
from lattice_inference.graph.program import Program, WeightRef

__all__ = ["Choose", "Lowering", "elements", "groups"]

Choose = Callable[[int, StepShape], Launch | None]
"""From a row count and the shape of a step to what runs; None if nothing does."""

_WIDE_HEAD = 128  # wider heads have tiles of half the rows


class Lowering:
    """What the functions of a lowering are given and collect.

    Attributes:
        angles: for each op of angles so far, its frequencies and its scale.
        angle_tables: how many ops of angles there are.
        few_columns: columns that a workgroup has of a linear of few rows.
        given: names of rows of floats that the caller gives, in order.
        is_encoder: whether kernels of many rows serve always, so that a row has the same bits alone and in company.
        queries: rows of a tile of attention.
        subgroups: 1 where kernels add up over subgroups.
        weights: the weights on the device.
    """

    def __init__(
        self, program: Program, weights: GpuWeights, *, has_subgroups: bool, is_software: bool, few_columns: int
    ) -> None:
        self.weights = weights
        self.few_columns = few_columns
        self.subgroups = int(has_subgroups)
        self.is_encoder = not (program.kv_specs or program.recurrent_specs)
        self.angles: list[tuple[WeightRef, float]] = []
        self.angle_tables = sum(op.kind == "rope_angles" for op in program.ops)
        self.given: list[str] = []
        self.queries = _queries(program, is_software=is_software)


def _queries(program: Program, *, is_software: bool) -> int:
    """Return the rows of a tile of attention, which change no bit.

    A CPU takes twice as long to compile twice as many.
    """
    widths = [int(op.attributes["head_dim"]) for op in program.ops if "attention" in op.kind]
    return 8 if is_software or max(widths, default=0) > _WIDE_HEAD else 16


def groups(count: int, size: int) -> int:
    """Return how many groups of ``size`` hold ``count``."""
    return -(-count // size)


def elements(kernel: str, width: int, **constants: int | str) -> Choose:
    """Return what launches an invocation for each of ``width`` elements of a row."""
    known = sorted_constants(constants)
    return lambda rows, _: Launch(kernel, known, groups(rows * width, WORKGROUP)) if rows else None
