"""Rewrites a program so that attention over pages gets the new keys and values of its step."""

from __future__ import annotations

from dataclasses import replace

from lattice_inference.graph.program import Op, Program

__all__ = ["hand_over_keys"]


def hand_over_keys(program: Program) -> Program:
    """Return ``program`` with the inputs of ``kv_write`` added to its layer's attention.

    Where a sequence has few new rows, attention's tasks then write the keys and values that they are about to read. This
    saves one point where threads wait for each other, and a thread finds what it wrote in its own cache. From the
    attribute ``attention_heads``, ``kv_write`` knows which sequences these are.
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
