"""Rewrites a program into the fused ops that a backend declares.

Fusion saves memory traffic; it never changes a bit of the results. There are two kinds of rule. A :class:`Fusion` joins
a producer and its only consumer into one op, whose kernel computes exactly what the two did. A :class:`Concat` joins
linears that read the same input into one. Consumers then read its output columns as views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lattice_inference.graph.program import Buffer, Op, Program, View, WeightRef

__all__ = ["ACTIVATIONS", "BIT_NEUTRAL_RULES", "Concat", "Fusion", "fuse"]


def _always(producer: Op, consumer: Op) -> bool:
    return True


@dataclass(frozen=True)
class Fusion:
    """Joins a producer ``pattern[0]`` and its only reader ``pattern[1]`` into one op ``name``.

    The fused op has the producer's inputs, then the consumer's other inputs. It has the weights and attributes of both.
    """

    name: str
    pattern: tuple[str, str]
    when: Callable[[Op, Op], bool] = _always


@dataclass(frozen=True)
class Concat:
    """Joins linears that read the same input into one, with their output columns side by side.

    ``consumer`` is the kind of the op that the linears feed; None joins all that read the same input.
    """

    consumer: str | None


ACTIVATIONS = ("gelu", "relu", "silu", "tanh", "sigmoid")
"""Ops that a linear's kernel can end with."""

BIT_NEUTRAL_RULES: tuple[Fusion | Concat, ...] = (
    Fusion("silu_mul", ("silu", "mul")),
    *(Fusion(f"linear_{activation}", ("linear", activation)) for activation in ACTIVATIONS),
    Fusion("linear_add", ("linear", "add")),
    Fusion("embed_rows_add", ("embed_rows", "add")),
    Concat("attention"),
    Concat("silu_mul"),
    Concat(None),
)
"""Fusions that keep every bit if a backend's fused kernels compute exactly what the two ops do."""


def fuse(program: Program, rules: Sequence[Fusion | Concat]) -> Program:
    """Apply ``rules`` in order, each until it has no more matches."""
    for rule in rules:
        program = _join(program, rule) if isinstance(rule, Fusion) else _lay_side_by_side(program, rule)
    return program


def _readers(program: Program) -> dict[Buffer, int]:
    """Count the operands, program outputs included, that read each buffer."""
    counts: dict[Buffer, int] = {}
    for op in program.ops:
        for view in op.inputs:
            counts[view.buffer] = counts.get(view.buffer, 0) + 1
    for view in program.outputs.values():
        counts[view.buffer] = counts.get(view.buffer, 0) + 1
    return counts


def _join(program: Program, rule: Fusion) -> Program:
    first, second = rule.pattern
    if not {first, second} <= {op.kind for op in program.ops}:
        return program
    readers = _readers(program)
    ops: list[Op] = []
    joined: set[int] = set()  # producers by identity: comparing every pair of ops would be slow
    pending: dict[Buffer, Op] = {}  # producers that may still be joined to their consumer, which comes later
    for op in program.ops:
        match = _match(op, pending) if op.kind == second else None
        if match is not None and rule.when(pending[match.buffer], op):
            producer = pending.pop(match.buffer)
            joined.add(id(producer))
            others = list(op.inputs)
            others.remove(match)
            op = Op(
                rule.name,
                (*producer.inputs, *others),
                {**producer.weights, **op.weights},
                op.outputs,
                {**producer.attributes, **op.attributes},
            )
        ops.append(op)
        if op.kind == first and readers.get(op.outputs[0].buffer) == 1:
            pending[op.outputs[0].buffer] = op
    return replace(program, ops=tuple([op for op in ops if id(op) not in joined]))


def _match(consumer: Op, pending: dict[Buffer, Op]) -> View | None:
    """Return the first operand that is the whole output of a producer in ``pending``."""
    for view in consumer.inputs:
        if view.buffer in pending and view.is_whole:
            return view
    return None


def _lay_side_by_side(program: Program, rule: Concat) -> Program:
    if rule.consumer is not None and rule.consumer not in {op.kind for op in program.ops}:
        return program
    readers = _readers(program)
    outputs = {view.buffer for view in program.outputs.values()}
    places = {id(op): place for place, op in enumerate(program.ops)}
    instead: dict[int, Op | None] = {}  # by the identity of an op that is joined with others
    moved: dict[Buffer, View] = {}
    for group in _groups(program, rule):
        if len(group) < 2 or group[0].kind != "linear":
            continue
        buffers = [op.outputs[0].buffer for op in group]
        alike = len({(op.kind, op.inputs, tuple(op.weights)) for op in group}) == 1
        if not alike or {readers.get(buffer, 0) for buffer in buffers} != {1} or not outputs.isdisjoint(buffers):
            continue
        joined, views = _concatenated(group)
        first = min([places[id(op)] for op in group])
        instead |= {id(op): None for op in group}
        instead[id(program.ops[first])] = joined
        moved |= zip(buffers, views, strict=True)
    ops = []
    for op in program.ops:
        kept = instead.get(id(op), op)
        if kept is not None:
            ops.append(_reading(kept, moved))
    return replace(program, ops=tuple(ops))


def _reading(op: Op, moved: dict[Buffer, View]) -> Op:
    """Return ``op`` with the views of ``moved`` in place of the joined linears' buffers."""
    inputs = list(op.inputs)
    for place, view in enumerate(inputs):
        inputs[place] = moved.get(view.buffer, view)
    return op if tuple(inputs) == op.inputs else replace(op, inputs=tuple(inputs))


def _groups(program: Program, rule: Concat) -> Iterator[Sequence[Op]]:
    """Yield the groups of ops that ``rule`` may join; an op is in at most one group."""
    if rule.consumer is None:
        linears: dict[tuple[View, ...], list[Op]] = {}
        for op in program.ops:
            if op.kind == "linear":
                linears.setdefault(op.inputs, []).append(op)
        yield from linears.values()
        return
    producers = {view.buffer: op for op in program.ops for view in op.outputs}
    for consumer in program.ops:
        if consumer.kind == rule.consumer:
            group = [producers[view.buffer] for view in consumer.inputs if view.buffer in producers and view.is_whole]
            if len(group) == len(consumer.inputs):
                yield group


def _concatenated(group: Sequence[Op]) -> tuple[Op, list[View]]:
    width = sum([op.outputs[0].width for op in group])
    first = group[0].outputs[0].buffer
    buffer = Buffer(first.index, "+".join([op.outputs[0].buffer.name for op in group]), first.rows, width)
    weights = {
        name: WeightRef(
            tuple([source for op in group for source in op.weights[name].sources]),
            (width, *group[0].weights[name].shape[1:]),
            group[0].weights[name].use,
            "concat",
        )
        for name in group[0].weights
    }
    views = []
    column = 0
    for op in group:
        views.append(View(buffer, column, op.outputs[0].width))
        column += op.outputs[0].width
    return Op("linear", group[0].inputs, weights, (View(buffer, 0, width),)), views
