"""How the ops of a mixture of experts become arguments of C kernels.

The ops are those of :mod:`~lattice_inference.backends.cpu.expert_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lattice_inference.graph.memory import MemoryPlan
from lattice_inference.graph.program import Op, View

if TYPE_CHECKING:
    from lattice_inference.backends.cpu.weights import ResidentWeights

__all__ = ["EXPERT_LOWERINGS"]

Arguments = dict[str, Any]
Operand = tuple[int, int, int]


def _rows(view: View, memory: MemoryPlan, each: int, column: int = 0) -> Operand:
    """Return the operand of rows of which a row of the view's buffer holds ``each``."""
    return memory.placement[view.buffer], view.width // each if each > 1 else view.buffer.width, view.column + column


def _experts(op: Op, routes: View, memory: MemoryPlan, matrix_bytes: int = 0) -> Arguments:
    return {
        "experts": {
            "table": (memory.placement[routes.buffer], routes.buffer.width, 0),
            "count": op.attributes["count"],
            "chosen": op.attributes["each"],
            "normalized": op.attributes["normalized"],
            "matrix_bytes": matrix_bytes,
        }
    }


def _choose_experts(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "choose_experts", {"k": op.inputs[0].width, **_experts(op, op.outputs[0], memory)}


def _group_rows(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "group_rows", _experts(op, op.outputs[0], memory)


def _send_rows(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    x, routes = op.inputs
    each, row = int(op.attributes["each"]), op.attributes["row"]
    return "send_rows", {
        "inputs": [_rows(x, memory, 1)],
        "output": _rows(op.outputs[0], memory, each),
        "each": each,
        "k": row,
        "n": row,
        **_experts(op, routes, memory),
    }


def _expert_linear(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    from lattice_inference.backends.cpu.weights import matrix_bytes

    sent, routes = op.inputs
    ref, each, column = op.weights["weight"], int(op.attributes["each"]), int(op.attributes["column"])
    form = weights.form(ref)
    return str(op.attributes["kernel"]), {
        "inputs": [_rows(sent, memory, each)],
        "output": _rows(op.outputs[0], memory, each, column),
        "each": each,
        "weight": weights[ref],
        "weight_type": form.weight_type,
        "k": ref.shape[2],
        "n": ref.shape[1],
        **_experts(op, routes, memory, matrix_bytes(ref, form)),
    }


def _expert_silu_mul(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    (both,), each, inner = op.inputs, int(op.attributes["each"]), int(op.attributes["inner"])
    return "silu_mul", {
        "inputs": [_rows(both, memory, each), _rows(both, memory, each, inner)],
        "output": _rows(op.outputs[0], memory, each),
        "each": each,
        "k": inner,
        "n": inner,
    }


def _expert_rounding(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    kernel, each, row = str(op.attributes["kernel"]), int(op.attributes["each"]), op.attributes["row"]
    output = _rows(op.outputs[0], memory, each)
    places = {"output": None, "rounded": output} if kernel == "round_rows" else {"output": output}
    return kernel, {"inputs": [_rows(op.inputs[0], memory, each)], **places, "each": each, "k": row, "n": row}


def _add_experts(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    back, routes, *shared = op.inputs
    operands = [_rows(back, memory, int(op.attributes["each"])), *(_rows(view, memory, 1) for view in shared)]
    return "add_experts", {"inputs": operands, **_experts(op, routes, memory)}


EXPERT_LOWERINGS: Mapping[str, Callable[[Op, ResidentWeights, MemoryPlan], tuple[str, Arguments]]] = {
    "choose_experts": _choose_experts,
    "group_rows": _group_rows,
    "send_rows": _send_rows,
    "expert_linear": _expert_linear,
    "expert_silu_mul": _expert_silu_mul,
    "expert_rounding": _expert_rounding,
    "add_experts": _add_experts,
}
