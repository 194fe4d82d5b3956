"""Small programs for the backend tests: one op over drawn data, and a whole random BERT."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.graph.batch import Batch
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program, View

Float32Array = npt.NDArray[np.float32]
# Whether each instruction of this CPU takes some ten of the real one (ci/neon.py): then what repeats may do so less often.
EMULATED = os.environ.get("LATTICE_TEST_EMULATED") == "1"


@dataclass(frozen=True)
class Tensors:
    """A source of weights that holds them in a dictionary."""

    tensors: Mapping[str, npt.NDArray[Any]]

    def float32(self, name: str) -> Float32Array:
        return np.ascontiguousarray(self.tensors[name], np.float32)

    def drop_pages(self, name: str) -> None:
        assert name in self.tensors


def batch_of(lengths: Sequence[int]) -> Batch:
    """A batch whose token ids count its rows, so that an embedding of them is the table itself."""
    total = sum(lengths)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Batch(np.arange(total, dtype=np.int32), cu_seqlens, positions=np.zeros(total, np.int32))


def one_op(
    inputs: Mapping[str, Float32Array], write: Callable[[GraphBuilder, dict[str, View]], View]
) -> tuple[Program, dict[str, Float32Array]]:
    """Return a program that feeds the rows of ``inputs`` to the ops that ``write`` adds, and its tensors."""
    g = GraphBuilder()
    views = {
        name: g.embed_rows(g.weight(name, array.shape, use="rows"), ids="token_ids") for name, array in inputs.items()
    }
    return g.build({"y": write(g, views)}), dict(inputs)


def random_bert(
    rng: np.random.Generator, *, layers: int = 2, hidden: int = 48, heads: int = 4, inner: int = 80, vocab: int = 97
) -> tuple[Program, dict[str, Float32Array]]:
    """A BERT encoder with drawn weights, written with the builder alone; token types and positions have small tables."""
    g = GraphBuilder()
    tensors: dict[str, Float32Array] = {}

    def tensor(name: str, *shape: int, scale: float = 0.2) -> tuple[str, tuple[int, ...]]:
        tensors[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        return name, shape

    def linear(x: View, name: str, width: int) -> View:
        weight = g.weight(*tensor(f"{name}.w", width, x.width))
        return g.linear(x, weight, g.weight(*tensor(f"{name}.b", width), use="vector"))

    def layer_norm(x: View, name: str) -> View:
        scale, shift = (g.weight(*tensor(f"{name}.{part}", x.width, scale=1.0), use="vector") for part in "wb")
        return g.layer_norm(x, scale, shift, epsilon=1e-12)

    x = g.embed_rows(g.weight(*tensor("words", vocab, hidden, scale=1.0), use="rows"), ids="token_ids")
    x = g.add(x, g.embed_rows(g.weight(*tensor("types", 2, hidden), use="rows"), ids="token_type_ids"))
    x = g.add(x, g.embed_rows(g.weight(*tensor("positions", 2048, hidden), use="rows"), ids="positions"))
    x = layer_norm(x, "ln")
    for layer in range(layers):
        q, k, v = (linear(x, f"{layer}.{name}", hidden) for name in "qkv")
        head_dim = hidden // heads
        context = g.attention(q, k, v, heads=heads, kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5)
        x = layer_norm(g.add(linear(context, f"{layer}.o", hidden), x), f"{layer}.ln1")
        wide = g.gelu(linear(x, f"{layer}.up", inner))
        x = layer_norm(g.add(linear(wide, f"{layer}.down", hidden), x), f"{layer}.ln2")
    pooled = g.pool(x, mode="mean")
    return g.build({"pooled": pooled, "normalized": g.l2_normalize(pooled)}), tensors


def random_batch(rng: np.random.Generator, lengths: Sequence[int], *, vocab: int = 97) -> Batch:
    """A batch of drawn token ids."""
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Batch(rng.integers(0, vocab, sum(lengths)).astype(np.int32), cu_seqlens)


def sequence_of(batch: Batch, index: int) -> Batch:
    """One sequence of a batch, alone."""
    start, stop = batch.cu_seqlens[index : index + 2]
    return Batch(batch.token_ids[start:stop], np.array([0, stop - start], np.int32))
