"""Makes the program that trains: a model's ops forward, then the reverse of each.

The gradients are those of the factors of sites. The model's weights stay as they are and have no gradients. Ops below
the lowest site have none at all. What the reverse needs of the forward pass is kept, or computed again by the same ops,
which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.ops import rows_text
from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, Rows, View, WeightRef
from lattice_inference.graph.program_writer import ProgramWriter, without_unread_ops
from lattice_inference.graph.recurrent_ops import RECURRENT_OPS

__all__ = ["Keep", "Site", "differentiate", "forward_program"]

Keep = Literal["all", "products", "layers"]
"""What the forward pass keeps: everything; all but norms, activations and rotations; or the input of each layer."""

CHEAP = frozenset({"layer_norm", "rms_norm", "gelu", "relu", "silu", "tanh", "mul", "rope", "l2_normalize"})
"""What ``keep="products"`` computes again."""

_ATTENTIONS = frozenset({"attention", "attention_with_sums"})


@dataclass(frozen=True)
class Site:
    """The factors of a linear.

    ``number`` is unique in the program, ``rank`` is that of the factors, and ``scale`` the factor of their product.
    """

    number: int
    rank: int
    scale: float

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes that each op of the site has, besides its name."""
        return {"number": self.number, "rank": self.rank}


def forward_program(program: Program, sites: Mapping[str, Site], output: str) -> Program:
    """Return ``program`` with the factors of ``sites``, without reverse.

    Args:
        program: as a model wrote it, before fusion.
        sites: the sites by the names of their weights.
        output: which output to compute. ``"logits"`` become the op ``linear_cross_entropy`` and the output ``losses``.

    Raises:
        UnsupportedError: the program cannot be trained; the message says why.
    """
    forward = _Forward(program, sites, output)
    if forward.head is None:
        return _finished(forward.ops, {output: forward.result})
    loss = _cross_entropy(forward, gradient=False)
    return _finished([*forward.ops, loss], {"losses": loss.outputs[0]})


def differentiate(program: Program, sites: Mapping[str, Site], keep: Keep, *, output: str) -> Program:
    """Return ``program`` with the factors of ``sites``, followed by its reverse.

    The outputs are those of :func:`forward_program`. For ``"logits"`` the loss begins the reverse. For any other output it
    begins with ``input_rows`` of the name ``gradient``: the gradient of a loss that was computed outside.

    Args:
        program, sites, output: as for :func:`forward_program`.
        keep: what the forward pass keeps for the reverse. It changes no bit.

    Raises:
        UnsupportedError: as above, or a gradient would have to pass an op without a reverse; the message names it.
    """
    forward = _Forward(program, sites, output)
    reverse = _Reverse(forward, keep)
    if forward.head is not None:
        loss = _cross_entropy(forward, gradient=True)
        reverse.writer.ops.append(loss)
        outputs, gradient = {"losses": loss.outputs[0]}, loss.outputs[1]
    else:
        result = forward.result
        attributes: dict[str, AttributeValue] = {
            "name": "gradient",
            "rows": rows_text(result.rows),
            "width": result.width,
        }
        outputs = {output: result}
        (gradient,) = reverse.writer.append("input_rows", (), {}, attributes)
    reverse.run(gradient)
    return _finished(reverse.writer.ops, outputs)


def _finished(ops: list[Op], outputs: Mapping[str, View]) -> Program:
    return without_unread_ops(Program(tuple(ops), outputs))


def _cross_entropy(forward: _Forward, *, gradient: bool) -> Op:
    assert forward.head is not None
    writer = ProgramWriter(forward.next_index)
    weights = {"weight": forward.head.weights["weight"]}
    writer.append("linear_cross_entropy", (forward.result,), weights, {"gradient": gradient})
    return writer.ops[0]


