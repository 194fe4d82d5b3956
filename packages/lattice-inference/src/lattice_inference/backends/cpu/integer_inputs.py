"""Rewrites a program for linears that multiply integers.

Each input is quantized once, even if several linears read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lattice_inference.backends.cpu.forms.input_rows import InputRows, IntegerRows
from lattice_inference.graph.program import Buffer, Op, Program, View

__all__ = ["quantize_inputs"]


def quantize_inputs(
    program: Program,
    rows_of: Callable[[Op], InputRows],
    *,
    in_norms: bool = True,
) -> Program:
    """Return ``program`` with quantized inputs for its linears.

    Quantized rows lie in a buffer like any other; the buffer's width is a row's size in floats. A layer norm quantizes its
    output while the row is in cache. A separate pass quantizes other inputs.

    Args:
        program: the program after fusion.
        rows_of: returns the rows that a linear takes.
        in_norms: have layer norms quantize their output; otherwise separate passes quantize everything.
    """
    ops: list[Op] = []
    quantized: dict[tuple[View, IntegerRows], View] = {}
    float_readers = {view.buffer for op in program.ops for view in op.inputs if not _reads_integers(op, view, rows_of)}
    float_readers |= {view.buffer for view in program.outputs.values()}
    for op in program.ops:
        rows = rows_of(op) if op.kind.startswith("linear") else None
        if isinstance(rows, IntegerRows):
            x = op.inputs[0]
            if (x, rows) not in quantized:
                quantized[x, rows] = _integers(x, rows)
                _append_quantizer(ops, x, rows, quantized[x, rows], in_norms and x.buffer in float_readers)
            op = replace(op, kind=rows.linear or op.kind, inputs=(quantized[x, rows], *op.inputs[1:]))
        ops.append(op)
    return replace(program, ops=tuple(ops))


def _reads_integers(op: Op, view: View, rows_of: Callable[[Op], InputRows]) -> bool:
    """Whether ``op`` reads ``view`` only as integers: as its product's input, not a residual."""
    return op.kind.startswith("linear") and isinstance(rows_of(op), IntegerRows) and view not in op.inputs[1:]


def _integers(x: View, rows: IntegerRows) -> View:
    floats = rows.floats(x.width)
    name = f"{x.buffer.name}[{x.column}:{x.column + x.width}].{rows.kind}"
    return View(Buffer(x.buffer.index, name, x.rows, floats), 0, floats)


def _append_quantizer(ops: list[Op], x: View, rows: IntegerRows, output: View, in_norm: bool) -> None:
    """Have ``x`` quantized by the norm that makes it, or by a new op.

    The norm does it if ``in_norm`` is true and a norm makes ``x``.
    """
    if x.is_whole and in_norm:
        for index, op in enumerate(ops):
            kind = rows.in_norm(op.kind)
            if kind is not None and op.outputs == (x,):
                attributes = {**op.attributes, **rows.attributes}
                ops[index] = replace(op, kind=kind, outputs=(x, output), attributes=attributes)
                return
    ops.append(Op(rows.kind, (x,), {}, (output,), rows.attributes))
