"""Writes programs: a method an op, each checked as it is added.

>>> g = GraphBuilder()
>>> x = g.embed_rows(g.weight("words", (30522, 384), use="rows"), ids="token_ids")
>>> y = g.linear(x, g.weight("w", (1536, 384)), g.weight("b", (1536,), use="vector"))
>>> program = g.build({"hidden": g.gelu(y)})
>>> print(program.describe())
embed_rows.0 = embed_rows(table=words, ids='token_ids')
linear.1 = linear(embed_rows.0, weight=w, bias=b)
gelu.2 = gelu(linear.1, form='erf')
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from lattice_inference.graph.ops import validate
from lattice_inference.graph.program import AttributeValue, Buffer, Op, Program, View, WeightRef

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collects primitive ops; every method returns the view that holds its result.

    The meaning of each op is in :mod:`~lattice_inference.graph.ops`. Raises InvalidInputError when operands do not fit.
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []

    @staticmethod
    def weight(name: str, shape: tuple[int, ...], *, use: Literal["linear", "rows", "vector"] = "linear") -> WeightRef:
        """Name a tensor of the checkpoint and the shape it must have."""
        return WeightRef((name,), shape, use)

    def embed_rows(self, table: WeightRef, *, ids: Literal["token_ids", "token_type_ids", "positions"]) -> View:
        """Look up a row of ``table`` for every token."""
        return self._append("embed_rows", (), {"table": table}, {"ids": ids})

    def linear(self, x: View, weight: WeightRef, bias: WeightRef | None = None) -> View:
        """Multiply by a weight of shape [out, in] and add a bias."""
        weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return self._append("linear", (x,), weights, {})

    def add(self, a: View, b: View) -> View:
        """Add two views of one shape."""
        return self._append("add", (a, b), {}, {})

    def gelu(self, x: View, *, form: Literal["erf", "tanh"] = "erf") -> View:
        """Apply GELU in its exact (erf) or approximate (tanh) form."""
        return self._append("gelu", (x,), {}, {"form": form})

    def relu(self, x: View) -> View:
        """Apply max(x, 0)."""
        return self._append("relu", (x,), {}, {})

    def silu(self, x: View) -> View:
        """Apply x * sigmoid(x)."""
        return self._append("silu", (x,), {}, {})

    def tanh(self, x: View) -> View:
        """Apply the hyperbolic tangent."""
        return self._append("tanh", (x,), {}, {})

    def layer_norm(self, x: View, weight: WeightRef, bias: WeightRef, *, epsilon: float) -> View:
        """Normalise every row to mean 0 and variance 1, then scale and shift."""
        return self._append("layer_norm", (x,), {"weight": weight, "bias": bias}, {"epsilon": float(epsilon)})

    def attention(
        self,
        query: View,
        key: View,
        value: View,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        mask: Literal["bidirectional"] = "bidirectional",
    ) -> View:
        """Attend within each sequence of the batch."""
        attributes: dict[str, AttributeValue] = {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "scale": float(scale),
            "mask": mask,
        }
        return self._append("attention", (query, key, value), {}, attributes)

    def pool(self, x: View, *, mode: Literal["cls", "mean", "last"]) -> View:
        """Reduce the rows of each sequence to one."""
        return self._append("pool", (x,), {}, {"mode": mode})

    def l2_normalize(self, x: View) -> View:
        """Scale every row to Euclidean length 1."""
        return self._append("l2_normalize", (x,), {}, {})

    def build(self, outputs: Mapping[str, View]) -> Program:
        """Return the program that yields ``outputs`` by name."""
        return Program(tuple(self._ops), outputs)

    def _append(
        self,
        kind: str,
        inputs: tuple[View, ...],
        weights: Mapping[str, WeightRef],
        attributes: Mapping[str, AttributeValue],
    ) -> View:
        rows, width = validate(Op(kind, inputs, weights, (), attributes))
        index = len(self._ops)
        buffer = Buffer(index, f"{kind}.{index}", rows, width)
        view = View(buffer, 0, width)
        self._ops.append(Op(kind, inputs, weights, (view,), attributes))
        return view