class _Forward:
    """The forward pass of a program for training.

    It has attention over the batch's rows, and the products of factors.

    Attributes:
        ops: the ops up to the result.
        result: what the loss reads.
        head: for logits, the linear that gives them, which is not among the ops.
        passes: the buffers that a gradient passes: those that depend on a factor.
    """

    def __init__(self, program: Program, sites: Mapping[str, Site], output: str) -> None:
        if output not in program.outputs:
            raise UnsupportedError(f"the program has no output {output!r}; it has {', '.join(program.outputs)}")
        self.result = program.outputs[output]
        self.head: Op | None = None
        self.next_index = 1 + max(buffer.index for buffer in program.buffers)
        ops = list(_over_packed_rows(program.ops))
        if self.result.rows is Rows.LOGIT_ROWS:
            self.head = self._split_head(ops, self.result, sites)
            self.result = self.head.inputs[0]
        ops = list(without_unread_ops(Program(tuple(ops), {"result": self.result})).ops)
        self._refuse_parts(ops)
        self.ops = list(self._with_sites(ops, sites))
        self.passes = self._mark()
        if self.result.buffer not in self.passes:
            raise UnsupportedError("no site lies between the model's inputs and the loss")
        self.ops = [self._with_sums(op) for op in self.ops]

    @staticmethod
    def _split_head(ops: list[Op], result: View, sites: Mapping[str, Site]) -> Op:
        head = ops.pop()
        if head.kind != "linear" or "bias" in head.weights or head.outputs != (result,):
            raise UnsupportedError("only logits of a linear without bias at the program's end have a loss")
        name = head.weights["weight"].sources[0]
        if name in sites:
            raise UnsupportedError(f"{name} is the output matrix: adapters of it are not trained")
        return head

    @staticmethod
    def _refuse_parts(ops: list[Op]) -> None:
        for op in ops:
            if not all(view.is_whole for view in (*op.inputs, *op.outputs)):
                raise UnsupportedError(f"the op {op.kind!r} reads some columns of a buffer, which has no reverse")

    def _with_sites(self, ops: list[Op], sites: Mapping[str, Site]) -> Iterator[Op]:
        """Yield the ops, with the products of factors around each site, and places for noise."""
        writer = ProgramWriter(self.next_index)
        renamed: dict[Buffer, View] = {}
        for given in ops:
            op = replace(given, inputs=tuple([renamed.get(view.buffer, view) for view in given.inputs]))
            sources = op.weights["weight"].sources if op.kind == "linear" else ()
            site = sites.get(sources[0]) if len(sources) == 1 else None
            if site is not None:
                name: dict[str, AttributeValue] = {"site": sources[0]}
                (inner,) = writer.append("low_rank_inner", op.inputs, {}, name | site.attributes)
                writer.ops.append(op)
                outer = name | site.attributes | {"scale": site.scale}
                writer.in_place("low_rank_outer", (op.outputs[0], inner), outer)
            else:
                writer.ops.append(op)
            if op.kind == "embed_rows" and op.attributes["ids"] == "token_ids":
                (renamed[op.outputs[0].buffer],) = writer.append("add_noise", op.outputs, {}, {})
        self.next_index = writer.next_index
        self.result = renamed.get(self.result.buffer, self.result)
        yield from writer.ops

    def _mark(self) -> set[Buffer]:
        passes: set[Buffer] = set()
        for op in self.ops:
            if op.kind == "low_rank_outer" or any(view.buffer in passes for view in op.inputs):
                passes |= {view.buffer for view in op.outputs}
        return passes

    def _with_sums(self, op: Op) -> Op:
        """Return an attention that a gradient passes with its second output; any other op as it is."""
        if op.kind != "attention" or op.outputs[0].buffer not in self.passes:
            return op
        writer = ProgramWriter(self.next_index)
        (_, sums) = writer.append("attention_with_sums", op.inputs, {}, op.attributes)
        self.next_index = writer.next_index
        return replace(writer.ops[0], outputs=(op.outputs[0], sums))


