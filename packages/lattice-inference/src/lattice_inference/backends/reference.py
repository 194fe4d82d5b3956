"""Runs a program in NumPy, op by op: a readable reference for every kernel.

The conformance tests compare kernels with it. With ``dtype=np.float64`` it computes the mathematical meaning of a program;
with float32 it computes what plain NumPy would give. It runs programs before fusion. Programs that keep keys and values
take a :class:`~lattice_inference.backends.reference_state.ReferenceState`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.reference_recurrent import ReferenceSlots, run_recurrent
from lattice_inference.backends.reference_state import ReferenceState
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Buffer, Op, Program, Rows, View, WeightRef
from lattice_inference.graph.recurrent_ops import RECURRENT_OPS

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import LowRankFactors

__all__ = ["compute", "run", "seen_keys"]

Array = npt.NDArray[Any]

_WITH_STATE = frozenset(["kv_write", "paged_attention", *RECURRENT_OPS])


def run(
    program: Program,
    weights: Mapping[str, Array],
    batch: Batch,
    *,
    dtype: npt.DTypeLike = np.float64,
    state: ReferenceState | None = None,
    adapters: Sequence[Mapping[str, LowRankFactors]] = (),
) -> dict[str, Array]:
    """Return the outputs of ``program`` for ``batch``.

    Args:
        program: the program that a model's builder made.
        weights: checkpoint tensors by name.
        batch: the packed batch.
        dtype: the type of all computations.
        state: the pages that ``batch.block_table`` names, and the slots; needed by programs that keep state.
        adapters: the adapters that ``batch.adapter`` numbers, each as A, B and scale by site.

    Raises:
        InvalidInputError: the program keeps state and ``state``, ``block_table`` or ``context_lengths`` is missing.
        UnsupportedError: the program has an op that this backend lacks (a fused one, say).
    """
    values: dict[Buffer, Array] = {}

    def read(view: View) -> Array:
        return np.asarray(values[view.buffer][:, view.column : view.column + view.width])

    def weight(ref: WeightRef) -> Array:
        joined = np.concatenate([np.asarray(weights[name], dtype=dtype) for name in ref.sources])
        return joined.reshape(ref.shape) if ref.is_stack else joined

    for op in program.ops:
        if op.kind not in _KERNELS and op.kind not in _WITH_STATE and op.kind != "low_rank":
            raise UnsupportedError(f"the reference backend has no op {op.kind!r}: it runs programs before fusion")
        inputs = [read(view) for view in op.inputs]
        tensors = {name: weight(ref) for name, ref in op.weights.items()}
        if op.kind == "kv_write":
            _kv_write(op, inputs, batch, _required(state))
            continue
        if op.kind == "paged_attention":
            values[op.outputs[0].buffer] = _paged_attention(op, inputs[0], batch, _required(state))
            continue
        if op.kind in RECURRENT_OPS:
            values[op.outputs[0].buffer] = run_recurrent(op, inputs, tensors, batch, _slots(state))
            continue
        if op.kind == "low_rank":
            _low_rank(op, inputs, batch, adapters)
            continue
        result, output = np.asarray(_KERNELS[op.kind](op, inputs, tensors, batch), dtype), op.outputs[0]
        if not output.is_whole:
            buffer = values.setdefault(output.buffer, np.zeros((len(result), output.buffer.width), result.dtype))
            buffer[:, output.column : output.column + output.width] = result
            continue
        values[output.buffer] = result
    return {name: read(view) for name, view in program.outputs.items()}


def compute(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    """Return the output of one op that keeps no state.

    Raises:
        UnsupportedError: there is no such op.
    """
    if op.kind not in _KERNELS:
        raise UnsupportedError(f"the reference backend has no op {op.kind!r}")
    return _KERNELS[op.kind](op, inputs, weights, batch)


def _embed_rows(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(weights["table"][getattr(batch, str(op.attributes["ids"]))])


def _input_rows(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    assert batch.inputs is not None  # the caller checked them
    return batch.inputs[str(op.attributes["name"])].astype(np.float64)


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


def _sigmoid(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * inputs[0])))


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
            if op.attributes["mask"] == "causal":
                scores[~seen_keys(end - start, int(op.attributes["window"]))] = -np.inf
            weight = np.exp(scores - scores.max(axis=1, keepdims=True))
            output[start:end, head] = weight @ value[start:end, kv_head] / weight.sum(axis=1, keepdims=True)
    return output.reshape(len(output), -1)


def seen_keys(length: int, window: int) -> npt.NDArray[np.bool_]:
    """Return which keys (columns) each row of a causal sequence attends to."""
    row, key = np.ogrid[:length, :length]
    return (key <= row) & ((key > row - window) if window else True)


def _required(state: ReferenceState | None) -> ReferenceState:
    if state is None:
        raise InvalidInputError("the program keeps state: pass the state that holds its pages and slots")
    return state


def _slots(state: ReferenceState | None) -> ReferenceSlots:
    slots = _required(state).recurrent
    if slots is None:
        raise InvalidInputError("the program keeps recurrent state: pass a state that was opened with recurrent_specs")
    return slots


def _rms_norm(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    x = inputs[0].reshape(len(inputs[0]), int(op.attributes["heads"]), -1)
    mean = (x * x).mean(axis=2, keepdims=True)
    normal = x / np.sqrt(mean + op.attributes["epsilon"]) * (weights["weight"] + op.attributes["offset"])
    return np.asarray(normal.reshape(len(x), -1), x.dtype)


def _mul(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(inputs[0] * inputs[1])


def _rope_angles(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    frequencies = weights["frequencies"]
    assert batch.positions is not None
    # angles are float32 in every precision: at position 30,000 the last bit of an angle is 0.002
    angles = batch.positions.astype(np.float32)[:, None] * frequencies.astype(np.float32)
    exact = angles.astype(np.float64)
    table = np.concatenate([np.cos(exact), np.sin(exact)], axis=1) * float(op.attributes["scale"])
    return table.astype(frequencies.dtype)


def _rope(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    x, angles = inputs
    pairs = angles.shape[1] // 2
    cosine, sine = angles[:, None, :pairs], angles[:, None, pairs:]
    result = x.reshape(len(x), int(op.attributes["heads"]), -1).copy()
    half = op.attributes["pairing"] == "half"
    first, second = (
        (np.s_[:, :, :pairs], np.s_[:, :, pairs : 2 * pairs])
        if half
        else (np.s_[:, :, 0 : 2 * pairs : 2], np.s_[:, :, 1 : 2 * pairs : 2])
    )
    a, b = result[first].copy(), result[second].copy()
    result[first] = a * cosine - b * sine
    result[second] = b * cosine + a * sine
    return np.asarray(result.reshape(len(x), -1))


def _gather_rows(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    return np.asarray(inputs[0][batch.logit_rows if batch.logit_rows is not None else []])


def _sequences(batch: Batch) -> Iterator[tuple[int, int, int, npt.NDArray[np.int32]]]:
    """Yield first row, end row, tokens in the cache before them and pages of each sequence."""
    if batch.context_lengths is None or batch.block_table is None:
        raise InvalidInputError("the program keeps keys and values: the batch needs context_lengths and block_table")
    for sequence, pages in enumerate(batch.block_table):
        first, end = batch.cu_seqlens[sequence : sequence + 2]
        yield int(first), int(end), int(batch.context_lengths[sequence]), pages


def _kv_write(op: Op, inputs: list[Array], batch: Batch, state: ReferenceState) -> None:
    layer, head_dim = int(op.attributes["layer"]), int(op.attributes["head_dim"])
    key, value = (x.reshape(len(x), -1, head_dim) for x in inputs)
    for first, end, context, pages in _sequences(batch):
        state.write(layer, pages, context, key[first:end], value[first:end])


def _paged_attention(op: Op, query: Array, batch: Batch, state: ReferenceState) -> Array:
    heads, kv_heads, head_dim = (int(op.attributes[name]) for name in ("heads", "kv_heads", "head_dim"))
    window = int(op.attributes["window"])
    query = query.reshape(len(query), heads, head_dim)
    output = np.empty_like(query)
    for first, end, context, pages in _sequences(batch):
        keys, values = state.read(int(op.attributes["layer"]), pages, context + end - first, query.dtype)
        for row in range(first, end):
            position = context + row - first
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                scores = keys[seen, kv_head] @ query[row, head] * op.attributes["scale"]
                weight = np.exp(scores - scores.max())
                output[row, head] = weight @ values[seen, kv_head] / weight.sum()
    return output.reshape(len(output), -1)


def _low_rank(op: Op, inputs: list[Array], batch: Batch, adapters: Sequence[Mapping[str, LowRankFactors]]) -> None:
    """Add the adapters' products to ``y`` in place; it is a view of its buffer's values."""
    y, x = inputs
    if batch.adapter is None:
        return
    numbers = batch.adapter
    if op.outputs[0].rows is not Rows.SEQUENCES:
        numbers = np.repeat(numbers, np.diff(batch.cu_seqlens))
    if op.outputs[0].rows is Rows.LOGIT_ROWS:
        numbers = numbers[batch.logit_rows if batch.logit_rows is not None else []]
    for number, sites in enumerate(adapters):
        factors = sites.get(str(op.attributes["site"]))
        if factors is not None:
            rows = numbers == number
            y[rows] += x[rows] @ factors.a.astype(x.dtype).T * factors.scale @ factors.b.astype(x.dtype).T


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


def _moe(op: Op, inputs: list[Array], weights: Mapping[str, Array], batch: Batch) -> Array:
    (x,) = inputs
    logits = x @ weights["router"].T
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    # a stable sort keeps experts of equal probability in the order of their numbers
    chosen = np.sort(np.argsort(-probabilities, axis=1, kind="stable")[:, : int(op.attributes["chosen"])], axis=1)
    shares = np.take_along_axis(probabilities, chosen, axis=1)
    if op.attributes["normalized"]:
        shares /= shares.sum(axis=1, keepdims=True)
    y = np.zeros_like(x)
    for row, experts in enumerate(chosen):
        for expert, share in zip(experts, shares[row], strict=True):
            y[row] += share * _expert(x[row], *(weights[name][expert] for name in ("gate", "up", "down")))
    if "shared_router" in weights:
        share = 1 / (1 + np.exp(-(x @ weights["shared_router"].T)))
        y += share * _expert(x, *(weights[f"shared_{name}"] for name in ("gate", "up", "down")))
    return y


def _expert(x: Array, gate: Array, up: Array, down: Array) -> Array:
    wide = x @ gate.T
    return np.asarray((wide * 0.5 * (1 + np.tanh(0.5 * wide)) * (x @ up.T)) @ down.T)


_KERNELS: Mapping[str, Callable[[Op, list[Array], Mapping[str, Array], Batch], Array]] = {
    "embed_rows": _embed_rows,
    "input_rows": _input_rows,
    "linear": _linear,
    "add": _add,
    "gelu": _gelu,
    "relu": _relu,
    "silu": _silu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "layer_norm": _layer_norm,
    "attention": _attention,
    "mul": _mul,
    "rms_norm": _rms_norm,
    "rope_angles": _rope_angles,
    "rope": _rope,
    "gather_rows": _gather_rows,
    "pool": _pool,
    "l2_normalize": _l2_normalize,
    "moe": _moe,
}
