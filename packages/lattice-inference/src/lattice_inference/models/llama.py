"""Llama and its kin as programs: token ids in, logits out, keys and values in pages.

Touvron et al. 2023 (https://arxiv.org/abs/2302.13971), pre-norm:

    x = embedding[id]
    for each layer:
        q, k, v = W x' with x' = RMSNorm(x); q and k turned by their position; k and v kept in the cache
        x = x + Wo attention(q, everything kept up to here)
        x = x + Wdown (silu(Wgate x'') * Wup x'') with x'' = RMSNorm(x)
    logits = Wout RMSNorm(x)

Only the rows whose logits are wanted go through what follows the last layer's attention.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

from lattice_inference.errors import CheckpointError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import KvSpec, Program, View, WeightRef
from lattice_inference.models.llama_config import LlamaConfig

__all__ = ["GGUF_NAMES", "HUGGING_FACE_NAMES", "ROPE_FREQUENCIES", "DecoderNames", "build_llama", "find_decoder_names"]

ROPE_FREQUENCIES = "rope.frequencies"
"""The name under which the source of weights gives the frequencies of ``LlamaConfig.rope``, (rotary_dim / 2,) float32."""


@dataclass(frozen=True)
class DecoderNames:
    """How a source of weights spells the tensors; those of a layer hold ``{layer}``.

    ``pairing`` is how the rows of queries and keys are paired for turning, which goes with the spelling: GGUF files of
    architecture ``llama`` have them interleaved.
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


def _hugging_face(prefix: str) -> DecoderNames:
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


HUGGING_FACE_NAMES = _hugging_face("model.")
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


def find_decoder_names(tensors: Container[str], *, tied: bool = False) -> DecoderNames:
    """Return the spelling of a safetensors checkpoint that holds ``tensors``.

    Args:
        tensors: the checkpoint, or the names of its tensors.
        tied: whether the output matrix is the embedding, which may then stand under either name.

    Raises:
        CheckpointError: no known form of the embedding is there.
    """
    for prefix in ("model.", ""):
        if f"{prefix}embed_tokens.weight" in tensors:
            return _hugging_face(prefix)
    for prefix in ("model.", ""):
        names = _hugging_face(prefix)
        if tied and f"{names.output}.weight" in tensors and f"{names.norm}.weight" in tensors:
            return replace(names, embedding=names.output)
    raise CheckpointError("the checkpoint has no tensor model.embed_tokens.weight: it is not a Llama, Mistral or Qwen2")


def build_llama(config: LlamaConfig, names: DecoderNames = HUGGING_FACE_NAMES) -> Program:
    """Return the program of a decoder, with the output ``logits``, (R, vocab_size)."""
    g = GraphBuilder()
    block = _Block(g, config, names)
    x = g.embed_rows(block.embedding, ids="token_ids")
    frequencies = g.weight(ROPE_FREQUENCIES, (config.rotary_dim // 2,), use="vector")
    angles = g.rope_angles(frequencies, scale=config.rope.scale)
    for layer in range(config.num_hidden_layers):
        x = block.add(x, angles, layer)
    x = block.norm(x, names.norm)
    logits = g.linear(x, block.embedding if config.tied else block.weight(names.output, config.vocab_size, x.width))
    specs = [
        KvSpec(layer, config.num_key_value_heads, config.head_dim, "float16", window or None)
        for layer, window in enumerate(config.windows)
    ]
    return g.build({"logits": logits}, kv_specs=specs)


class _Block:
    """Adds layers of the network to a program."""

    def __init__(self, g: GraphBuilder, config: LlamaConfig, names: DecoderNames) -> None:
        self._g = g
        self._config = config
        self._names = names
        # a tied embedding is kept once, in the form that is multiplied
        self.embedding = g.weight(
            f"{names.embedding}.weight",
            (config.vocab_size, config.hidden_size),
            use="linear" if config.tied else "rows",
        )

    def add(self, x: View, angles: View, layer: int) -> View:
        """Add one layer; the last one keeps only the rows whose logits are wanted."""
        g, config, names = self._g, self._config, self._names
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        bias = config.query_key_value_bias
        normal = self.norm(x, names.attention_norm.format(layer=layer))
        query, key, value = (
            self.linear(normal, name.format(layer=layer), width * head_dim, bias)
            for name, width in ((names.query, heads), (names.key, kv_heads), (names.value, kv_heads))
        )
        query = g.rope(query, angles, heads=heads, head_dim=head_dim, pairing=names.pairing)
        key = g.rope(key, angles, heads=kv_heads, head_dim=head_dim, pairing=names.pairing)
        g.kv_write(key, value, layer=layer, kv_heads=kv_heads, head_dim=head_dim)
        context = g.paged_attention(
            query,
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1 / math.sqrt(head_dim),
            window=config.windows[layer],
        )
        if layer == config.num_hidden_layers - 1:
            context, x = g.gather_rows(context), g.gather_rows(x)
        output = names.attention_output.format(layer=layer)
        x = g.add(self.linear(context, output, config.hidden_size, config.output_bias), x)
        normal = self.norm(x, names.feed_forward_norm.format(layer=layer))
        gate, up = (
            self.linear(normal, name.format(layer=layer), config.intermediate_size, config.feed_forward_bias)
            for name in (names.gate, names.up)
        )
        wide = g.mul(g.silu(gate), up)
        down = self.linear(wide, names.down.format(layer=layer), config.hidden_size, config.feed_forward_bias)
        return g.add(down, x)

    def norm(self, x: View, name: str) -> View:
        weight = self._g.weight(f"{name}.weight", (x.width,), use="vector")
        return self._g.rms_norm(x, weight, epsilon=self._config.rms_norm_eps)

    def linear(self, x: View, name: str, width: int, bias: bool) -> View:
        vector = self._g.weight(f"{name}.bias", (width,), use="vector") if bias else None
        return self._g.linear(x, self.weight(name, width, x.width), vector)

    def weight(self, name: str, width: int, depth: int) -> WeightRef:
        return self._g.weight(f"{name}.weight", (width, depth))