def _over_packed_rows(ops: tuple[Op, ...]) -> Iterator[Op]:
    """Yield the ops with attention over the rows of the batch in place of pages."""
    written: dict[AttributeValue, Op] = {}
    for op in ops:
        if op.kind in RECURRENT_OPS:
            raise UnsupportedError(
                f"the op {op.kind!r} keeps a state and has no reverse: models with recurrent layers cannot be trained"
            )
        if op.kind == "kv_write":
            written[op.attributes["layer"]] = op
        elif op.kind == "paged_attention":
            attributes = {name: value for name, value in op.attributes.items() if name != "layer"} | {"mask": "causal"}
            keys_and_values = written[op.attributes["layer"]].inputs
            yield Op("attention", (*op.inputs, *keys_and_values), {}, op.outputs, attributes)
        else:
            yield op


@dataclass
class _Reverse:
    """Writes the reverse of the forward pass.

    Attributes:
        writer: the whole program so far.
        gradients: of buffers of the forward pass, as far as they are known.
    """

    forward: _Forward
    keep: Keep
    writer: ProgramWriter = field(init=False)
    gradients: dict[Buffer, View] = field(default_factory=dict)
    _values: dict[Buffer, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = ProgramWriter(self.forward.next_index + 2)  # the loss has two
        self.writer.ops += self.forward.ops
        self._writers: dict[Buffer, list[Op]] = {}
        for op in self.forward.ops:
            for view in op.outputs:
                self._writers.setdefault(view.buffer, []).append(op)
                if self.keep == "all":
                    self._values[view.buffer] = view
        if self.keep != "all":
            kept = _kept_products(self.forward.ops) if self.keep == "products" else _kept_layers(self.forward.ops)
            self._values |= {view.buffer: view for view in kept}
        self._values[self.forward.result.buffer] = self.forward.result

    def run(self, gradient: View) -> None:
        """Write the reverse of each op that a gradient passes, given the gradient of the result."""
        self.gradients[self.forward.result.buffer] = gradient
        for op in reversed(self.forward.ops):
            target = op.outputs[0].buffer
            known = self.gradients.get(target)
            if known is None or target not in self.forward.passes:
                continue
            rule = _RULES.get(op.kind)
            if rule is None:
                raise UnsupportedError(
                    f"the op {op.kind!r} has no reverse, and the gradient of a site below it would have to pass it: choose "
                    "sites above the last such op"
                )
            rule(self, op, known)

    def value(self, view: View) -> View:
        """Return a view of the forward pass: the kept one, or the same computed again."""
        buffer = view.buffer
        if buffer not in self._values:
            for op in self._writers[buffer]:
                inputs = tuple([self.value(each) for each in op.inputs])
                if op.kind == "low_rank_outer":
                    self.writer.in_place(op.kind, inputs, op.attributes)
                    continue
                outputs = self.writer.append(op.kind, inputs, op.weights, op.attributes)
                self._values |= {old.buffer: new for old, new in zip(op.outputs, outputs, strict=True)}
        return self._values[buffer]

    def passes(self, view: View) -> bool:
        """Whether the gradient of ``view`` is needed."""
        return view.buffer in self.forward.passes

    def add(self, view: View, gradient: View) -> None:
        """Add to the gradient of a buffer of the forward pass."""
        before = self.gradients.get(view.buffer)
        if before is not None:
            (gradient,) = self.writer.append("add", (before, gradient), {}, {})
        self.gradients[view.buffer] = gradient

    def add_op(
        self,
        view: View,
        kind: str,
        inputs: tuple[View, ...],
        weights: Mapping[str, WeightRef] | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        """Add what an op gives to the gradient of a buffer, if that is needed."""
        if self.passes(view):
            self.add(view, self.writer.append(kind, inputs, weights or {}, attributes or {})[0])

    # -- the reverse of each op: given the op and the gradient of its first output ------------------------------------

    def linear(self, op: Op, dy: View) -> None:
        if len(self._writers[op.outputs[0].buffer]) > 1:  # its site has done it
            return
        self.add_op(op.inputs[0], "linear_input_grad", (dy,), {"weight": op.weights["weight"]})

    def low_rank_outer(self, op: Op, dy: View) -> None:
        inner = op.inputs[1]
        (x,) = self._writers[inner.buffer][0].inputs
        (du,) = self.writer.append("low_rank_inner_grad", (dy,), {}, op.attributes)
        self.writer.state_only("low_rank_grad", (dy, self.value(inner), du, self.value(x)), op.attributes)
        if self.passes(x):
            linear = self._writers[op.outputs[0].buffer][0]
            (dx,) = self.writer.append("linear_input_grad", (dy,), {"weight": linear.weights["weight"]}, {})
            attributes = {name: value for name, value in op.attributes.items() if name != "scale"}
            self.writer.in_place("low_rank_input_grad", (dx, du), attributes)
            self.add(x, dx)

    def sum(self, op: Op, dy: View) -> None:
        for view in op.inputs:
            if self.passes(view):
                self.add(view, dy)

    def product(self, op: Op, dy: View) -> None:
        a, b = op.inputs
        for view, other in ((a, b), (b, a)):
            if self.passes(view):
                self.add_op(view, "mul", (dy, self.value(other)))

    def from_input(self, op: Op, dy: View) -> None:
        (x,) = op.inputs
        weights = {name: ref for name, ref in op.weights.items() if name == "weight"}
        self.add_op(x, f"{op.kind}_grad", (self.value(x), dy), weights, op.attributes)

    def from_output(self, op: Op, dy: View) -> None:
        self.add_op(op.inputs[0], f"{op.kind}_grad", (self.value(op.outputs[0]), dy), {}, op.attributes)

    def rope(self, op: Op, dy: View) -> None:
        x, angles = op.inputs
        self.add_op(x, "rope_grad", (dy, self.value(angles)), {}, op.attributes)

    def attention(self, op: Op, dy: View) -> None:
        values = [self.value(view) for view in (*op.inputs, *op.outputs)]
        gradients = self.writer.append("attention_grad", (*values, dy), {}, op.attributes)
        for view, gradient in zip(op.inputs, gradients, strict=True):
            if self.passes(view):
                self.add(view, gradient)

    def pool(self, op: Op, dy: View) -> None:
        self.add_op(op.inputs[0], "pool_grad", (dy,), {}, op.attributes)

    def gather_rows(self, op: Op, dy: View) -> None:
        self.add_op(op.inputs[0], "scatter_rows", (dy,))


_RULES: Mapping[str, Callable[[_Reverse, Op, View], None]] = {
    "linear": _Reverse.linear,
    "low_rank_outer": _Reverse.low_rank_outer,
    "add": _Reverse.sum,
    "mul": _Reverse.product,
    "gelu": _Reverse.from_input,
    "relu": _Reverse.from_input,
    "silu": _Reverse.from_input,
    "tanh": _Reverse.from_output,
    "layer_norm": _Reverse.from_input,
    "rms_norm": _Reverse.from_input,
    "l2_normalize": _Reverse.from_input,
    "rope": _Reverse.rope,
    "attention_with_sums": _Reverse.attention,
    "pool": _Reverse.pool,
    "gather_rows": _Reverse.gather_rows,
}


def _kept_products(ops: list[Op]) -> Iterator[View]:
    for op in ops:
        if op.kind not in CHEAP:
            yield from op.outputs


def _kept_layers(ops: list[Op]) -> Iterator[View]:
    """Yield what is kept if each layer is computed again.

    It is the one input of each layer, and the products of the last layer.

    A layer begins at the last place before an attention that only one buffer crosses.
    """
    last_read = {view.buffer: index for index, op in enumerate(ops) for view in op.inputs}
    alive: dict[Buffer, View] = {}
    crossing: tuple[int, View] | None = None
    starts: dict[int, View] = {}
    for index, op in enumerate(ops):
        if op.kind in _ATTENTIONS and crossing is not None:
            starts[crossing[0]] = crossing[1]
        if op.kind == "rope_angles":  # every layer reads the same few
            yield from op.outputs
            continue
        alive |= {view.buffer: view for view in op.outputs}
        alive = {buffer: view for buffer, view in alive.items() if last_read.get(buffer, -1) > index}
        if len(alive) == 1:
            crossing = index, next(iter(alive.values()))
    yield from starts.values()
    yield from _kept_products(ops[max(starts, default=-1) + 1 :])
