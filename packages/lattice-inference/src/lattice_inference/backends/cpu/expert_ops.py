"""Rewrites a mixture of experts into the ops that the CPU runs.

    logits = linear(x, router);  routes = choose_experts(logits);  group_rows(routes)
    sent = send_rows(x or its rounded rows, routes)           a row for each expert that a row of x goes through
    both = expert_linear(sent, gate|up);  wide = expert_silu_mul(both);  back = expert_linear(wide or its rounded rows, down)
    y = add_experts(back, routes)

A buffer of sent rows has, as every buffer, a row for each row of x: as wide as the rows for all its experts together.
"""

from __future__ import annotations

from dataclasses import replace

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.forms.input_rows import FloatRows, InputRows, IntegerRows
from lattice_inference.backends.cpu.weight_forms import WeightForms
from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, View, WeightRef

__all__ = ["expand_experts"]


def expand_experts(program: Program, forms: WeightForms) -> Program:
    """Return ``program`` with the CPU's ops in place of its mixtures of experts."""
    ops: list[Op] = []
    for op in program.ops:
        ops += _Expansion(op, forms).ops if op.kind == "moe" else [op]
    return replace(program, ops=tuple(ops))


class _Expansion:
    """The ops of one mixture.

    Attributes:
        ops: in order.
    """

    def __init__(self, op: Op, forms: WeightForms) -> None:
        (self._x,), self._weights, self._forms = op.inputs, op.weights, forms
        self._y = op.outputs[0]
        count, self._inner, hidden = op.weights["gate"].shape
        self._each = int(op.attributes["chosen"])
        self._experts = {"count": count, "each": self._each, "normalized": op.attributes["normalized"]}
        self.ops: list[Op] = []
        self._rounded: dict[InputRows, View] = {FloatRows.FLOAT32: self._x}
        self._routes = self._choose(count)
        shared = self._shared_expert() if "shared_router" in op.weights else ()
        wide = self._view("wide", self._each * self._inner)
        self._append("expert_silu_mul", (self._gates_and_ups(),), wide, {"inner": self._inner})
        rows = forms.rows_of(op.weights["down"])
        back = self._view("back", self._each * hidden)
        self._linear(self._round(wide, self._inner, rows, "wide", each=self._each), op.weights["down"], back, rows)
        self._append("add_experts", (back, self._routes, *shared), self._y)

    def _choose(self, count: int) -> View:
        logits = self._view("logits", count)
        self.ops.append(Op("linear", (self._x,), {"weight": self._weights["router"]}, (logits,)))
        routes = self._view("routes", _cpu.routes_floats(count, self._each))
        self._append("choose_experts", (logits,), routes)
        self._append("group_rows", (routes,), routes)
        return routes

    def _gates_and_ups(self) -> View:
        """Add the products of gates and ups: one for both where they are kept in one form."""
        gate, up = self._weights["gate"], self._weights["up"]
        both = self._view("both", self._each * 2 * self._inner)
        pairs = zip(gate.matrices(), up.matrices(), strict=True)
        sources = tuple(name for pair in pairs for ref in pair for name in ref.sources)
        count, width, depth = gate.shape
        joined = WeightRef(sources, (count, 2 * width, depth), "linear", "concat")
        parts = [(joined, 0)] if self._forms.join((gate, up), joined) else [(gate, 0), (up, width)]
        sent: dict[InputRows, View] = {}
        for ref, column in parts:
            rows = self._forms.rows_of(ref)
            if rows not in sent:
                x = self._rows_of_x(rows)
                sent[rows] = self._view(f"sent.{_name(rows)}", self._each * x.width)
                self._append("send_rows", (x, self._routes), sent[rows], {"row": x.width})
            self._linear(sent[rows], ref, both, rows, column=column, row=2 * width)
        return both

    def _linear(
        self, sent: View, ref: WeightRef, output: View, rows: InputRows, *, column: int = 0, row: int | None = None
    ) -> None:
        attributes: dict[str, AttributeValue] = {"column": column, "row": ref.shape[1] if row is None else row}
        attributes["kernel"] = self._forms[ref].kernel(rows)
        self.ops.append(
            Op("expert_linear", (sent, self._routes), {"weight": ref}, (output,), self._experts | attributes)
        )

    def _shared_expert(self) -> tuple[View, View]:
        """Add the expert that every row goes through; return what it gives and its router's logits."""
        parts = []
        for name in ("gate", "up"):
            ref = self._weights[f"shared_{name}"]
            rows = self._forms.rows_of(ref)
            parts.append(self._view(f"shared.{name}", ref.shape[0]))
            self.ops.append(Op("linear", (self._rows_of_x(rows),), {"weight": ref}, (parts[-1],)))
        wide = self._view("shared.wide", parts[0].width)
        self.ops.append(Op("silu_mul", tuple(parts), {}, (wide,)))
        down = self._weights["shared_down"]
        rows = self._forms.rows_of(down)
        given, logit = self._view("shared.given", down.shape[0]), self._view("shared.logit", 1)
        narrow = self._round(wide, wide.width, rows, "shared.wide")
        self.ops.append(Op("linear", (narrow,), {"weight": down}, (given,)))
        self.ops.append(Op("linear", (self._x,), {"weight": self._weights["shared_router"]}, (logit,)))
        return given, logit

    def _rows_of_x(self, rows: InputRows) -> View:
        """Return the rows of the input as a product takes them, made once before they are sent."""
        if rows not in self._rounded:
            self._rounded[rows] = self._round(self._x, self._x.width, rows, "x")
        return self._rounded[rows]

    def _round(self, x: View, width: int, rows: InputRows, name: str, *, each: int = 1) -> View:
        """Return rows of ``width`` as a product takes them; add the op that makes them, if one must."""
        if rows is FloatRows.FLOAT32:
            return x
        floats = rows.floats(width) if isinstance(rows, IntegerRows) else _cpu.bfloat16_row_floats(width)
        kind = rows.kind if isinstance(rows, IntegerRows) else "round_rows"
        rounded = self._view(f"{name}.{_name(rows)}", each * floats)
        attributes: dict[str, AttributeValue] = {"each": each, "kernel": kind, "row": width}
        self.ops.append(Op("expert_rounding", (x,), {}, (rounded,), attributes))
        return rounded

    def _append(
        self, kind: str, inputs: tuple[View, ...], output: View, attributes: dict[str, AttributeValue] | None = None
    ) -> None:
        self.ops.append(Op(kind, inputs, {}, (output,), self._experts | (attributes or {})))

    def _view(self, name: str, width: int) -> View:
        y = self._y.buffer
        return View(Buffer(y.index, f"{y.name}.{name}", self._y.rows, width), 0, width)


def _name(rows: InputRows) -> str:
    return rows.kind if isinstance(rows, IntegerRows) else rows.value
