"""Turns each op into the arguments of a C kernel; lists ops that may write over inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.cpu import _cpu
from lattice_inference.backends.cpu.expert_lowering import EXPERT_LOWERINGS
from lattice_inference.backends.cpu.forms.input_rows import IntegerRows
from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.compile import CompiledProgram
from lattice_inference.graph.fusion import ACTIVATIONS
from lattice_inference.graph.memory import MemoryPlan
from lattice_inference.graph.program import Op, View
from lattice_inference.graph.recurrent_ops import recurrent_spec

if TYPE_CHECKING:
    from lattice_inference.backends.cpu.weights import ResidentWeights

__all__ = ["IN_PLACE", "LOWERINGS", "Lowering", "lower"]

IN_PLACE: Mapping[str, int] = {
    "add": 0,
    "gelu": 0,
    "relu": 0,
    "silu": 0,
    "tanh": 0,
    "sigmoid": 0,
    "layer_norm": 0,
    "rms_norm": 0,
    "mul": 0,
    "silu_mul": 0,
    "layer_norm_quantized": 0,
    "l2_normalize": 0,
    "linear_add": 1,
    "embed_rows_add": 0,
}
"""Ops that may write over an input, and its index: they read an element only to write the same one."""

_FOLLOWED = {"paged_attention": "paged_merge", "attention_grad": "attention_keys_grad"}  # an op of two kernels

Arguments = dict[str, Any]

Lowering = Callable[[Op, "ResidentWeights", MemoryPlan], tuple[str, Arguments]]
"""Returns the kernel of an op, and its parameters."""


def lower(
    compiled: CompiledProgram, weights: ResidentWeights, plan: _cpu.Plan, further: Mapping[str, Lowering] | None = None
) -> None:
    """Append every op of ``compiled`` to ``plan``.

    ``further`` has the lowerings of kinds that are not of inference.

    Raises:
        UnsupportedError: there is no kernel for an op.
    """
    lowerings = LOWERINGS if further is None else {**LOWERINGS, **further}
    states = {spec: number for number, spec in enumerate(compiled.program.recurrent_specs)}
    for op in compiled.program.ops:
        kernel, arguments = _kernel(op, weights, compiled.memory, lowerings)
        if states and (state := recurrent_spec(op)) is not None:
            arguments["state"] = states[state]
        written = op.outputs[0] if op.outputs else None
        rows, width = (op.inputs[0].rows, 0) if written is None else (written.rows, written.width)
        rounded_width = op.attributes.get("rounded_width")
        rounded = None if rounded_width is None else op.outputs[-1]
        output = None if written == rounded else written
        width = int(rounded_width or width)
        common: Arguments = {
            "rows": rows.name.lower(),
            "output": None if output is None else _operand(output, compiled.memory),
            "rounded": None if rounded is None else _operand(rounded, compiled.memory),
            "n": width,
            "inputs": [_operand(view, compiled.memory) for view in op.inputs],
            "k": width,
        }
        plan.append(kernel, **{**common, **arguments})
        if kernel in _FOLLOWED:
            plan.append(_FOLLOWED[kernel], **{**common, **arguments})
        if kernel == "embed_rows":
            plan.check_ids(arguments["ids"], op.weights["table"].shape[0])


def _kernel(
    op: Op, weights: ResidentWeights, memory: MemoryPlan, lowerings: Mapping[str, Lowering]
) -> tuple[str, Arguments]:
    """Return the kernel of ``op`` and its parameters."""
    if op.kind in lowerings:
        return lowerings[op.kind](op, weights, memory)
    if _cpu.RECORDS.get(op.kind) == "none":
        return op.kind, {}
    raise UnsupportedError(f"the CPU backend has no kernel for the op {op.kind!r}")


def _operand(view: View, memory: MemoryPlan) -> tuple[int, int, int]:
    return memory.placement[view.buffer], view.buffer.width, view.column


def _activation_name(kind: str, op: Op) -> str:
    return f"gelu_{op.attributes['form']}" if kind == "gelu" else kind


def _embed_rows(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    table = op.weights["table"]
    form = weights.form(table)
    arguments: Arguments = {
        "table": weights[table],
        # the table of a tied embedding is kept as the linear's weight
        "packed": table.use == "linear" and not form.in_panels,
        "weight_type": form.weight_type,
        "ids": str(op.attributes["ids"]),
    }
    if op.inputs:
        arguments |= {"inputs": [], "residual": _operand(op.inputs[0], memory)}
    return "embed_rows", arguments


def _input_rows(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "input_rows", {"name": str(op.attributes["name"])}


def _linear(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    weight = op.weights["weight"]
    form = weights.form(weight)
    arguments: Arguments = {
        "inputs": [_operand(op.inputs[0], memory)],
        "weight": weights[weight],
        "weight_type": form.weight_type,
        "k": weight.shape[1],
    }
    if "bias" in op.weights:
        arguments["bias"] = weights.array(op.weights["bias"])
    suffix = op.kind.removeprefix("linear").removeprefix("_")
    if suffix == "add":
        arguments["residual"] = _operand(op.inputs[1], memory)
    elif suffix:
        arguments["activation"] = _activation_name(suffix, op)
    return form.kernel(weights.forms.input_rows(op)), arguments


def _linear_pairs(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    weight = op.weights["weight"]
    form = weights.form(weight)
    (x,) = op.inputs
    return form.kernel(IntegerRows("quantize_block_pairs")), {
        "inputs": [(memory.placement[x.buffer], x.width // 2, 0)],
        "weight": weights[weight],
        "weight_type": form.weight_type,
        "k": weight.shape[1],
        "pairs": True,
    }


def _quantize(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    bounds = _bounds(op)
    return op.kind, {"k": op.inputs[0].width, **({} if bounds is None else {"bounds": bounds})}


def _bounds(op: Op) -> npt.NDArray[np.float32] | None:
    """Return the calibrated range (low, high) of the rows that ``op`` quantizes, if any."""
    return np.array([op.attributes["low"], op.attributes["high"]], np.float32) if "low" in op.attributes else None


def _activation(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "activation", {"activation": _activation_name(op.kind, op)}


def _layer_norm(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "layer_norm", {
        "weight": weights.array(op.weights["weight"]),
        "bias": weights.array(op.weights["bias"]),
        "epsilon": op.attributes["epsilon"],
        "quantized": _operand(op.outputs[1], memory) if op.kind == "layer_norm_quantized" else None,
        "bounds": _bounds(op),
    }


def _attention(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    arguments = {name: op.attributes[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    if op.attributes["mask"] == "causal":
        return "causal_attention", {**arguments, "window": op.attributes["window"]}
    return ("amx_attention" if weights.forms.rounded_inputs(op) else "attention"), arguments


def _rms_norm(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    weight = weights.array(op.weights["weight"])
    if op.attributes["offset"]:
        weight = weight + np.float32(op.attributes["offset"])
    return op.kind, {"weight": weight, "epsilon": op.attributes["epsilon"], "heads": op.attributes["heads"]}


def _rope_angles(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "rope_angles", {"frequencies": weights.array(op.weights["frequencies"]), "scale": op.attributes["scale"]}


def _rope(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return op.kind, {
        "width": op.inputs[1].width,
        "heads": op.attributes["heads"],
        "head_dim": op.attributes["head_dim"],
        "pairing": str(op.attributes["pairing"]),
    }


def _kv_write(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    arguments = {name: op.attributes[name] for name in ("layer", "kv_heads")}
    return "kv_write", {**arguments, "attention_heads": op.attributes.get("attention_heads", 0)}


def _paged_attention(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    names = ("layer", "heads", "kv_heads", "head_dim", "scale", "window")
    return "paged_attention", {name: op.attributes[name] for name in names}


def _short_conv(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    taps = int(op.attributes["taps"])
    weight = np.ascontiguousarray(weights.array(op.weights["weight"]).reshape(-1, taps).T, np.float32)
    return "short_conv", {"taps": taps, "weight": weight}


def _gated_delta_rule(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    sizes = {name: op.attributes[name] for name in ("key_heads", "value_heads", "key_dim", "value_dim")}
    vectors = {name: weights.array(op.weights[name]) for name in ("dt_bias", "decay")}
    return "gated_delta_rule", {**sizes, **vectors, "interleaved": op.attributes["grouping"] == "interleaved"}


def _low_rank_group(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    buffer = op.outputs[0].buffer
    whole = memory.placement[buffer], buffer.width, 0  # an adapter's parts know their columns
    return "low_rank", {"group": op.attributes["group"], "k": op.inputs[0].width, "output": whole}


def _pool(op: Op, weights: ResidentWeights, memory: MemoryPlan) -> tuple[str, Arguments]:
    return "pool", {"pool": str(op.attributes["mode"])}


LOWERINGS: Mapping[str, Lowering] = {
    "embed_rows": _embed_rows,
    "embed_rows_add": _embed_rows,
    "input_rows": _input_rows,
    "linear": _linear,
    "linear_add": _linear,
    **{f"linear_{activation}": _linear for activation in ACTIVATIONS},
    **dict.fromkeys(ACTIVATIONS, _activation),
    "layer_norm": _layer_norm,
    "layer_norm_quantized": _layer_norm,
    "quantize_rows": _quantize,
    "quantize_blocks": _quantize,
    "quantize_block_pairs": _quantize,
    "linear_pairs": _linear_pairs,
    "attention": _attention,
    "rms_norm": _rms_norm,
    "rope_angles": _rope_angles,
    "rope": _rope,
    "kv_write": _kv_write,
    "paged_attention": _paged_attention,
    "pool": _pool,
    **EXPERT_LOWERINGS,
    "short_conv": _short_conv,
    "gated_delta_rule": _gated_delta_rule,
    "low_rank_group": _low_rank_group,
}
"""By the kind of the op; those whose kernel has their name and no parameters have no entry."""
