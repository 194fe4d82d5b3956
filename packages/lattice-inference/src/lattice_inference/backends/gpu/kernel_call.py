"""A kernel call as the lowering makes it.

It holds what is known when a program is compiled, and how a step completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.device import Constants, GpuBuffer
from lattice_inference.backends.gpu.record import RECORD, RECORD_STRIDE, VIEW_FIELDS
from lattice_inference.backends.gpu.step_inputs import StepShape
from lattice_inference.graph.memory import MemoryPlan
from lattice_inference.graph.program import RecurrentSpec, Rows, View

__all__ = ["NO_PAGES", "WORKGROUP", "KernelCall", "Launch", "RecordTemplate"]

NO_PAGES = -1

WORKGROUP = 64
"""Invocations of a workgroup, in every kernel."""


class Launch(NamedTuple):
    """Which kernel a step runs for a call, specialised for what, in how many workgroups."""

    kernel: str
    constants: Constants
    groups: int


@dataclass(frozen=True)
class KernelCall:
    """One kernel call.

    Attributes:
        rows: what its result has a row for.
        views: the views of its record, by field.
        choose: from the row count and the shape of a step to what runs; None if nothing does.
        record: the other fields of its record.
        weights: what the kernel is given of weights: weight, scales, bias.
        spec: whose slots it is given, beside the first and the last of ``weights``; or None.
        site: for what an adapter adds: the site; its launch has a group a row, and the adapter says what runs.
        layer: whose keys and values it is given; NO_PAGES for a kernel that can read pages and is given none; or None.
    """

    rows: Rows
    views: Mapping[str, View]
    choose: Callable[[int, StepShape], Launch | None]
    record: Mapping[str, int | float] = field(default_factory=dict)
    weights: tuple[GpuBuffer | None, GpuBuffer | None, GpuBuffer | None] | None = None
    layer: int | None = None
    spec: RecurrentSpec | None = None
    site: str | None = None


class RecordTemplate:
    """The records of a program's calls: filled for a step from row counts in a few assignments."""

    def __init__(self, calls: Sequence[KernelCall], memory: MemoryPlan) -> None:
        fields: list[Any] = [(name, RECORD[name]) for name in RECORD.names or ()]
        stride = np.dtype([*fields, ("padding", f"V{RECORD_STRIDE - RECORD.itemsize}")])
        self._records: npt.NDArray[Any] = np.zeros(len(calls), stride)
        for index, call in enumerate(calls):
            for field_name, value in call.record.items():
                self._records[field_name][index] = value
            for field_name, view in call.views.items():
                self._records[f"{field_name}_stride"][index] = view.buffer.width
        self._places = {
            name: (
                np.array([index for index, call in enumerate(calls) if name in call.views], np.intp),
                np.array([memory.placement[call.views[name].buffer] for call in calls if name in call.views], np.intp),
                np.array([call.views[name].column for call in calls if name in call.views], np.int64),
            )
            for name in VIEW_FIELDS
        }
        self._rows = [call.rows for call in calls]

    def fill(self, shape: StepShape, offsets: Sequence[int], scratch: int) -> npt.NDArray[np.uint8]:
        """Return a step's records as bytes; ``offsets`` of the slots and ``scratch`` are in bytes."""
        records = self._records
        starts = np.array(offsets, np.int64) // 4
        for name, (calls, slots, columns) in self._places.items():
            if len(calls):
                records[name][calls] = starts[slots] + columns
        counts = {rows: shape.count(rows) for rows in set(self._rows)}
        records["rows"] = [counts[rows] for rows in self._rows]
        records["scratch"] = scratch // 4
        return records.view(np.uint8).copy()
