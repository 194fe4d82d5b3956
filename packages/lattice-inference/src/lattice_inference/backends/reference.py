"""Runs a program in NumPy, op by op: the readable twin of every kernel, and the oracle of the conformance tests.

With ``dtype=np.float64`` it is the mathematical meaning of a program; with float32 it shows what plain NumPy would give.
It runs programs as models write them, never fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Buffer, Op, Program, View, WeightRef

__all__ = ["run"]

Array = npt.NDArray[Any]


def run(
    program: Program, weights: Mapping[str, Array], batch: Batch, *, dtype: npt.DTypeLike = np.float64
) -> dict[str, Array]:
    """Return the outputs of ``program`` for ``batch``.

    Args:
        program: as a model's builder made it.
        weights: checkpoint tensors by name.
        batch: the packed batch.
        dtype: the type that everything is computed in.

    Raises:
        UnsupportedError: the program has an op that this backend lacks (a fused one, say).
    """
    values: dict[Buffer, Array] = {}

    def read(view: View) -> Array:
        return np.asarray(values[view.buffer][:, view.column : view.column + view.width])

    def weight(ref: WeightRef) -> Array:
        return np.concatenate([np.asarray(weights[name], dtype=dtype) for name in ref.sources])

    for op in program.ops:
        if op.kind not in _KERNELS:
            raise UnsupportedError(f"the reference backend has no op {op.kind!r}: it runs programs before fusion")
        inputs = [read(view) for view in op.inputs]
        tensors = {name: weight(ref) for name, ref in op.weights.items()}
        values[op.outputs[0].buffer] = _KERNELS[op.kind](op, inputs, tensors, batch)
    return {name: read(view) for name, view in program.outputs.items()}


def _embed_rows(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(weights["table"][getattr(batch, str(op.attributes["ids"]))])


def _linear(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    y = np.asarray(inputs[0] @ weights["weight"].T)
    return np.asarray(y + weights["bias"]) if "bias" in weights else y


def _add(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(inputs[0] + inputs[1])


def _gelu(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    if op.attributes["form"] == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    error_function = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * x * (1 + error_function(x / math.sqrt(2))), dtype=x.dtype)


def _relu(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(np.maximum(inputs[0], 0))


def _silu(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    return np.asarray(x * 0.5 * (1 + np.tanh(0.5 * x)))


def _tanh(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(np.tanh(inputs[0]))


def _layer_norm(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    normal = centred / np.sqrt(variance + op.attributes["epsilon"])
    return np.asarray(normal * weights["weight"] + weights["bias"])


def _attention(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    heads, kv_heads = int(op.attributes["heads"]), int(op.attributes["kv_heads"])
    query, key, value = (x.reshape(len(x), -1, int(op.attributes["head_dim"])) for x in inputs)
    output = np.empty_like(query)
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = query[start:end, head] @ key[start:end, kv_head].T * op.attributes["scale"]
            weight = np.exp(scores - scores.max(axis=1, keepdims=True))
            output[start:end, head] = weight @ value[start:end, kv_head] / weight.sum(axis=1, keepdims=True)
    return output.reshape(len(output), -1)


def _pool(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    first, end = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    if op.attributes["mode"] == "cls":
        return x[first]
    if op.attributes["mode"] == "last":
        return x[end - 1]
    return np.stack([x[a:b].mean(axis=0) for a, b in zip(first, end, strict=True)])


def _l2_normalize(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    return np.asarray(x / np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), 1e-12))


_KERNELS: Mapping[str, Callable[[Op, list[Array], Mapping[str, Array], Batch], Array]] = {
    "embed_rows": _embed_rows,
    "linear": _linear,
    "add": _add,
    "gelu": _gelu,
    "relu": _relu,
    "silu": _silu,
    "tanh": _tanh,
    "layer_norm": _layer_norm,
    "attention": _attention,
    "pool": _pool,
    "l2_normalize": _l2_normalize,
}
