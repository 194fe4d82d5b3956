"""Fusions beyond the CPU's: what saves a GPU a launch. Like those, they change no byte of a result."""

from __future__ import annotations

from dataclasses import replace

from lattice_inference.graph.program import Buffer, Op, Program

__all__ = ["ROTATED_WRITE", "join_rope_and_write"]

ROTATED_WRITE = "rope_kv_write"
"""``kv_write`` of keys that it rotates: inputs are the keys before ``rope``, the values and the angles."""


def join_rope_and_write(program: Program) -> Program:
    """Return ``program`` with every ``rope`` whose result only a ``kv_write`` reads, as its keys, joined to that.

    ``Fusion`` joins whole views to the first operand that matches; here the operand must be the keys.
    """
    readers: dict[Buffer, int] = {}
    for op in program.ops:
        for view in op.inputs:
            readers[view.buffer] = readers.get(view.buffer, 0) + 1
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
