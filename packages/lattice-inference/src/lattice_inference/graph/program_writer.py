"""Appends ops to a program for training, each checked, with new buffers for what they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lattice_inference.graph.ops import validate
from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, View, WeightRef
from lattice_inference.graph.reverse_ops import TRAINING_OPS

__all__ = ["ProgramWriter", "without_unread_ops"]


class ProgramWriter:
    """Collects ops of :data:`~lattice_inference.graph.reverse_ops.TRAINING_OPS`.

    Its methods raise InvalidInputError when operands do not fit.

    Args:
        next_index: the number of the next buffer; no other buffer of the program has it or a greater one.

    Attributes:
        ops: the ops so far.
        next_index: as above, now.
    """

    def __init__(self, next_index: int = 0) -> None:
        self.ops: list[Op] = []
        self.next_index: int = next_index

    def append(
        self,
        kind: str,
        inputs: tuple[View, ...],
        weights: Mapping[str, WeightRef],
        attributes: Mapping[str, AttributeValue],
    ) -> tuple[View, ...]:
        """Append an op and return the views of its outputs."""
        op = Op(kind, inputs, weights, (), attributes)
        first = validate(op, TRAINING_OPS)
        outputs = []
        for rows, width in (first, *TRAINING_OPS[kind].further(op)):
            outputs.append(View(Buffer(self.next_index, f"{kind}.{self.next_index}", rows, width), 0, width))
            self.next_index += 1
        self.ops.append(replace(op, outputs=tuple(outputs)))
        return tuple(outputs)

    def in_place(self, kind: str, inputs: tuple[View, ...], attributes: Mapping[str, AttributeValue]) -> None:
        """Append an op that changes its first input."""
        self.ops.append(op := Op(kind, inputs, {}, inputs[:1], attributes))
        validate(op, TRAINING_OPS)

    def state_only(self, kind: str, inputs: tuple[View, ...], attributes: Mapping[str, AttributeValue]) -> None:
        """Append an op that changes memory of the backend and has no output."""
        self.ops.append(op := Op(kind, inputs, {}, (), attributes))
        validate(op, TRAINING_OPS)


def without_unread_ops(program: Program) -> Program:
    """Return ``program`` without the ops whose outputs nothing reads. Ops without outputs stay."""
    wanted = {view.buffer for view in program.outputs.values()}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if not op.outputs or any(view.buffer in wanted for view in op.outputs):
            kept.append(op)
            wanted |= {view.buffer for view in op.inputs}
    return replace(program, ops=tuple(reversed(kept)))
