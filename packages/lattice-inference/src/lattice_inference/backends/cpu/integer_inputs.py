"""Rewrites a program for linears that multiply integers: their inputs are quantized once, however many of them read one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, View
from lattice_inference.input_range import InputRange

__all__ = ["IntegerForm", "quantize_inputs"]


@dataclass(frozen=True)
class IntegerForm:
    """What quantizes a row.

    Attributes:
        kind: the op: ``"quantize_rows"``, one scale a row, ``"quantize_blocks"``, one for 32 elements, or
            ``"quantize_block_pairs"``, twice, the second time what rounding left out the first time.
        range: what a calibration fixed for all rows of ``quantize_rows``; without it each row has its own.
    """

    kind: Literal["quantize_rows", "quantize_blocks", "quantize_block_pairs"]
    range: InputRange | None = None

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The attributes of the op."""
        return {} if self.range is None else {"low": self.range.low, "high": self.range.high}


# Norms that write their rows as integers too, where somebody reads their floats besides.
_QUANTIZING = {"layer_norm": "layer_norm_quantized"}


def quantize_inputs(
    program: Program,
    form_of: Callable[[Op], IntegerForm | None],
    row_floats: Mapping[str, Callable[[int], int]],
    *,
    in_norms: bool = True,
) -> Program:
    """Return ``program`` with quantized inputs for its linears.

    A quantized row lies in a buffer like any other, whose width is what it takes in floats. A layer norm quantizes its own
    output while the row is in cache; before other linears a pass of its own does.

    Args:
        program: after fusion.
        form_of: what quantizes the input of a linear, or None for one that takes floats.
        row_floats: for each kind of form, the floats that a row of so many elements takes.
        in_norms: have layer norms quantize their own output; else everything is quantized in passes of their own.
    """
    ops: list[Op] = []
    quantized: dict[tuple[View, IntegerForm], View] = {}
    float_readers = {view.buffer for op in program.ops for view in op.inputs if not _reads_integers(op, view, form_of)}
    float_readers |= {view.buffer for view in program.outputs.values()}
    for op in program.ops:
        form = form_of(op) if op.kind.startswith("linear") else None
        if form is not None:
            x = op.inputs[0]
            if (x, form) not in quantized:
                quantized[x, form] = _integers(x, form, row_floats[form.kind](x.width))
                _append_quantizer(ops, x, form, quantized[x, form], in_norms and x.buffer in float_readers)
            op = replace(op, inputs=(quantized[x, form], *op.inputs[1:]))
            if form.kind == "quantize_block_pairs":
                op = replace(op, kind="linear_pairs")
        ops.append(op)
    return replace(program, ops=tuple(ops))


def _reads_integers(op: Op, view: View, form_of: Callable[[Op], IntegerForm | None]) -> bool:
    """Whether ``op`` reads ``view`` as integers only: as the input of its product, and not as a residual."""
    return op.kind.startswith("linear") and form_of(op) is not None and view not in op.inputs[1:]


def _integers(x: View, form: IntegerForm, floats: int) -> View:
    name = f"{x.buffer.name}[{x.column}:{x.column + x.width}].{form.kind}"
    return View(Buffer(x.buffer.index, name, x.rows, floats), 0, floats)


def _append_quantizer(ops: list[Op], x: View, form: IntegerForm, output: View, in_norm: bool) -> None:
    """Have ``x`` quantized: by the norm that makes it if ``in_norm`` and there is one, else by an op of its own."""
    if form.kind == "quantize_rows" and x.is_whole and in_norm:
        for index, op in enumerate(ops):
            if op.kind in _QUANTIZING and op.outputs == (x,):
                attributes = {**op.attributes, **form.attributes}
                ops[index] = replace(op, kind=_QUANTIZING[op.kind], outputs=(x, output), attributes=attributes)
                return
    ops.append(Op(form.kind, (x,), {}, (output,), form.attributes))
