"""Llama, and the parts that other decoders share, as programs: from token ids to logits.

Keys and values are kept in pages. The network is that of Touvron et al. 2023 (https://arxiv.org/abs/2302.13971),
pre-norm::

    x = embedding[id]
    for each layer:
        q, k, v = W x' with x' = RMSNorm(x); q and k rotated by their position; k and v kept in the cache
        x = x + Wo attention(q, all k and v up to here)
        x = x + Wdown (silu(Wgate x'') * Wup x'') with x'' = RMSNorm(x)
    logits = Wout RMSNorm(x)

If the names say so, each head of q and k is normed before the rotation (Qwen3). If the configuration says so, a layer has
a mixture of experts in place of the feed-forward block. After the last layer's attention, only the rows with a result
are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lattice_inference.errors import CheckpointError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Program, View, WeightRef
from lattice_inference.models.decoder_config import DecoderConfig
from lattice_inference.models.experts import ExpertNames, Experts

__all__ = [
    "GGUF_NAMES",
    "HUGGING_FACE_NAMES",
    "ROPE_FREQUENCIES",
    "DecoderLayers",
    "DecoderNames",
    "build_llama",
    "find_decoder_names",
    "hugging_face_names",
]

ROPE_FREQUENCIES = "rope.frequencies"
"""The name under which the source of weights gives the frequencies of a config's ``rope``, (rotary_dim / 2,) float32."""


@dataclass(frozen=True)
class DecoderNames:
    """The names of the tensors in a source of weights; those of a layer hold ``{layer}``.

    ``query_norm`` and ``key_norm`` are None if heads are not normed. ``pairing`` is how the rows of queries and keys form
    pairs for the rotation. It depends on the source: GGUF files of architecture ``llama`` interleave them. ``experts``
    holds the names in layers with experts, if there are some.
    """

    embedding: str
    norm: str
    output: str
    attention_norm: str
    query: str
    key: str
    value: str
    attention_output: str
    feed_forward_norm: str
    gate: str
    up: str
    down: str
    pairing: Literal["half", "interleaved"]
    query_norm: str | None = None
    key_norm: str | None = None
    experts: ExpertNames | None = None


def hugging_face_names(prefix: str) -> DecoderNames:
    """Return the names in checkpoints of transformers.

    ``prefix`` is the text before ``layers.``.
    """
    at = f"{prefix}layers.{{layer}}."
    return DecoderNames(
        embedding=f"{prefix}embed_tokens",
        norm=f"{prefix}norm",
        output="lm_head",
        attention_norm=f"{at}input_layernorm",
        query=f"{at}self_attn.q_proj",
        key=f"{at}self_attn.k_proj",
        value=f"{at}self_attn.v_proj",
        attention_output=f"{at}self_attn.o_proj",
        feed_forward_norm=f"{at}post_attention_layernorm",
        gate=f"{at}mlp.gate_proj",
        up=f"{at}mlp.up_proj",
        down=f"{at}mlp.down_proj",
        pairing="half",
    )


HUGGING_FACE_NAMES = hugging_face_names("model.")
GGUF_NAMES = DecoderNames(
    embedding="token_embd",
    norm="output_norm",
    output="output",
    attention_norm="blk.{layer}.attn_norm",
    query="blk.{layer}.attn_q",
    key="blk.{layer}.attn_k",
    value="blk.{layer}.attn_v",
    attention_output="blk.{layer}.attn_output",
    feed_forward_norm="blk.{layer}.ffn_norm",
    gate="blk.{layer}.ffn_gate",
    up="blk.{layer}.ffn_up",
    down="blk.{layer}.ffn_down",
    pairing="interleaved",
)


def find_decoder_names(
    tensors: Container[str],
    *,
    tied: bool = False,
    prefixes: Sequence[str] = ("model.", ""),
    source: object = "the checkpoint",
) -> DecoderNames:
    """Return the names of a safetensors checkpoint that holds ``tensors``.

    Args:
        tensors: the checkpoint, or the names of its tensors.
        tied: whether the output matrix is the embedding, which may then have either name.
        prefixes: what may stand before ``layers.``.
        source: where the tensors are, for messages.

    Raises:
        CheckpointError: no known name of the embedding is there.
    """
    for prefix in prefixes:
        if f"{prefix}embed_tokens.weight" in tensors:
            return hugging_face_names(prefix)
    for prefix in prefixes:
        names = hugging_face_names(prefix)
        if tied and f"{names.output}.weight" in tensors and f"{names.norm}.weight" in tensors:
            return replace(names, embedding=names.output)
    raise CheckpointError(f"{source} has no tensor {prefixes[0]}embed_tokens.weight: it is not a decoder's")


def build_llama(config: DecoderConfig, names: DecoderNames = HUGGING_FACE_NAMES) -> Program:
    """Return the program of a decoder, with the output ``logits``, (R, vocab_size)."""
    g = GraphBuilder()
    # a tied embedding is kept once, in the form for multiplication
    layers = DecoderLayers(g, config, names, table_use="linear" if config.tied else "rows")
    x = layers.states(g.gather_rows)
    logits = g.linear(x, layers.embedding if config.tied else layers.weight(names.output, config.vocab_size, x.width))
    specs = [
        KvSpec(layer, config.num_key_value_heads, config.head_dim, "float16", window or None)
        for layer, window in enumerate(config.windows)
    ]
    return g.build({"logits": logits}, kv_specs=specs)


