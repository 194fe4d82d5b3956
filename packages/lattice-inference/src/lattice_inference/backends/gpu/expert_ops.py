"""Rewrites a mixture of experts into the ops that GPUs run.

    logits = linear(x, router);  routes = moe_route(logits);  groups = moe_group(routes)
    gate, up = linear_grouped(x);  wide = silu_mul(gate, up);  back = linear_grouped(wide);  y = moe_add(back, routes)

A row of ``back`` holds what each of the row's experts gives, one after the other. A shared expert is added by moe_share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, View

__all__ = ["expand_experts"]


def expand_experts(program: Program) -> Program:
    """Return ``program`` with the ops above in place of its mixtures of experts."""
    return replace(
        program, ops=tuple(part for op in program.ops for part in (_expanded(op) if op.kind == "moe" else (op,)))
    )


def _expanded(op: Op) -> Iterator[Op]:
    (x,), weights, y = op.inputs, op.weights, op.outputs[0]
    experts, inner, hidden = weights["gate"].shape
    each = int(op.attributes["chosen"])
    counts: dict[str, AttributeValue] = {"experts": experts, "each": each}

    def view(name: str, width: int) -> View:
        return View(Buffer(y.buffer.index, f"{y.buffer.name}.{name}", y.rows, width), 0, width)

    logits, routes = view("logits", experts), view("routes", 2 * each)
    groups = view("groups", each + 2 * (experts + 1))
    yield Op("linear", (x,), {"weight": replace(weights["router"], use="vector")}, (logits,))  # never rounded
    yield Op("moe_route", (logits,), {}, (routes,), {**counts, "normalized": op.attributes["normalized"]})
    yield Op("moe_group", (routes,), {}, (groups,), counts)
    gate, up, wide = (view(name, each * inner) for name in ("gate", "up", "wide"))
    of_rows: dict[str, AttributeValue] = {**counts, "is_sent": False}
    yield Op("linear_grouped", (x, routes, groups), {"weight": weights["gate"]}, (gate,), of_rows)
    yield Op("linear_grouped", (x, routes, groups), {"weight": weights["up"]}, (up,), of_rows)
    yield Op("silu_mul", (gate, up), {}, (wide,))
    back = view("back", each * hidden)
    yield Op(
        "linear_grouped", (wide, routes, groups), {"weight": weights["down"]}, (back,), {**counts, "is_sent": True}
    )
    if "shared_router" not in weights:
        yield Op("moe_add", (back, routes), {}, (y,), counts)
        return
    mixed = view("mixed", hidden)
    yield Op("moe_add", (back, routes), {}, (mixed,), counts)
    width = weights["shared_gate"].shape[0]
    shared_gate, shared_up, shared_wide = (view(f"shared.{name}", width) for name in ("gate", "up", "wide"))
    yield Op("linear", (x,), {"weight": weights["shared_gate"]}, (shared_gate,))
    yield Op("linear", (x,), {"weight": weights["shared_up"]}, (shared_up,))
    yield Op("silu_mul", (shared_gate, shared_up), {}, (shared_wide,))
    given, logit = view("shared.given", hidden), view("shared.logit", 1)
    yield Op("linear", (shared_wide,), {"weight": weights["shared_down"]}, (given,))
    yield Op("linear", (x,), {"weight": replace(weights["shared_router"], use="vector")}, (logit,))
    yield Op("moe_share", (mixed, given, logit), {}, (y,))
