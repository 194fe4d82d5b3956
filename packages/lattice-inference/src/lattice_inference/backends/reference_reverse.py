"""The ops of the reverse pass in NumPy: a readable form of each.

Their meaning is in :mod:`~lattice_inference.graph.reverse_ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.philox_draws import dropout_factors, noise_of_rows
from lattice_inference.backends.reference import compute, seen_keys
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.program import Op
from lattice_inference.graph.training_batch import TrainingBatch

__all__ = ["REVERSE_KERNELS", "ReferenceSite", "site_op"]

Array = npt.NDArray[Any]


@dataclass
class ReferenceSite:
    """The factors of a site, and the sums of their gradients."""

    a: Array
    b: Array
    da: Array
    db: Array


# -- ops of sites ---------------------------------------------------------------------------------------------------------


def site_op(op: Op, inputs: list[Array], site: ReferenceSite, batch: TrainingBatch) -> Array | None:
    """Run an op that reads or changes a site's factors.

    Returns its output, or None if it changes an input or the site.
    """
    scale = op.attributes.get("scale", 1.0)
    match op.kind:
        case "low_rank_inner":
            return np.asarray(inputs[0] * _dropout(op, inputs[0], batch) @ site.a.T)
        case "low_rank_outer":
            inputs[0] += inputs[1] * scale @ site.b.T
        case "low_rank_inner_grad":
            return np.asarray(inputs[0] @ site.b * scale)
        case "low_rank_input_grad":
            inputs[0] += inputs[1] @ site.a * _dropout(op, inputs[0], batch)
        case "low_rank_grad":
            dy, u, du, x = inputs
            site.db += dy.T @ u * scale
            site.da += du.T @ (x * _dropout(op, x, batch))
    return None


def _dropout(op: Op, x: Array, batch: TrainingBatch) -> Array | float:
    if batch.dropout is None:
        return 1.0
    return dropout_factors(batch.dropout, int(op.attributes["number"]), *x.shape).astype(x.dtype)


# -- inputs and the loss --------------------------------------------------------------------------------------------------


def _add_noise(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    (x,) = inputs
    return [x.copy() if batch.noise is None else x + noise_of_rows(batch.noise, batch.cu_seqlens, x.shape[1], x.dtype)]


def _linear_cross_entropy(
    op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch
) -> list[Array]:
    (x,) = inputs
    if batch.targets is None or batch.target_weights is None:
        raise InvalidInputError("the program has a loss: the batch needs targets and target_weights")
    rows = np.arange(len(x))
    logits = x @ weights["weight"].T
    most = logits.max(axis=1)
    powers = np.exp(logits - most[:, None])
    total = powers.sum(axis=1, dtype=np.float64)
    high = total.astype(x.dtype)
    sums = np.stack([most, high, (total - high).astype(x.dtype), logits[rows, batch.targets]], axis=1)
    if not op.attributes["gradient"]:
        return [sums]
    gradient = powers / high[:, None]
    gradient[rows, batch.targets] -= 1
    return [sums, gradient * batch.target_weights.astype(x.dtype)[:, None] @ weights["weight"]]


# -- the reverse of each op -----------------------------------------------------------------------------------------------


def _linear_input_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    return [inputs[0] @ weights["weight"]]


def _gelu_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = inputs
    if op.attributes["form"] == "tanh":
        root = math.sqrt(2 / math.pi)
        t = np.tanh(root * (x + 0.044715 * x**3))
        return [dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x))]
    error_function = np.vectorize(math.erf, otypes=[np.float64])
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return [np.asarray(dy * (0.5 * (1 + error_function(x / math.sqrt(2))) + x * density), x.dtype)]


def _relu_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = inputs
    return [np.where(x > 0, dy, 0)]


def _silu_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = inputs
    sigmoid = 0.5 * (1 + np.tanh(0.5 * x))
    return [dy * sigmoid * (1 + x * (1 - sigmoid))]


def _tanh_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    y, dy = inputs
    return [dy * (1 - y * y)]


def _normal_grad(normal: Array, gradient: Array, root: Array, *, centred: bool) -> Array:
    """Return the gradient of x.

    ``normal`` is (x - mean) / root of each row, and ``gradient`` the gradient of it.
    """
    along = normal * (normal * gradient).mean(axis=-1, keepdims=True)
    mean = gradient.mean(axis=-1, keepdims=True) if centred else 0
    return np.asarray((gradient - mean - along) / root)


def _layer_norm_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = inputs
    centred = x - x.mean(axis=1, keepdims=True)
    root = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + op.attributes["epsilon"])
    return [_normal_grad(centred / root, dy * weights["weight"], root, centred=True)]


def _rms_norm_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = (rows.reshape(len(rows), int(op.attributes["heads"]), -1) for rows in inputs)
    root = np.sqrt((x * x).mean(axis=2, keepdims=True) + op.attributes["epsilon"])
    gradient = _normal_grad(x / root, dy * (weights["weight"] + op.attributes["offset"]), root, centred=False)
    return [gradient.reshape(inputs[0].shape).astype(inputs[0].dtype)]


def _l2_normalize_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    x, dy = inputs
    length = np.sqrt((x * x).sum(axis=1, keepdims=True))
    divisor = np.maximum(length, 1e-12)
    y = x / divisor
    along = np.where(length > 1e-12, (y * dy).sum(axis=1, keepdims=True), 0)
    return [(dy - y * along) / divisor]


def _rope_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    dy, angles = inputs
    pairs = angles.shape[1] // 2
    back = np.concatenate([angles[:, :pairs], -angles[:, pairs:]], axis=1)
    return [compute(Op("rope", op.inputs, {}, op.outputs, op.attributes), [dy, back], weights, batch)]


def _pool_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    (dy,) = inputs
    first, end = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    if op.attributes["mode"] == "mean":
        return [np.repeat(dy / (end - first)[:, None].astype(dy.dtype), end - first, axis=0)]
    dx = np.zeros((batch.tokens, dy.shape[1]), dy.dtype)
    dx[first if op.attributes["mode"] == "cls" else end - 1] = dy
    return [dx]


def _scatter_rows(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    dx = np.zeros((batch.tokens, inputs[0].shape[1]), inputs[0].dtype)
    np.add.at(dx, batch.logit_rows if batch.logit_rows is not None else [], inputs[0])
    return [dx]


def _heads(op: Op, rows: Array) -> Array:
    return np.asarray(rows.reshape(len(rows), -1, int(op.attributes["head_dim"])))


def _scores(op: Op, query: Array, key: Array, batch: TrainingBatch) -> Iterator[tuple[slice, int, int, Array]]:
    """Yield the rows, the head, the key head and the scores of each sequence and head."""
    heads, kv_heads = int(op.attributes["heads"]), int(op.attributes["kv_heads"])
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        rows = slice(int(start), int(end))
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = query[rows, head] @ key[rows, kv_head].T * op.attributes["scale"]
            if op.attributes["mask"] == "causal":
                scores[~seen_keys(int(end - start), int(op.attributes["window"]))] = -np.inf
            yield rows, head, kv_head, scores


def _attention_with_sums(
    op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch
) -> list[Array]:
    query, key, value = (_heads(op, rows) for rows in inputs)
    heads = query.shape[1]
    y, sums = np.empty_like(query), np.empty((len(query), 2 * heads), query.dtype)
    for rows, head, kv_head, scores in _scores(op, query, key, batch):
        most = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - most)
        total = powers.sum(axis=1, keepdims=True)
        y[rows, head] = powers @ value[rows, kv_head] / total
        sums[rows, head], sums[rows, heads + head] = most[:, 0], total[:, 0]
    return [y.reshape(inputs[0].shape), sums]


def _attention_grad(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: TrainingBatch) -> list[Array]:
    sums = inputs[4]
    query, key, value, y, dy = (_heads(op, rows) for rows in (*inputs[:4], inputs[5]))
    heads, scale = query.shape[1], op.attributes["scale"]
    d_query, d_key, d_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    for rows, head, kv_head, scores in _scores(op, query, key, batch):
        weight = np.exp(scores - sums[rows, head, None]) / sums[rows, heads + head, None]
        d_value[rows, kv_head] += weight.T @ dy[rows, head]
        d_weight = dy[rows, head] @ value[rows, kv_head].T
        d_scores = weight * (d_weight - (dy[rows, head] * y[rows, head]).sum(axis=1, keepdims=True)) * scale
        d_query[rows, head] = d_scores @ key[rows, kv_head]
        d_key[rows, kv_head] += d_scores.T @ query[rows, head]
    shapes = [rows.shape for rows in inputs[:3]]
    return [rows.reshape(shape) for rows, shape in zip((d_query, d_key, d_value), shapes, strict=True)]


REVERSE_KERNELS: Mapping[str, Callable[[Op, list[Array], Mapping[str, Array], TrainingBatch], list[Array]]] = {
    "add_noise": _add_noise,
    "linear_cross_entropy": _linear_cross_entropy,
    "linear_input_grad": _linear_input_grad,
    "attention_with_sums": _attention_with_sums,
    "attention_grad": _attention_grad,
    "gelu_grad": _gelu_grad,
    "relu_grad": _relu_grad,
    "silu_grad": _silu_grad,
    "tanh_grad": _tanh_grad,
    "layer_norm_grad": _layer_norm_grad,
    "rms_norm_grad": _rms_norm_grad,
    "rope_grad": _rope_grad,
    "pool_grad": _pool_grad,
    "l2_normalize_grad": _l2_normalize_grad,
    "scatter_rows": _scatter_rows,
}
"""Each op without a site, as the list of its outputs."""