class DecoderLayers:
    """Adds the layers of a decoder to a program.

    Args:
        g: writes the program.
        config: sizes and choices.
        names: the names of the tensors in the source of weights.
        table_use: the form in which the embedding is kept.
        keeps_keys: whether keys and values are kept in pages for later steps; else each step has whole sequences.

    Attributes:
        embedding: the table of tokens.
    """

    def __init__(
        self,
        g: GraphBuilder,
        config: DecoderConfig,
        names: DecoderNames,
        *,
        table_use: Literal["linear", "rows"] = "rows",
        keeps_keys: bool = True,
    ) -> None:
        self._g = g
        self._config = config
        self._names = names
        self._keeps_keys = keeps_keys
        self.embedding: WeightRef
        self.embedding = g.weight(f"{names.embedding}.weight", (config.vocab_size, config.hidden_size), use=table_use)

    def angles(self) -> View:
        """Add the cosines and sines of each token's position."""
        frequencies = self._g.weight(ROPE_FREQUENCIES, (self._config.rotary_dim // 2,), use="vector")
        return self._g.rope_angles(frequencies, scale=self._config.rope.scale)

    def states(self, keep: Callable[[View], View]) -> View:
        """Add all layers and the last norm, and return the norm's output.

        After the last layer's attention, only the rows that ``keep`` selects are computed.
        """
        config = self._config
        x = self._g.embed_rows(self.embedding, ids="token_ids")
        angles = self.angles()
        for layer in range(config.num_hidden_layers):
            is_last = layer == config.num_hidden_layers - 1
            x = self._add(x, angles, layer, keep if is_last else None)
        return self._norm(x, self._names.norm)

    def _add(self, x: View, angles: View, layer: int, keep: Callable[[View], View] | None) -> View:
        """Add one layer; ``keep`` selects the rows to compute after its attention."""
        g, config, names = self._g, self._config, self._names
        context = self._attend(self._norm(x, names.attention_norm.format(layer=layer)), angles, layer)
        if keep is not None:
            context, x = keep(context), keep(x)
        output = self._output_name(layer).format(layer=layer)
        x = g.add(self._linear(context, output, config.hidden_size, config.output_bias), x)
        normal = self._norm(x, names.feed_forward_norm.format(layer=layer))
        if config.experts is not None and config.experts.layers[layer]:
            return g.add(self._mix(normal, layer, config.experts), x)
        gate, up = (
            self._linear(normal, name.format(layer=layer), config.intermediate_size, config.feed_forward_bias)
            for name in (names.gate, names.up)
        )
        wide = g.mul(g.silu(gate), up)
        down = self._linear(wide, names.down.format(layer=layer), config.hidden_size, config.feed_forward_bias)
        return g.add(down, x)

    def _mix(self, normal: View, layer: int, experts: Experts) -> View:
        """Add a layer's mixture of experts."""
        g, names = self._g, self._names.experts
        assert names is not None  # names of experts come with the configuration's experts
        count, width, hidden = experts.count, experts.width, normal.width
        gate, up = (
            g.stack(matrices.sources(layer, count, width), (count, width, hidden))
            for matrices in (names.gate, names.up)
        )
        down = g.stack(names.down.sources(layer, count, hidden), (count, hidden, width))
        router = g.weight(names.router.format(layer=layer), (count, hidden))
        return g.moe(
            normal,
            router=router,
            gate=gate,
            up=up,
            down=down,
            chosen=experts.chosen,
            normalized=experts.normalized,
            shared=self._shared_expert(layer, experts),
        )

    def _shared_expert(self, layer: int, experts: Experts) -> Mapping[str, WeightRef] | None:
        """Return the weights of an expert that every row goes through, if there is one."""
        return None

    def _output_name(self, layer: int) -> str:
        """Return the name of the matrix that a layer's attention goes through."""
        return self._names.attention_output

    def _attend(self, normal: View, angles: View, layer: int) -> View:
        g, config, names = self._g, self._config, self._names
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        bias = config.query_key_value_bias
        query, key, value = (
            self._linear(normal, name.format(layer=layer), width * head_dim, bias)
            for name, width in ((names.query, heads), (names.key, kv_heads), (names.value, kv_heads))
        )
        if names.query_norm is not None and names.key_norm is not None:
            query = self._norm(query, names.query_norm.format(layer=layer), heads)
            key = self._norm(key, names.key_norm.format(layer=layer), kv_heads)
        query = g.rope(query, angles, heads=heads, head_dim=head_dim, pairing=names.pairing)
        key = g.rope(key, angles, heads=kv_heads, head_dim=head_dim, pairing=names.pairing)
        scale, window = 1 / math.sqrt(head_dim), config.windows[layer]
        if not self._keeps_keys:
            return g.attention(
                query,
                key,
                value,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=scale,
                mask="causal",
                window=window,
            )
        g.kv_write(key, value, layer=layer, kv_heads=kv_heads, head_dim=head_dim)
        return g.paged_attention(
            query, layer=layer, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale, window=window
        )

    def _norm(self, x: View, name: str, heads: int = 1) -> View:
        weight = self._g.weight(f"{name}.weight", (x.width // heads,), use="vector")
        return self._g.rms_norm(x, weight, epsilon=self._config.rms_norm_eps, heads=heads)

    def _linear(self, x: View, name: str, width: int, bias: bool) -> View:
        vector = self._g.weight(f"{name}.bias", (width,), use="vector") if bias else None
        return self._g.linear(x, self.weight(name, width, x.width), vector)

    def weight(self, name: str, width: int, depth: int) -> WeightRef:
        """Name the matrix of a linear."""
        return self._g.weight(f"{name}.weight", (width, depth))
