"""The calls that a step is run in, and what it gives: copies of a program's outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.step_plan import StepPlan
from lattice_inference.graph.program import Rows

__all__ = ["calls_of", "copy_outputs"]

OPS_OF_A_CALL = 8
"""Ops of a long step that run between two checks for interrupts: about half a layer."""


def copy_outputs(
    plan: StepPlan,
    wanted: Collection[str] | None,
    arena: _cpu.Memory,
    offsets: Sequence[int],
    counts: Mapping[Rows, int],
) -> dict[str, npt.NDArray[np.float32]]:
    """Return new arrays with the outputs of a plan, or with those that are wanted."""
    outputs = {}
    for name, (view, kind, slot) in plan.places_of_outputs.items():
        if wanted is not None and name not in wanted:
            continue
        rows, width = counts[kind], view.buffer.width
        whole = np.frombuffer(memoryview(arena), np.float32, rows * width, offsets[slot]).reshape(rows, width)
        outputs[name] = whole[:, view.column : view.column + view.width].copy()
    return outputs


def calls_of(ops: int) -> Sequence[tuple[int, int | None]]:
    """Return the first and end op of each call of a long step, a few ops a call.

    A step is long if it has more than ``step_tokens`` tokens. Interrupts are answered between calls, and the step loses
    no work.
    """
    return [(first, min(first + OPS_OF_A_CALL, ops)) for first in range(0, ops, OPS_OF_A_CALL)]
