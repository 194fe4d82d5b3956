"""Rewrites a program so that sequences may have adapters.

An op ``low_rank`` follows each linear that is a site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lattice_inference.checkpoint.tensor_rows import parse_rows
from lattice_inference.graph.fusion import ACTIVATIONS
from lattice_inference.graph.program import Buffer, Op, Program, View, WeightRef

__all__ = ["add_low_rank", "linear_sites"]


def linear_sites(program: Program) -> dict[str, tuple[int, int]]:
    """Return the shape of every weight that one linear multiplies by, by the tensor's name.

    Such a weight is a whole tensor, or runs of rows of one tensor. Each run is then a site.

    ``program`` is as a model wrote it, before fusion.
    """
    sites: dict[str, tuple[int, int]] = {}
    for op in program.ops:
        if op.kind == "linear":
            weight = op.weights["weight"]
            if len(weight.sources) == 1 and parse_rows(weight.sources[0]) is None:
                sites[weight.sources[0]] = (weight.shape[0], weight.shape[1])
            else:
                sites |= _runs_of_rows(weight)
    return sites


def _runs_of_rows(weight: WeightRef) -> dict[str, tuple[int, int]]:
    """Return the shape of each run of rows of a weight that one tensor gives.

    Single rows are no run.
    """
    runs = {source: rows for source in weight.sources if (rows := parse_rows(source)) is not None}
    is_one = len(runs) == len(weight.sources) and len({rows.tensor for rows in runs.values()}) == 1
    if not is_one or any(rows.end - rows.first < 2 for rows in runs.values()):
        return {}
    return {source: (rows.end - rows.first, weight.shape[1]) for source, rows in runs.items()}


def add_low_rank(program: Program, sites: Mapping[str, tuple[int, int]]) -> Program:
    """Return ``program`` with a ``low_rank`` for each linear of ``sites``.

    Without adapters it means the same.

    ``program`` may be fused. A linear that was laid side by side with others has a site for each range of columns. The op
    stands after bias and residual, and before an activation, which becomes an op again; fused or not, the bits are the same.
    """
    to_residual = _read_by_one_sum(program)
    ops: list[Op] = []
    waiting: dict[Buffer, Op] = {}  # linears whose residual is still to come
    for op in program.ops:
        if op.kind == "add":
            summed = [view.buffer for view in op.inputs if view.buffer in waiting]
            for buffer in summed[1:]:  # fusion, too, takes the first
                ops += _low_rank(waiting.pop(buffer), sites)
            ops.append(op)
            if summed:
                ops += _low_rank(replace(waiting.pop(summed[0]), outputs=op.outputs), sites)
            continue
        changes = op.kind.startswith("linear") and any(True for _ in _changes(op, sites))
        activation = op.kind.removeprefix("linear_")
        if not changes:
            ops.append(op)
        elif activation in ACTIVATIONS:
            target = op.outputs[0]
            buffer = Buffer(target.buffer.index, f"{target.buffer.name}.linear", target.rows, target.width)
            before = View(buffer, 0, target.width)
            ops.append(replace(op, kind="linear", outputs=(before,), attributes={}))
            ops += _low_rank(ops[-1], sites)
            ops.append(Op(activation, (before,), {}, op.outputs, op.attributes))
        else:
            ops.append(op)
            if op.kind == "linear" and op.outputs[0].buffer in to_residual:
                waiting[op.outputs[0].buffer] = op
            else:
                ops += _low_rank(op, sites)
    return replace(program, ops=tuple(ops))


def _read_by_one_sum(program: Program) -> set[Buffer]:
    """Return the buffers that are read as a whole by one ``add``, and by nothing else."""
    readers: dict[Buffer, list[str]] = {}
    for op in program.ops:
        for view in op.inputs:
            readers.setdefault(view.buffer, []).append(op.kind if view.is_whole else "part")
    results = {view.buffer for view in program.outputs.values()}
    return {buffer for buffer, kinds in readers.items() if kinds == ["add"]} - results


def _low_rank(linear: Op, sites: Mapping[str, tuple[int, int]]) -> Iterator[Op]:
    """Yield what changes the output of a linear, a site after the other."""
    target = linear.outputs[0]
    for site, column, width in _changes(linear, sites):
        y = View(target.buffer, target.column + column, width)
        yield Op("low_rank", (y, linear.inputs[0]), {}, (y,), {"site": site})


def _changes(op: Op, sites: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield each site of a linear, with the first column and the number of columns it gives."""
    sources = op.weights["weight"].sources
    if len(sources) > 1 and not all(source in sites for source in sources):
        return  # single rows of a matrix, which is no site
    column = 0
    for source in sources:
        if source in sites:
            yield source, column, sites[source][0]
            column += sites[source][0]
