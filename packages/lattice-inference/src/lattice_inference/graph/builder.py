"""Builds programs: one method per op; each op is checked when it is added.

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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from lattice_inference.checkpoint.tensor_rows import rows_name
from lattice_inference.errors import InvalidInputError
from lattice_inference.graph.ops import rows_text, validate
from lattice_inference.graph.program import (
    AttributeValue,
    Buffer,
    KvSpec,
    Op,
    Program,
    RecurrentSpec,
    Rows,
    View,
    WeightRef,
)
from lattice_inference.graph.recurrent_ops import check_recurrent_specs

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collects primitive ops; every method returns the view that holds its result.

    The meaning of each op is in :mod:`~lattice_inference.graph.ops`. Raises InvalidInputError when operands do not fit.
    """

    def __init__(self) -> None:
        self._ops: list[Op] = []

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops so far."""
        return tuple(self._ops)

    @staticmethod
    def weight(
        name: str,
        shape: tuple[int, ...],
        *,
        use: Literal["linear", "rows", "vector"] = "linear",
    ) -> WeightRef:
        """Name a tensor of the checkpoint and the shape it must have."""
        return WeightRef((name,), shape, use)

    @staticmethod
    def rows_weight(name: str, rows: Sequence[int], depth: int) -> WeightRef:
        """Name rows of a matrix of ``depth`` columns, in this order, as the weight of a linear."""
        names = tuple(rows_name(name, row, 1) for row in rows)
        return WeightRef(names, (len(rows), depth), "linear", "concat" if len(rows) > 1 else "none")

    @staticmethod
    def stack(names: Sequence[str], shape: tuple[int, int, int]) -> WeightRef:
        """Name the matrices of a stack of shape (count, out, in).

        Each matrix is made of the same number of tensors of ``names``, one below the other.
        """
        return WeightRef(tuple(names), shape, "linear", "concat" if len(names) > 1 else "none")

    def embed_rows(self, table: WeightRef, *, ids: Literal["token_ids", "token_type_ids", "positions"]) -> View:
        """Look up a row of ``table`` for every token."""
        return self._append("embed_rows", (), {"table": table}, {"ids": ids})

    def input_rows(self, name: str, rows: Rows, width: int) -> View:
        """Take rows of ``width`` numbers from the batch's ``inputs``.

        There is one for each of ``rows``: token, sequence or logit row.
        """
        return self._append("input_rows", (), {}, {"name": name, "rows": rows_text(rows), "width": width})

    def beside(self, first: View, second: View) -> View:
        """Lay two results side by side: the ops that made them write into one buffer.

        Nothing may have read them yet.

        Raises:
            InvalidInputError: one of them is no whole result, was read, or the two have other rows.
        """
        whole = first.is_whole and second.is_whole and first.rows is second.rows and first != second
        read = any(view.buffer in (first.buffer, second.buffer) for op in self._ops for view in op.inputs)
        if not whole or read:
            raise InvalidInputError("only two whole results with the same rows, read by nothing, are laid side by side")
        index = len(self._ops)
        buffer = Buffer(index, f"beside.{index}", first.rows, first.width + second.width)
        parts = {first: View(buffer, 0, first.width), second: View(buffer, first.width, second.width)}
        self._ops = [replace(op, outputs=tuple(parts.get(view, view) for view in op.outputs)) for op in self._ops]
        return View(buffer, 0, buffer.width)

    def linear(self, x: View, weight: WeightRef, bias: WeightRef | None = None) -> View:
        """Multiply by a weight of shape [out, in] and add a bias."""
        weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return self._append("linear", (x,), weights, {})

    def add(self, a: View, b: View) -> View:
        """Add two views of one shape."""
        return self._append("add", (a, b), {}, {})

    def mul(self, a: View, b: View) -> View:
        """Multiply two views of one shape, element by element."""
        return self._append("mul", (a, b), {}, {})

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

    def sigmoid(self, x: View) -> View:
        """Apply 1 / (1 + exp(-x))."""
        return self._append("sigmoid", (x,), {}, {})

    def layer_norm(self, x: View, weight: WeightRef, bias: WeightRef, *, epsilon: float) -> View:
        """Normalise every row to mean 0 and variance 1, then scale and shift."""
        return self._append("layer_norm", (x,), {"weight": weight, "bias": bias}, {"epsilon": float(epsilon)})

    def rms_norm(
        self, x: View, weight: WeightRef, *, epsilon: float, heads: int = 1, offset: Literal[0, 1] = 0
    ) -> View:
        """Divide each row by its root mean square, then scale by ``offset + weight``.

        With ``heads`` above 1, each of that many equal parts of a row is normalised separately.
        """
        attributes: dict[str, AttributeValue] = {"epsilon": float(epsilon), "heads": heads, "offset": float(offset)}
        return self._append("rms_norm", (x,), {"weight": weight}, attributes)

    def rope_angles(self, frequencies: WeightRef, *, scale: float = 1.0) -> View:
        """Return cosines and sines of each position times ``frequencies``, for :meth:`rope`."""
        return self._append("rope_angles", (), {"frequencies": frequencies}, {"scale": float(scale)})

    def rope(
        self, x: View, angles: View, *, heads: int, head_dim: int, pairing: Literal["half", "interleaved"]
    ) -> View:
        """Rotate pairs of each head's dimensions by the angles of the token's position."""
        attributes: dict[str, AttributeValue] = {"heads": heads, "head_dim": head_dim, "pairing": pairing}
        return self._append("rope", (x, angles), {}, attributes)

    def kv_write(self, key: View, value: View, *, layer: int, kv_heads: int, head_dim: int) -> None:
        """Keep the keys and values of every token in the pages of layer ``layer``."""
        attributes: dict[str, AttributeValue] = {"layer": layer, "kv_heads": kv_heads, "head_dim": head_dim}
        op = Op("kv_write", (key, value), {}, (), attributes)
        validate(op)
        self._ops.append(op)

    def paged_attention(
        self, query: View, *, layer: int, heads: int, kv_heads: int, head_dim: int, scale: float, window: int = 0
    ) -> View:
        """Attend to the keys and values in the pages of layer ``layer``, up to the token itself.

        ``window`` is how many of the last positions a token sees; 0 is all of them.
        """
        attributes: dict[str, AttributeValue] = {
            "layer": layer,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "scale": float(scale),
            "window": window,
        }
        return self._append("paged_attention", (query,), {}, attributes)

    def gather_rows(self, x: View) -> View:
        """Keep the rows that the batch's ``logit_rows`` name."""
        return self._append("gather_rows", (x,), {}, {})

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
        mask: Literal["bidirectional", "causal"] = "bidirectional",
        window: int = 0,
    ) -> View:
        """Attend within each sequence of the batch.

        With the mask ``"causal"`` a token sees the positions up to its own. ``window`` is how many of the last of them it
        sees; 0 is all of them.
        """
        attributes: dict[str, AttributeValue] = {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "scale": float(scale),
            "mask": mask,
            "window": window,
        }
        return self._append("attention", (query, key, value), {}, attributes)

    def low_rank(self, y: View, x: View, *, site: str) -> View:
        """Add the scaled product B (A x) of each sequence's adapter for ``site`` to ``y``, in place."""
        attributes: dict[str, AttributeValue] = {"site": site}
        op = Op("low_rank", (y, x), {}, (y,), attributes)
        validate(op)
        self._ops.append(op)
        return y

    def pool(self, x: View, *, mode: Literal["cls", "mean", "last"]) -> View:
        """Reduce the rows of each sequence to one."""
        return self._append("pool", (x,), {}, {"mode": mode})

    def l2_normalize(self, x: View) -> View:
        """Scale every row to Euclidean length 1."""
        return self._append("l2_normalize", (x,), {}, {})

    def moe(
        self,
        x: View,
        *,
        router: WeightRef,
        gate: WeightRef,
        up: WeightRef,
        down: WeightRef,
        chosen: int,
        normalized: bool,
        shared: Mapping[str, WeightRef] | None = None,
    ) -> View:
        """Apply a mixture of experts: ``chosen`` experts a row, weighted by the router.

        Args:
            x: the rows.
            router: (experts, in).
            gate, up, down: stacks, (experts, inner, in) and (experts, in, inner).
            chosen: how many experts each row goes through.
            normalized: whether the probabilities of the chosen experts are divided by their sum.
            shared: the weights :data:`~lattice_inference.graph.ops.SHARED_EXPERT` of an expert for every row.
        """
        weights = {"router": router, "gate": gate, "up": up, "down": down, **(shared or {})}
        return self._append("moe", (x,), weights, {"chosen": chosen, "normalized": normalized})

    def short_conv(self, x: View, weight: WeightRef, *, layer: int, taps: int) -> View:
        """Convolve each column over its last ``taps`` rows.

        ``weight`` is (columns, taps) or (columns, 1, taps), a vector.
        """
        return self._append("short_conv", (x,), {"weight": weight}, {"layer": layer, "taps": taps})

    def gated_delta_rule(
        self,
        x: View,
        a: View,
        b: View,
        *,
        dt_bias: WeightRef,
        decay: WeightRef,
        layer: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        grouping: Literal["blocks", "interleaved"] = "blocks",
    ) -> View:
        """Apply the gated delta rule, whose state is a matrix for each value head.

        Args:
            x: queries, keys and values side by side, before they are normalised.
            a, b: one column for each value head; they make the decay and the share of a row.
            dt_bias, decay: a number for each value head; ``decay`` is -exp(A_log).
            layer: the layer whose state it is.
            key_heads, value_heads, key_dim, value_dim: heads and their widths.
            grouping: see :data:`~lattice_inference.graph.recurrent_ops.GROUPINGS`.
        """
        attributes: dict[str, AttributeValue] = {
            "layer": layer,
            "key_heads": key_heads,
            "value_heads": value_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "grouping": grouping,
        }
        return self._append("gated_delta_rule", (x, a, b), {"dt_bias": dt_bias, "decay": decay}, attributes)

    def build(
        self,
        outputs: Mapping[str, View],
        *,
        kv_specs: Sequence[KvSpec] = (),
        recurrent_specs: Sequence[RecurrentSpec] = (),
    ) -> Program:
        """Return the program with these named outputs.

        Args:
            outputs: the views to return.
            kv_specs: an entry for each layer that keeps keys and values.
            recurrent_specs: an entry for each recurrent op, as
                :func:`~lattice_inference.graph.recurrent_ops.recurrent_spec` gives it.
        """
        check_recurrent_specs(self._ops, recurrent_specs)
        return Program(tuple(self._ops), outputs, tuple(kv_specs), tuple(recurrent_specs))

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
