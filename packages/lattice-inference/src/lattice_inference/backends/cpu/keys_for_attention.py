"""Rewrites a program so that attention over pages has the keys and values that its step brings."""

from __future__ import annotations

from dataclasses import replace

from lattice_inference.graph.program import Op, Program

__all__ = ["hand_over_keys"]


def hand_over_keys(program: Program) -> Program:
    """Return ``program`` with the inputs of every ``kv_write`` handed to the attention after it in the same layer.

    Where a sequence has few new rows, attention's tasks then write what they are about to read: the threads meet once less,
    and what a thread wrote is in its own cache. ``kv_write`` is told by ``attention_heads`` which sequences those are.
    """
    written: dict[object, int] = {}
    ops: list[Op] = []
    for op in program.ops:
        layer = op.attributes.get("layer")
        if op.kind == "kv_write":
            written[layer] = len(ops)
        elif op.kind == "paged_attention" and layer in written:
            index = written.pop(layer)
            write = ops[index]
            ops[index] = replace(write, attributes={**write.attributes, "attention_heads": op.attributes["heads"]})
            op = replace(op, inputs=(*op.inputs, *write.inputs))
        ops.append(op)
    return replace(program, ops=tuple(ops))
