"""Ops of recurrent layers as kernel calls: a short convolution and the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lattice_inference.backends.gpu.device import sorted_constants
from lattice_inference.backends.gpu.kernel_call import KernelCall, Launch
from lattice_inference.backends.gpu.launches import Lowering, elements
from lattice_inference.graph.program import Op
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK, GROUPINGS, recurrent_spec

__all__ = ["RECURRENT_LOWERINGS"]


def _short_conv(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    y = op.outputs[0]
    weight = lowering.weights.vector(op.weights["weight"])
    yield KernelCall(
        y.rows,
        {"x": op.inputs[0], "y": y},
        elements("short_conv", y.width, TAPS=int(op.attributes["taps"]), BLOCK=DELTA_BLOCK),
        {"n": y.width},
        (weight, None, None),
        spec=recurrent_spec(op),
    )


def _gated_delta_rule(op: Op, lowering: Lowering) -> Iterator[KernelCall]:
    x, a, b = op.inputs
    y = op.outputs[0]
    names = ("key_heads", "value_heads", "key_dim", "value_dim")
    key_heads, value_heads, key_dim, value_dim = (int(op.attributes[name]) for name in names)
    grouping = GROUPINGS.index(str(op.attributes["grouping"]))
    constants = sorted_constants({"GROUPING": grouping, "BLOCK": DELTA_BLOCK})
    bias, decay = (lowering.weights.vector(op.weights[name]) for name in ("dt_bias", "decay"))
    yield KernelCall(
        y.rows,
        {"x": x, "a": a, "b": b, "y": y},
        lambda rows, shape: Launch("gated_delta_rule", constants, shape.sequences * value_heads) if rows else None,
        {"heads": value_heads, "kv_heads": key_heads, "head_dim": key_dim, "n": value_dim},
        (bias, None, decay),
        spec=recurrent_spec(op),
    )


RECURRENT_LOWERINGS: Mapping[str, Callable[[Op, Lowering], Iterator[KernelCall]]] = {
    "short_conv": _short_conv,
    "gated_delta_rule": _gated_delta_rule,
}
