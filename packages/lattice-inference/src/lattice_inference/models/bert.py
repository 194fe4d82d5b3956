"""BERT encoders as a program: token ids in, hidden states and pooled vectors out.

The architecture is Devlin et al. 2018 (https://arxiv.org/abs/1810.04805), post-norm:

    x = LayerNorm(words[id] + types[type] + positions[position])
    for each layer:
        x = LayerNorm(x + Wo attention(Wq x, Wk x, Wv x) + bo)
        x = LayerNorm(x + W2 act(W1 x + b1) + b2)

A text's vector is the pooled hidden states, scaled to length 1 when the model says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from lattice_inference.errors import CheckpointError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program, View, WeightRef
from lattice_inference.models.bert_config import Activation, BertConfig

__all__ = ["build_bert_encoder", "find_prefix"]


def find_prefix(names: Iterable[str]) -> str:
    """Return what stands before ``embeddings.`` in a checkpoint's tensor names: ``""`` or ``"bert."``.

    A bare ``BertModel`` is saved without a prefix, a model with a head on top with one.

    Raises:
        CheckpointError: neither form of the word embeddings is there.
    """
    present = set(names)
    for prefix in ("", "bert."):
        if f"{prefix}embeddings.word_embeddings.weight" in present:
            return prefix
    raise CheckpointError(
        "the checkpoint has no tensor embeddings.word_embeddings.weight, with or without the prefix 'bert.': "
        "it is not a BERT encoder"
    )


def build_bert_encoder(config: BertConfig, *, pooling: Literal["cls", "mean", "last"], prefix: str = "") -> Program:
    """Return the program of a BERT encoder.

    Args:
        config: sizes and activation.
        pooling: how the rows of a sequence become one vector.
        prefix: what precedes the tensor names; see :func:`find_prefix`.

    Returns:
        A program with the outputs ``pooled`` (B, hidden) and ``normalized``, the same scaled to length 1.
    """
    g = GraphBuilder()
    weights = _Weights(prefix)
    hidden, inner = config.hidden_size, config.intermediate_size

    x = g.embed_rows(weights.table("embeddings.word_embeddings", config.vocab_size, hidden), ids="token_ids")
    types = g.embed_rows(
        weights.table("embeddings.token_type_embeddings", config.type_vocab_size, hidden), ids="token_type_ids"
    )
    positions = g.embed_rows(
        weights.table("embeddings.position_embeddings", config.max_position_embeddings, hidden), ids="positions"
    )
    x = g.add(g.add(x, types), positions)
    x = weights.layer_norm(g, x, "embeddings.LayerNorm", config.layer_norm_eps)
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}."
        query, key, value = (
            weights.linear(g, x, f"{at}attention.self.{name}", hidden) for name in ("query", "key", "value")
        )
        head_dim = hidden // config.num_attention_heads
        context = g.attention(
            query,
            key,
            value,
            heads=config.num_attention_heads,
            kv_heads=config.num_attention_heads,
            head_dim=head_dim,
            scale=1 / math.sqrt(head_dim),
        )
        x = g.add(weights.linear(g, context, f"{at}attention.output.dense", hidden), x)
        x = weights.layer_norm(g, x, f"{at}attention.output.LayerNorm", config.layer_norm_eps)
        wide = _activate(g, weights.linear(g, x, f"{at}intermediate.dense", inner), config.hidden_act)
        x = g.add(weights.linear(g, wide, f"{at}output.dense", hidden), x)
        x = weights.layer_norm(g, x, f"{at}output.LayerNorm", config.layer_norm_eps)
    pooled = g.pool(x, mode=pooling)
    return g.build({"pooled": pooled, "normalized": g.l2_normalize(pooled)})


class _Weights:
    """Names weights below a prefix and adds the ops that use them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def table(self, name: str, rows: int, width: int) -> WeightRef:
        return GraphBuilder.weight(f"{self._prefix}{name}.weight", (rows, width), use="rows")

    def linear(self, g: GraphBuilder, x: View, name: str, width: int) -> View:
        weight = g.weight(f"{self._prefix}{name}.weight", (width, x.width))
        return g.linear(x, weight, g.weight(f"{self._prefix}{name}.bias", (width,), use="vector"))

    def layer_norm(self, g: GraphBuilder, x: View, name: str, epsilon: float) -> View:
        scale, shift = (
            g.weight(f"{self._prefix}{name}.{part}", (x.width,), use="vector") for part in ("weight", "bias")
        )
        return g.layer_norm(x, scale, shift, epsilon=epsilon)


def _activate(g: GraphBuilder, x: View, activation: Activation) -> View:
    match activation:
        case Activation.GELU | Activation.GELU_PYTHON:
            return g.gelu(x)
        case Activation.GELU_NEW | Activation.GELU_PYTORCH_TANH:
            return g.gelu(x, form="tanh")
        case Activation.RELU:
            return g.relu(x)
        case Activation.SILU:
            return g.silu(x)
