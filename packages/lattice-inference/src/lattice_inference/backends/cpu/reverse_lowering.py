"""Turns each op of a program for training into the arguments of a C kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lattice_inference.backends.cpu.lowering import LOWERINGS, Lowering
from lattice_inference.graph.memory import MemoryPlan
from lattice_inference.graph.program import Op, View

if TYPE_CHECKING:
    from lattice_inference.backends.cpu.weights import ResidentWeights

__all__ = ["REVERSE_IN_PLACE", "REVERSE_LOWERINGS"]

Arguments = dict[str, Any]

REVERSE_IN_PLACE: Mapping[str, int] = {
    "add_noise": 0,
    "gelu_grad": 1,
    "relu_grad": 1,
    "silu_grad": 1,
    "tanh_grad": 1,
    "layer_norm_grad": 1,
    "rms_norm_grad": 1,
    "l2_normalize_grad": 1,
    "rope_grad": 0,
}
"""Ops that may write over an input, as :data:`~lattice_inference.backends.cpu.lowering.IN_PLACE` has those of inference."""


def _operand(view: View, memory: MemoryPlan) -> tuple[int, int, int]:
    return memory.placement[view.buffer], view.buffer.width, view.column


def _factors(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    arguments: Arguments = {name: op.attributes[name] for name in ("site", "number", "rank")}
    if "scale" in op.attributes:
        arguments["scale"] = op.attributes["scale"]
    arguments["k"] = op.inputs[-1].width
    if op.kind == "low_rank_grad":
        arguments |= {"n": op.inputs[0].width, "further": _operand(op.inputs[3], memory)}
        arguments["inputs"] = [_operand(view, memory) for view in op.inputs[:3]]
    return op.kind, arguments


def _linear_input_grad(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    weight = op.weights["weight"]
    return "linear_input_grad", {
        "weight": weights[weight],
        "weight_type": weights.form(weight).weight_type,
        "k": weight.shape[0],
    }


def _attention_with_sums(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    arguments: Arguments = {name: op.attributes[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    arguments["sums"] = _operand(op.outputs[1], memory)
    if op.attributes["mask"] == "causal":
        return "causal_attention", {**arguments, "window": op.attributes["window"]}
    return "attention", arguments


def _attention_grad(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    names = ("heads", "kv_heads", "head_dim", "scale", "window")
    y, sums, dy = op.inputs[3:]
    dk, dv = op.outputs[1:]
    further = {"y": y, "sums": sums, "dy": dy, "dk": dk, "dv": dv}
    return "attention_grad", {
        **{name: op.attributes[name] for name in names},
        "is_causal": op.attributes["mask"] == "causal",
        "inputs": [_operand(view, memory) for view in op.inputs[:3]],
        **{name: _operand(view, memory) for name, view in further.items()},
    }


def _activation_grad(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    kind = op.kind.removesuffix("_grad")
    return "activation_grad", {"activation": f"gelu_{op.attributes['form']}" if kind == "gelu" else kind}


def _layer_norm_grad(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "layer_norm_grad", {"weight": weights.array(op.weights["weight"]), "epsilon": op.attributes["epsilon"]}


def _pool_grad(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "pool_grad", {"pool": str(op.attributes["mode"])}


def _linear_cross_entropy(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    weight = op.weights["weight"]
    return "linear_cross_entropy", {
        "weight": weights[weight],
        "weight_type": weights.form(weight).weight_type,
        "outputs": weight.shape[0],
        "k": weight.shape[1],
        "dx": _operand(op.outputs[1], memory) if len(op.outputs) > 1 else None,
    }


REVERSE_LOWERINGS: Mapping[str, Lowering] = {
    "low_rank_inner": _factors,
    "low_rank_outer": _factors,
    "low_rank_inner_grad": _factors,
    "low_rank_input_grad": _factors,
    "low_rank_grad": _factors,
    "linear_input_grad": _linear_input_grad,
    "attention_with_sums": _attention_with_sums,
    "attention_grad": _attention_grad,
    **dict.fromkeys(("gelu_grad", "relu_grad", "silu_grad", "tanh_grad"), _activation_grad),
    "layer_norm_grad": _layer_norm_grad,
    "rms_norm_grad": LOWERINGS["rms_norm"],
    "rope_grad": LOWERINGS["rope"],
    "pool_grad": _pool_grad,
    "linear_cross_entropy": _linear_cross_entropy,
}
"""By the kind of the op. The gradients of rms_norm and rope have their parameters; scatter_rows and others have none."""
