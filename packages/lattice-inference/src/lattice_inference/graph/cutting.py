"""Splits a linear whose weight is several tensors: the opposite of ``Concat``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from lattice_inference.graph.program import Op, View, WeightRef

__all__ = ["cut_linear"]


def cut_linear(op: Op, widths: Sequence[int], kind: Callable[[WeightRef, View], Hashable]) -> Iterator[Op]:
    """Yield ``op``, or a linear for each run of tensors of one kind. Results keep their bits.

    Args:
        op: a linear, fused or not, whose weight has several sources.
        widths: the output columns of each source.
        kind: returns the kind of one source, given as a weight and the output columns that it computes.
    """
    weight = op.weights["weight"]
    starts = [0, *accumulate(widths)]

    def kind_of(index: int) -> Hashable:
        width = widths[index]
        return kind(_sources(weight, [index], width), _columns(op.outputs[0], starts[index], width))

    runs = [list(indices) for _, indices in groupby(range(len(weight.sources)), key=kind_of)]
    if len(runs) == 1:
        yield op
        return
    for run in runs:
        column, width = starts[run[0]], sum(widths[index] for index in run)
        yield replace(
            op,
            inputs=(op.inputs[0], *(_columns(view, column, width) for view in op.inputs[1:])),
            weights={name: _sources(ref, run, width) for name, ref in op.weights.items()},
            outputs=(_columns(op.outputs[0], column, width),),
        )


def _columns(view: View, column: int, width: int) -> View:
    return View(view.buffer, view.column + column, width)


def _sources(ref: WeightRef, run: list[int], width: int) -> WeightRef:
    return replace(
        ref,
        sources=tuple([ref.sources[index] for index in run]),
        shape=(width, *ref.shape[1:]),
        transform="concat" if len(run) > 1 else "none",
    )
