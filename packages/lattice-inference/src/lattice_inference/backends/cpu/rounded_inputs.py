"""Rewrites a program for ops that multiply bfloat16.

Rows are rounded once. The op that makes them rounds them if it can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from lattice_inference.graph.program import Buffer, Op, Program, View

__all__ = ["round_inputs"]

_NORMS = frozenset({"layer_norm", "rms_norm"})
_DEPTH = 32  # a row whose width is a multiple of this has no padding


def round_inputs(
    program: Program, takes_rounded: Callable[[Op], int], row_floats: Callable[[int], int], *, in_producers: bool = True
) -> Program:
    """Return ``program`` with rounded rows for the ops that take them.

    Rounded rows lie in a buffer like any other; the buffer's width is a row's size in floats. An op that writes rounded
    rows has the attribute ``rounded_width``, the elements of a row. If all readers take a buffer's rows rounded, its
    producers write rounded rows and no floats. If some readers take floats, a norm writes both. An op ``round_rows``
    rounds everything else.

    Args:
        program: the program after fusion.
        takes_rounded: returns how many of an op's first inputs are to be rounded.
        row_floats: returns the size in floats of a rounded row of so many elements.
        in_producers: have other ops round what they make; otherwise separate passes round everything.
    """
    buffers = _Buffers(program, takes_rounded, in_producers)
    ops: list[Op] = []
    passes: dict[View, View] = {}
    for op in program.ops:
        inputs = list(op.inputs)
        for position in range(takes_rounded(op)):
            x = inputs[position]
            if x.buffer in buffers.rounded:
                inputs[position] = _view(x, row_floats)
                continue
            if x not in passes:
                passes[x] = _whole(f"{x.buffer.name}[{x.column}:{x.column + x.width}]", x, x.width, row_floats)
                ops.append(Op("round_rows", (x,), {}, (passes[x],), {"rounded_width": x.width}))
            inputs[position] = passes[x]
        op = replace(op, inputs=tuple(inputs))
        written = op.outputs[0] if op.outputs else None
        if written is not None and written.buffer in buffers.rounded:
            kept = (written,) if written.buffer in buffers.floats else ()
            attributes = {**op.attributes, "rounded_width": written.width}
            op = replace(op, outputs=(*kept, _view(written, row_floats)), attributes=attributes)
        ops.append(op)
    return replace(program, ops=tuple(ops))


class _Buffers:
    """Which buffers are read as floats, and which their producers write as rounded rows."""

    def __init__(self, program: Program, takes_rounded: Callable[[Op], int], in_producers: bool) -> None:
        wanted: set[Buffer] = set()
        self.floats = {view.buffer for view in program.outputs.values()}
        producers: dict[Buffer, list[Op]] = defaultdict(list)
        for op in program.ops:
            for view in op.outputs:
                producers[view.buffer].append(op)
            for position, view in enumerate(op.inputs):
                (wanted if position < takes_rounded(op) else self.floats).add(view.buffer)
        self.rounded = {
            buffer
            for buffer in wanted
            if in_producers and all(self._can_round(op, buffer, takes_rounded) for op in producers[buffer])
        }

    def _can_round(self, op: Op, buffer: Buffer, takes_rounded: Callable[[Op], int]) -> bool:
        """Whether ``op`` can write ``buffer`` as rounded rows."""
        if len(op.outputs) != 1 or op.outputs[0].width % _DEPTH or op.outputs[0].column % _DEPTH:
            return False
        if op.kind in _NORMS:
            return op.outputs[0].is_whole and op.attributes.get("heads", 1) == 1
        if buffer in self.floats:
            return False
        if op.kind.startswith("linear"):
            return takes_rounded(op) > 0
        if op.kind == "attention":
            return int(op.attributes["head_dim"]) % 16 == 0
        return op.kind == "silu_mul"


def _view(x: View, row_floats: Callable[[int], int]) -> View:
    """Return ``x`` as columns of its buffer's rounded rows."""
    whole = _whole(x.buffer.name, x, x.buffer.width, row_floats)
    return View(whole.buffer, x.column // 2, whole.width if x.is_whole else x.width // 2)


def _whole(name: str, x: View, width: int, row_floats: Callable[[int], int]) -> View:
    floats = row_floats(width)
    return View(Buffer(x.buffer.index, f"{name}.rounded", x.rows, floats), 0, floats)
