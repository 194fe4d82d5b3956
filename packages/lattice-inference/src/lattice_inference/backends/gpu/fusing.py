"""Fusions that save a GPU a launch, beyond the CPU's. They change no byte of a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lattice_inference.graph.program import Buffer, Op, Program, WeightRef

__all__ = ["GATED_LINEAR", "ROTATED_WRITE", "join_gates", "join_rope_and_write"]

ROTATED_WRITE = "rope_kv_write"
"""``kv_write`` of keys that it rotates: inputs are the keys before ``rope``, the values and the angles."""

GATED_LINEAR = "linear_silu_mul"
"""A linear whose outputs are gates and, in its second half, what they let through: it gives silu(gate) * up."""


def join_gates(program: Program, suits: Callable[[WeightRef], bool]) -> Program:
    """Return ``program`` with ``silu_mul`` of a linear's two halves joined to that linear.

    ``suits`` says whether a weight is kept in one piece.
    """
    readers = _readers(program)
    writers: dict[Buffer, list[Op]] = {}
    for op in program.ops:
        for view in op.outputs:
            writers.setdefault(view.buffer, []).append(op)
    outputs = {view.buffer for view in program.outputs.values()}
    joined: set[int] = set()
    ops: list[Op] = []
    for op in program.ops:
        if op.kind == "silu_mul" and op.inputs[0].buffer is op.inputs[1].buffer:
            gate, up = op.inputs
            makers = writers.get(gate.buffer, [])
            is_whole = (gate.column, up.column, gate.buffer.width) == (0, gate.width, 2 * gate.width)
            is_alone = readers[gate.buffer] == 2 and gate.buffer not in outputs and len(makers) == 1
            if is_whole and is_alone and makers[0].kind == "linear" and suits(makers[0].weights["weight"]):
                joined.add(id(makers[0]))
                op = replace(makers[0], kind=GATED_LINEAR, outputs=op.outputs)
        ops.append(op)
    return replace(program, ops=tuple([op for op in ops if id(op) not in joined]))


def _readers(program: Program) -> dict[Buffer, int]:
    readers: dict[Buffer, int] = {}
    for op in program.ops:
        for view in op.inputs:
            readers[view.buffer] = readers.get(view.buffer, 0) + 1
    return readers


def join_rope_and_write(program: Program) -> Program:
    """Return ``program`` with each ``rope`` of keys joined to the ``kv_write`` that reads it.

    Nothing else may read the result of the ``rope``.

    ``Fusion`` joins whole views to the first operand that matches; here the operand must be the keys.
    """
    readers = _readers(program)
    outputs = {view.buffer for view in program.outputs.values()}
    ropes = {op.outputs[0].buffer: op for op in program.ops if op.kind == "rope"}
    joined: set[int] = set()
    ops: list[Op] = []
    for op in program.ops:
        rope = ropes.get(op.inputs[0].buffer) if op.kind == "kv_write" else None
        key = op.inputs[0] if op.inputs else None
        if (
            rope is not None
            and key is not None
            and key.is_whole
            and readers[key.buffer] == 1
            and key.buffer not in outputs
        ):
            joined.add(id(rope))
            op = replace(
                op,
                kind=ROTATED_WRITE,
                inputs=(rope.inputs[0], op.inputs[1], rope.inputs[1]),
                attributes={**op.attributes, "pairing": rope.attributes["pairing"]},
            )
        ops.append(op)
    return replace(program, ops=tuple(op for op in ops if id(op) not in joined))
