"""The ops of a mixture of experts as kernel calls.

The ops are those of :mod:`~lattice_inference.backends.gpu.expert_ops`. A pair is a row and one of its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lattice_inference.backends.gpu.device import sorted_constants
from lattice_inference.backends.gpu.kernel_call import KernelCall, Launch
from lattice_inference.backends.gpu.launches import Lowering, elements, groups
from lattice_inference.backends.gpu.step_inputs import FEW_ROWS, StepShape
from lattice_inference.graph.program import Op

__all__ = ["EXPERT_LOWERINGS"]

_TILE = 32  # pairs and columns of a tile of linear_grouped_tiled


def _counts(op: Op) -> dict[str, int | float]:
    return {name: int(op.attributes[name]) for name in ("each", "experts")}


def _moe_route(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    routes = op.outputs[0]
    is_normalized = int(bool(op.attributes["normalized"]))
    constants = sorted_constants({"EACH": int(op.attributes["each"]), "NORMALIZED": is_normalized})
    views = {"x": op.inputs[0], "y": routes}
    yield KernelCall(
        routes.rows, views, lambda rows, _: Launch("moe_route", constants, rows) if rows else None, _counts(op)
    )


def _moe_group(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    table = op.outputs[0]

    def choose(rows: int, shape: StepShape) -> Launch | None:
        return Launch("moe_group", (), 1) if rows and _is_tiled(rows, lowering) else None

    yield KernelCall(table.rows, {"a": op.inputs[0], "y": table}, choose, _counts(op))


def _is_tiled(rows: int, lowering: Lowering) -> bool:
    return lowering.is_encoder or rows > FEW_ROWS


def _linear_grouped(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    x, routes, table = op.inputs
    y = op.outputs[0]
    ref = op.weights["weight"]
    weight = lowering.weights[ref]
    experts, columns, depth = ref.shape
    each = int(op.attributes["each"])
    known: dict[str, int | str] = {"FORMAT": weight.form, "SENT": int(bool(op.attributes["is_sent"]))}
    tiled, few = sorted_constants(known), sorted_constants({**known, "ROWS": 1, "SUBGROUPS": lowering.subgroups})

    def choose(rows: int, shape: StepShape) -> Launch | None:
        pairs = rows * each
        if not rows:
            return None
        if _is_tiled(rows, lowering):  # a tile has pairs of one expert: the last of each expert may be short
            tiles = pairs // _TILE + min(experts, pairs)
            return Launch("linear_grouped_tiled", tiled, tiles * groups(columns, _TILE))
        return Launch("linear_grouped_few", few, pairs * groups(columns, lowering.few_columns))

    for part in weight.parts:
        yield KernelCall(
            y.rows,
            {"x": x, "a": routes, "b": table, "y": y},
            choose,
            {**_counts(op), "k": depth, "n": columns, "first": part.first, "held": part.rows},
            (part.buffer, weight.scales, None),
        )


def _moe_add(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    back, routes = op.inputs
    y = op.outputs[0]
    choose = elements("moe_add", y.width, SHARED=0)
    yield KernelCall(y.rows, {"x": back, "a": routes, "y": y}, choose, {**_counts(op), "n": y.width})


def _moe_share(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    mixed, given, logit = op.inputs
    y = op.outputs[0]
    choose = elements("moe_add", y.width, SHARED=1)
    yield KernelCall(y.rows, {"x": given, "a": logit, "b": mixed, "y": y}, choose, {"n": y.width})


EXPERT_LOWERINGS: Mapping[str, Callable[[Op, Lowering], Iterator[KernelCall]]] = {
    "moe_route": _moe_route,
    "moe_group": _moe_group,
    "linear_grouped": _linear_grouped,
    "moe_add": _moe_add,
    "moe_share": _moe_share,
}
