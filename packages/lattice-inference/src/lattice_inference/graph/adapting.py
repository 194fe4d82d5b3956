"""Rewrites a program so that sequences may have adapters: an op ``low_rank`` after each linear that is a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lattice_inference.checkpoint.tensor_rows import parse_rows
from lattice_inference.graph.fusion import ACTIVATIONS
from lattice_inference.graph.program import Buffer, Op, Program, View

__all__ = ["add_low_rank", "linear_sites"]


def linear_sites(program: Program) -> dict[str, tuple[int, int]]:
    """Return the shape of every weight that one linear multiplies by, a whole tensor, by the tensor's name.

    ``program`` is as a model wrote it, before fusion.
    """
    sites: dict[str, tuple[int, int]] = {}
    for op in program.ops:
        if op.kind == "linear":
            weight = op.weights["weight"]
            if len(weight.sources) == 1 and parse_rows(weight.sources[0]) is None:
                sites[weight.sources[0]] = (weight.shape[0], weight.shape[1])
    return sites


def add_low_rank(program: Program, sites: Mapping[str, tuple[int, int]]) -> Program:
    """Return ``program`` with a ``low_rank`` after each linear of ``sites``. Without adapters it means the same.

    A linear that was laid side by side with others has a site for each range of columns. The op stands after bias and
    residual, and before an activation, which becomes an op again.
    """
    ops: list[Op] = []
    for op in program.ops:
        changes = list(_changes(op, sites)) if op.kind.startswith("linear") else []
        if not changes:
            ops.append(op)
            continue
        activation = op.kind.removeprefix("linear_")
        target = op.outputs[0]
        if activation in ACTIVATIONS:
            buffer = Buffer(target.buffer.index, f"{target.buffer.name}.linear", target.rows, target.width)
            target = View(buffer, 0, target.width)
            ops.append(replace(op, kind="linear", outputs=(target,), attributes={}))
        else:
            ops.append(op)
        for site, column, width in changes:
            y = View(target.buffer, target.column + column, width)
            ops.append(Op("low_rank", (y, op.inputs[0]), {}, (y,), {"site": site}))
        if activation in ACTIVATIONS:
            ops.append(Op(activation, (target,), {}, op.outputs, op.attributes))
    return replace(program, ops=tuple(ops))


def _changes(op: Op, sites: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield each site of a linear, and the column and the number of columns of its output that it gives."""
    sources = op.weights["weight"].sources
    if len(sources) > 1 and not all(source in sites for source in sources):
        return  # single rows of a matrix, which is no site
    column = 0
    for source in sources:
        if source in sites:
            yield source, column, sites[source][0]
            column += sites[source][0]
