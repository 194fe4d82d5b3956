"""From a model's program to what a backend runs: fused ops and a place for every buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lattice_inference.graph.fusion import Concat, Fusion, fuse
from lattice_inference.graph.memory import MemoryPlan, plan_memory
from lattice_inference.graph.program import Program

__all__ = ["CompiledProgram", "compile_program"]


@dataclass(frozen=True)
class CompiledProgram:
    """A program after fusion, and its memory plan."""

    program: Program
    memory: MemoryPlan


def compile_program(
    program: Program, *, rules: Sequence[Fusion | Concat] = (), in_place: Mapping[str, int] | None = None
) -> CompiledProgram:
    """Fuse ``program`` by ``rules`` and plan its memory; see :mod:`fusion` and :mod:`memory` for both."""
    fused = fuse(program, rules)
    return CompiledProgram(fused, plan_memory(fused, in_place or {}))
