"""Qwen3.5 as a program: some layers keep keys and values, the others a state of fixed size.

The network is a pre-norm decoder (:mod:`~lattice_inference.models.llama`) in which most layers have a gated delta rule
(Yang et al. 2024, https://arxiv.org/abs/2412.06464) in place of attention::

    q|k|v = silu(short_conv(Wqkv x'));  z, a, b = Wz x', Wa x', Wb x'
    x = x + Wo (RMSNorm(gated_delta_rule(q|k|v, a, b), a head) * silu(z))

The others attend, with a gate for every column of a head; a quarter of a head's dimensions turn::

    x = x + Wo (attention(q, k, v) * sigmoid(g))

All norms but that of the rule's result scale by 1 + w. Rotary positions have three axes for images; all three are the
same for a token of text, so they are positions of one axis here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from lattice_inference.checkpoint.tensor_rows import rows_name
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Program, RecurrentSpec, Rows, View, WeightRef
from lattice_inference.graph.recurrent_ops import recurrent_spec
from lattice_inference.models.experts import Experts
from lattice_inference.models.llama import DecoderLayers
from lattice_inference.models.qwen35_config import Qwen35Config
from lattice_inference.models.qwen35_names import MtpNames, Qwen35Names

__all__ = ["Qwen35Layers", "build_qwen35", "build_qwen35_mtp", "build_qwen35_rules", "kv_specs_of"]


def build_qwen35(config: Qwen35Config, names: Qwen35Names, *, keeps_hidden: bool = False) -> Program:
    """Return the program, with the output ``logits``, (R, vocab_size).

    Args:
        config: sizes and choices.
        names: the names of the tensors.
        keeps_hidden: whether there is an output ``hidden``, (T, width), which the extra layers read: the last norm's output
            for every token. Pages then have room for their keys and values. Otherwise the last layer computes only rows
            with logits.
    """
    g = GraphBuilder()
    layers = Qwen35Layers(g, config, names, table_use="linear" if config.tied else "rows")
    x = layers.states((lambda view: view) if keeps_hidden else g.gather_rows)
    outputs = {"logits": layers.logits(g.gather_rows(x) if keeps_hidden else x)}
    if keeps_hidden:
        outputs["hidden"] = x
    specs = kv_specs_of(config, config.mtp_layers if keeps_hidden else 0)
    return g.build(outputs, kv_specs=specs, recurrent_specs=layers.recurrent_specs)


def build_qwen35_rules(config: Qwen35Config, names: Qwen35Names) -> Program:
    """Return a program that skips the layers that attend, and so reads no keys and values.

    It has the weights and the recurrent state of :func:`build_qwen35`. Its ``logits``, (R, vocab_size), are a guess of
    what the model says.
    """
    g = GraphBuilder()
    layers = Qwen35Layers(g, config, names, table_use="linear" if config.tied else "rows")
    logits = layers.logits(g.gather_rows(layers.states_of_rules()))
    return g.build({"logits": logits}, recurrent_specs=layers.recurrent_specs)


def kv_specs_of(config: Qwen35Config, extra_layers: int) -> list[KvSpec]:
    """Return what the layers that attend keep, and after them ``extra_layers``.

    They are numbered without the other layers.
    """
    count = config.delta.layers.count(False) + extra_layers
    return [KvSpec(number, config.num_key_value_heads, config.head_dim, "float16") for number in range(count)]


def build_qwen35_mtp(config: Qwen35Config, names: MtpNames, *, number: int = 0) -> Program:
    """Return the program of a layer that predicts a further token.

    It runs over the pages of :func:`build_qwen35`.

    Row t takes ``hidden`` of token t from the batch's inputs and token t + 1 as the batch's id; the layer's keys and
    values of row t stand at position t. The outputs are ``logits`` (R, vocab_size), of token t + 2, and ``hidden``
    (R, width): what the layer takes in the place of the model's rows to predict one token more.

    Of several layers, layer k takes the rows of the layer before it, and token t + 1 + k. All but the last one give
    ``hidden`` for every token, as the next one reads it.

    Args:
        config: sizes and choices of the model.
        names: the names of the tensors.
        number: the number of the layer among the extra ones.
    """
    g = GraphBuilder()
    given = g.input_rows("hidden", Rows.TOKENS, config.hidden_size)
    one = config.with_one_attending_layer()
    first_kv = config.delta.layers.count(False) + number
    table_use: Literal["linear", "rows"] = "linear" if config.tied else "rows"
    layers = Qwen35Layers(g, one, names.layer, table_use=table_use, first_kv=first_kv)
    specs = kv_specs_of(config, config.mtp_layers)
    if number + 1 == config.mtp_layers:
        x = layers.predict(given, names, g.gather_rows)
        return g.build({"logits": layers.logits(x), "hidden": x}, kv_specs=specs)
    x = layers.predict(given, names, lambda view: view)
    return g.build({"logits": layers.logits(g.gather_rows(x)), "hidden": x}, kv_specs=specs)


class Qwen35Layers(DecoderLayers):
    """Adds the layers of a Qwen3.5 to a program.

    Args:
        g: writes the program.
        config: sizes and choices.
        names: the names of the tensors.
        table_use: the form in which the embedding is kept.
        first_kv: the number of the first layer's keys and values in the pages.
    """

    def __init__(
        self,
        g: GraphBuilder,
        config: Qwen35Config,
        names: Qwen35Names,
        *,
        table_use: Literal["linear", "rows"],
        first_kv: int = 0,
    ) -> None:
        super().__init__(g, config, names, table_use=table_use)
        self._hybrid = config
        self._tensors = names
        self._first_kv = first_kv

    @property
    def recurrent_specs(self) -> list[RecurrentSpec]:
        """What the layers with a gated delta rule keep."""
        return [spec for op in self._g.ops if (spec := recurrent_spec(op)) is not None]

    def states_of_rules(self) -> View:
        """Add the layers with a gated delta rule and the last norm; return the norm's output."""
        x = self._g.embed_rows(self.embedding, ids="token_ids")
        for layer, has_rule in enumerate(self._hybrid.delta.layers):
            if has_rule:
                x = self._add(x, x, layer, None)  # these layers read no angles
        return self._norm(x, self._names.norm)

    def logits(self, x: View) -> View:
        """Add the output matrix, which may be the embedding."""
        config = self._hybrid
        weight = self.embedding if config.tied else self.weight(self._tensors.output, config.vocab_size, x.width)
        return self._g.linear(x, weight)

    def predict(self, hidden: View, names: MtpNames, keep: Callable[[View], View]) -> View:
        """Add the one layer over the rows of tokens and ``hidden``, and its norm.

        After the layer's attention, only the rows that ``keep`` selects are computed.
        """
        g, width = self._g, self._hybrid.hidden_size
        token = self._norm(g.embed_rows(self.embedding, ids="token_ids"), names.embedding_norm)
        both = g.beside(token, self._norm(hidden, names.hidden_norm))
        x = self._add(self._linear(both, names.joint, width, False), self.angles(), 0, keep)
        return self._norm(x, names.norm)

    def _output_name(self, layer: int) -> str:
        has_rule = self._hybrid.delta.layers[layer]
        return self._tensors.delta.output if has_rule else self._tensors.attention_output

    def _attend(self, normal: View, angles: View, layer: int) -> View:
        return self._recur(normal, layer) if self._hybrid.delta.layers[layer] else self._gated(normal, angles, layer)

    def _recur(self, normal: View, layer: int) -> View:
        """Add a gated delta rule and the norm of its result."""
        g, delta, names = self._g, self._hybrid.delta, self._tensors.delta
        heads = delta.value_heads
        mixed, z, a, b = (g.linear(normal, weight) for weight in self._inputs_of_rule(layer, normal.width))
        shape = (delta.channels, *names.conv_axes, delta.kernel)
        kernel = g.weight(f"{names.conv.format(layer=layer)}.weight", shape, use="vector")
        result = g.gated_delta_rule(
            g.silu(g.short_conv(mixed, kernel, layer=layer, taps=delta.kernel)),
            a,
            b,
            dt_bias=g.weight(names.dt_bias.format(layer=layer), (heads,), use="vector"),
            decay=g.weight(names.decay.format(layer=layer), (heads,), use="vector"),
            layer=layer,
            key_heads=delta.key_heads,
            value_heads=heads,
            key_dim=delta.key_dim,
            value_dim=delta.value_dim,
            grouping=delta.grouping,
        )
        weight = g.weight(f"{names.norm.format(layer=layer)}.weight", (delta.value_dim,), use="vector")
        return g.mul(g.silu(z), g.rms_norm(result, weight, epsilon=self._hybrid.rms_norm_eps, heads=heads))

    def _inputs_of_rule(self, layer: int, depth: int) -> Iterator[WeightRef]:
        """Yield the matrices of queries, keys and values together, of z, of a and of b."""
        delta, names = self._hybrid.delta, self._tensors.delta
        heads, shared = delta.key_heads, delta.value_heads // delta.key_heads
        if names.qkvz is None:
            yield self.weight(names.qkv.format(layer=layer), delta.channels, depth)
            yield self.weight(names.z.format(layer=layer), delta.value_width, depth)
        else:
            tensor = f"{names.qkvz.format(layer=layer)}.weight"
            parts = (delta.key_dim, delta.key_dim, shared * delta.value_dim, shared * delta.value_dim)
            yield _rows_of_parts(tensor, parts, (0, 1, 2), heads, depth)
            yield _rows_of_parts(tensor, parts, (3,), heads, depth)
        if names.ba is None:
            yield self.weight(names.a.format(layer=layer), delta.value_heads, depth)
            yield self.weight(names.b.format(layer=layer), delta.value_heads, depth)
        else:
            tensor = f"{names.ba.format(layer=layer)}.weight"
            yield _rows_of_parts(tensor, (shared, shared), (1,), heads, depth)
            yield _rows_of_parts(tensor, (shared, shared), (0,), heads, depth)

    def _gated(self, normal: View, angles: View, layer: int) -> View:
        """Add attention whose result is multiplied by a gate."""
        g, config, names = self._g, self._hybrid, self._tensors
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        assert names.query_norm is not None  # every source has them
        assert names.key_norm is not None
        both = f"{names.query.format(layer=layer)}.weight"
        starts = range(0, 2 * heads * head_dim, 2 * head_dim)
        query = g.linear(normal, _chosen(both, starts, head_dim, normal.width))
        gate = g.linear(normal, _chosen(both, range(head_dim, starts.stop, starts.step), head_dim, normal.width))
        key, value = (
            self._linear(normal, name.format(layer=layer), kv_heads * head_dim, False)
            for name in (names.key, names.value)
        )
        query = self._norm(query, names.query_norm.format(layer=layer), heads)
        key = self._norm(key, names.key_norm.format(layer=layer), kv_heads)
        query = g.rope(query, angles, heads=heads, head_dim=head_dim, pairing=names.pairing)
        key = g.rope(key, angles, heads=kv_heads, head_dim=head_dim, pairing=names.pairing)
        number = self._first_kv + config.delta.layers[:layer].count(False)
        g.kv_write(key, value, layer=number, kv_heads=kv_heads, head_dim=head_dim)
        context = g.paged_attention(
            query, layer=number, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=1 / math.sqrt(head_dim)
        )
        return g.mul(context, g.sigmoid(gate))

    def _norm(self, x: View, name: str, heads: int = 1) -> View:
        weight = self._g.weight(f"{name}.weight", (x.width // heads,), use="vector")
        epsilon, offset = self._hybrid.rms_norm_eps, self._tensors.offset
        return self._g.rms_norm(x, weight, epsilon=epsilon, heads=heads, offset=offset)

    def _shared_expert(self, layer: int, experts: Experts) -> dict[str, WeightRef]:
        """Return the weights of the expert that every row goes through."""
        names, width, hidden = self._tensors.shared, self._hybrid.shared_width, self._hybrid.hidden_size
        shapes = {"router": (1, hidden), "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        return {
            f"shared_{part}": self._g.weight(f"{getattr(names, part).format(layer=layer)}.weight", shape)
            for part, shape in shapes.items()
        }


def _rows_of_parts(tensor: str, parts: Sequence[int], wanted: Sequence[int], heads: int, depth: int) -> WeightRef:
    """Name rows of a matrix that has the rows of each part for one head, then for the next.

    A head has ``parts[0]`` rows of the first part. The result has all heads' rows of the first wanted part, then those of
    the second.
    """
    count = math.gcd(*(parts[part] for part in wanted))  # runs of one length
    starts = [
        head * sum(parts) + sum(parts[:part]) + run
        for part in wanted
        for head in range(heads)
        for run in range(0, parts[part], count)
    ]
    return _chosen(tensor, starts, count, depth)


def _chosen(tensor: str, starts: Sequence[int], count: int, depth: int) -> WeightRef:
    """Name ``count`` rows from each of ``starts`` as the weight of a linear."""
    sources = tuple([rows_name(tensor, start, count) for start in starts])
    transform: Literal["none", "concat"] = "concat" if len(sources) > 1 else "none"
    return WeightRef(sources, (len(sources) * count, depth), "linear", transform)
