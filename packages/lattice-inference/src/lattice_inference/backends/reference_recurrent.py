"""Recurrent ops in NumPy: a readable form of the CPU backend's kernels and of their slots.

The gated delta rule is written as the recurrence that it stands for, one token after the other. A slot holds the state at
the beginning of a block and the rows of the block, so that it can be continued from any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import Op, RecurrentSpec
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK, recurrent_spec

__all__ = ["ReferenceSlots", "run_recurrent"]

Array = npt.NDArray[Any]


class ReferenceSlots:
    """``slots`` slots, each with the state of one sequence for every layer of ``specs``."""

    def __init__(self, specs: Sequence[RecurrentSpec], slots: int) -> None:
        self.specs: tuple[RecurrentSpec, ...] = tuple(specs)
        self.slots = slots
        self._kept = {spec: _arrays(spec, slots) for spec in specs}
        self.slot_bytes: int = sum(array.nbytes for array in self._all()) // max(1, slots)

    def of(self, spec: RecurrentSpec | None) -> Mapping[str, Array]:
        """Return the arrays of a spec, whose first index is the slot."""
        assert spec is not None
        return self._kept[spec]

    def copy(self, source: int, target: int) -> None:
        """Copy one slot over another."""
        for array in self._all():
            array[target] = array[source]

    def export(self, slot: int) -> bytes:
        """Return the content of a slot."""
        return b"".join(array[slot].tobytes() for array in self._all())

    def import_(self, slot: int, content: bytes) -> None:
        """Write what :meth:`export` returned into a slot."""
        if len(content) != self.slot_bytes:
            raise InvalidInputError(f"a slot has {self.slot_bytes} bytes, not {len(content)}")
        for array in self._all():
            part, content = content[: array[slot].nbytes], content[array[slot].nbytes :]
            array[slot] = np.frombuffer(part, array.dtype).reshape(array[slot].shape)

    def close(self) -> None:
        """Release the memory."""
        self._kept = {}

    def _all(self) -> Iterator[Array]:
        for arrays in self._kept.values():
            yield from arrays.values()


def _arrays(spec: RecurrentSpec, slots: int) -> Mapping[str, Array]:
    if spec.name == "short_conv":
        columns, taps = spec.shape
        return {"rows": np.zeros((slots, taps - 1 + DELTA_BLOCK, columns))}
    heads, key_dim, value_dim = spec.shape
    block = (slots, DELTA_BLOCK, heads)
    return {
        "state": np.zeros((slots, heads, key_dim, value_dim)),
        "keys": np.zeros((*block, key_dim)),
        "values": np.zeros((*block, value_dim)),
        "alpha": np.zeros(block),
        "beta": np.zeros(block),
    }


def run_recurrent(
    op: Op, inputs: Sequence[Array], weights: Mapping[str, Array], batch: Batch, slots: ReferenceSlots
) -> Array:
    """Return the output of a recurrent op, and leave its state in the slots of the batch."""
    if batch.read_slots is None or batch.write_slots is None or batch.context_lengths is None:
        raise InvalidInputError("the program keeps recurrent state: the batch needs context_lengths and slots")
    kept = slots.of(recurrent_spec(op))
    run = _short_conv if op.kind == "short_conv" else _gated_delta_rule
    outputs = []
    for sequence, (first, end) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
        context = int(batch.context_lengths[sequence])
        read = {name: array[batch.read_slots[sequence]] for name, array in kept.items()}
        write = {name: array[batch.write_slots[sequence]] for name, array in kept.items()}
        outputs.append(run(op, [x[first:end] for x in inputs], weights, context, read, write))
    return np.concatenate(outputs)


def _short_conv(
    op: Op,
    inputs: Sequence[Array],
    weights: Mapping[str, Array],
    context: int,
    read: Mapping[str, Array],
    write: Mapping[str, Array],
) -> Array:
    (x,) = inputs
    weight = weights["weight"].reshape(x.shape[1], -1)
    before, base = weight.shape[1] - 1, context - context % DELTA_BLOCK
    if context == 0:
        read["rows"][:] = 0
    held = read["rows"][: before + context - base]
    rows = np.concatenate([held.astype(x.dtype), x])  # row i has the position base - before + i
    y = np.stack([(rows[len(held) - before + t :][: before + 1] * weight.T).sum(axis=0) for t in range(len(x))])
    part = rows[: before + DELTA_BLOCK]
    read["rows"][: len(part)] = part
    end = context + len(x)
    if end // DELTA_BLOCK * DELTA_BLOCK != base:
        part = rows[end // DELTA_BLOCK * DELTA_BLOCK - base :]
        write["rows"][: len(part)] = part
    return y


def _gated_delta_rule(
    op: Op,
    inputs: Sequence[Array],
    weights: Mapping[str, Array],
    context: int,
    read: Mapping[str, Array],
    write: Mapping[str, Array],
) -> Array:
    key_heads, value_heads, key_dim, value_dim = (
        int(op.attributes[name]) for name in ("key_heads", "value_heads", "key_dim", "value_dim")
    )
    x, a, b = inputs
    step = a + weights["dt_bias"]
    alpha = np.exp(weights["decay"] * (np.maximum(step, 0) + np.log1p(np.exp(-np.abs(step)))))
    beta = 1 / (1 + np.exp(-b))
    width = key_heads * key_dim
    heads = np.arange(value_heads)
    chosen = heads // (value_heads // key_heads) if op.attributes["grouping"] == "blocks" else heads % key_heads
    query = _normal(x[:, :width].reshape(len(x), key_heads, key_dim))[:, chosen] * key_dim**-0.5
    key = _normal(x[:, width : 2 * width].reshape(len(x), key_heads, key_dim))[:, chosen]
    value = x[:, 2 * width :].reshape(len(x), value_heads, value_dim)

    if context == 0:
        read["state"][:] = 0
    slot, state = read, read["state"].astype(x.dtype)
    for row in range(context % DELTA_BLOCK):
        state = _after(state, *(slot[name][row].astype(x.dtype) for name in ("keys", "values", "alpha", "beta")))
    y = np.empty_like(value)
    last = (context + len(x)) // DELTA_BLOCK * DELTA_BLOCK
    kept = {name: np.zeros_like(array) for name, array in write.items()}
    for token, position in enumerate(range(context, context + len(x))):
        row = position % DELTA_BLOCK
        rows = {"keys": key[token], "values": value[token], "alpha": alpha[token], "beta": beta[token]}
        for name, content in rows.items():
            slot[name][row] = content
        state = _after(state, *rows.values())
        y[token] = np.einsum("hkv,hk->hv", state, query[token])
        if row == DELTA_BLOCK - 1:
            # rows of blocks that begin and end in this step are kept nowhere
            slot = write if position + 1 == last else kept
            slot["state"][:] = state
    return y.reshape(len(x), -1)


def _normal(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6))


def _after(state: Array, key: Array, value: Array, alpha: Array, beta: Array) -> Array:
    """Return the state of each head after one more token."""
    state = state * alpha[:, None, None]
    change = beta[:, None] * (value - np.einsum("hkv,hk->hv", state, key))
    return np.asarray(state + key[:, :, None] * change[:, None, :])
