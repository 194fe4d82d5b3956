"""The logistic function of a few numbers, by the kernels' exponential."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu

__all__ = ["sigmoid"]


def sigmoid(x: npt.NDArray[np.float32], *, isa: str | None = None) -> npt.NDArray[np.float32]:
    """Return 1 / (1 + exp(-x)) in float32, the same bits on every instruction set with FMA.

    NumPy's own exponential differs between machines in the last bit. Far below zero the result keeps its relative
    precision, so that scores of poor matches still rank.

    Args:
        x: any shape.
        isa: the instruction set whose exponential is used; by default ``LATTICE_ISA``, else the best level here.
    """
    return np.asarray(1 / (1 + _cpu.elementwise("exp", np.ascontiguousarray(-x), isa=_cpu.select_isa(isa))), np.float32)
