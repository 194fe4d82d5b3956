"""Compiles a model's program for a backend: fuses ops and plans the memory of buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    program: Program,
    *,
    rules: Sequence[Fusion | Concat] = (),
    rewrite: Callable[[Program], Program] | None = None,
    in_place: Mapping[str, int] | None = None,
) -> CompiledProgram:
    """Fuse ``program`` by ``rules`` and plan its memory.

    See :mod:`~lattice_inference.graph.fusion` and :mod:`~lattice_inference.graph.memory`. ``rewrite`` is applied to the
    fused program; it may add ops that only the backend knows.
    """
    fused = fuse(program, rules)
    if rewrite is not None:
        fused = rewrite(fused)
    return CompiledProgram(fused, plan_memory(fused, in_place or {}))
