"""BERT and RoBERTa models as programs: from token ids to pooled vectors or class logits.

The architecture is Devlin et al. 2018 (https://arxiv.org/abs/1810.04805), post-norm:

    x = LayerNorm(words[id] + types[type] + positions[position])
    for each layer:
        x = LayerNorm(x + Wo attention(Wq x, Wk x, Wv x) + bo)
        x = LayerNorm(x + W2 act(W1 x + b1) + b2)

RoBERTa and XLM-RoBERTa are the same network (Liu et al. 2019, https://arxiv.org/abs/1907.11692; Conneau et al. 2019,
https://arxiv.org/abs/1911.02116). Their positions begin after the padding token's id; see
:meth:`~lattice_inference.models.bert_config.BertConfig.position_ids`.

A text's vector is the pooled hidden states, scaled to length 1 if the model says so. A classifier reads the first
token: BERT's is ``classifier(tanh(pooler.dense(x)))``, RoBERTa's ``classifier.out_proj(tanh(classifier.dense(x)))``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from lattice_inference.errors import CheckpointError
from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program, View, WeightRef
from lattice_inference.models.bert_config import Activation, BertConfig
from lattice_inference.models.sentence_layers import SentenceLayer, add_sentence_layer

__all__ = ["TensorNames", "build_bert_classifier", "build_bert_encoder", "find_names"]


@dataclass(frozen=True)
class TensorNames:
    """The tensor names that differ between checkpoints of the family.

    Attributes:
        prefix: the text before ``embeddings.`` and ``encoder.``; empty if the encoder was saved alone.
        layer_norm: the last parts of the names of a LayerNorm's scale and shift. Checkpoints from TensorFlow, such as
            the original BERT, have gamma and beta.
    """

    prefix: str = ""
    layer_norm: tuple[str, str] = ("weight", "bias")


def find_names(tensors: Container[str]) -> TensorNames:
    """Return the spelling of a checkpoint that holds ``tensors``.

    Raises:
        CheckpointError: no known name of the word embeddings is there.
    """
    for prefix in ("", "bert.", "roberta."):
        if f"{prefix}embeddings.word_embeddings.weight" in tensors:
            old = f"{prefix}embeddings.LayerNorm.gamma" in tensors
            return TensorNames(prefix, ("gamma", "beta") if old else ("weight", "bias"))
    raise CheckpointError(
        "the checkpoint has no tensor embeddings.word_embeddings.weight, with or without the prefix 'bert.' or "
        "'roberta.': it is not a BERT encoder"
    )


def build_bert_encoder(
    config: BertConfig,
    *,
    pooling: Literal["cls", "mean", "last"],
    names: TensorNames | None = None,
    layers: Sequence[SentenceLayer] = (),
) -> Program:
    """Return the program of a BERT encoder.

    Args:
        config: sizes and activation.
        pooling: how to combine the rows of a sequence into one vector.
        names: the checkpoint's spelling of its tensors; see :func:`find_names`.
        layers: the layers of a sentence-transformers model after the pooling.

    Returns:
        A program with two outputs: ``pooled``, the vectors (B, width) after ``layers``, and ``normalized``, the same
        scaled to length 1.
    """
    g = GraphBuilder()
    vectors = g.pool(_add_encoder(g, config, names or TensorNames()), mode=pooling)
    for layer in layers:
        vectors = add_sentence_layer(g, vectors, layer)
    return g.build({"pooled": vectors, "normalized": g.l2_normalize(vectors)})


def build_bert_classifier(config: BertConfig, *, names: TensorNames | None = None) -> Program:
    """Return the program of an encoder with the family's classification head.

    Returns:
        A program with the output ``logits`` (B, config.label_count).
    """
    g = GraphBuilder()
    names = names or TensorNames()
    first = g.pool(_add_encoder(g, config, names), mode="cls")
    head = _Weights(TensorNames("", names.layer_norm))
    if config.family.is_roberta:
        hidden, output = "classifier.dense", "classifier.out_proj"
    else:
        hidden, output = f"{names.prefix}pooler.dense", "classifier"
    return g.build(
        {
            "logits": head.linear(
                g, g.tanh(head.linear(g, first, hidden, config.hidden_size)), output, config.label_count
            )
        }
    )


def _add_encoder(g: GraphBuilder, config: BertConfig, names: TensorNames) -> View:
    """Add the encoder and return its last hidden states, (T, hidden)."""
    weights = _Weights(names)
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
        context = g.attention(
            query,
            key,
            value,
            heads=config.num_attention_heads,
            kv_heads=config.num_attention_heads,
            head_dim=config.head_size,
            scale=1 / math.sqrt(config.head_size),
        )
        x = g.add(weights.linear(g, context, f"{at}attention.output.dense", hidden), x)
        x = weights.layer_norm(g, x, f"{at}attention.output.LayerNorm", config.layer_norm_eps)
        wide = _activate(g, weights.linear(g, x, f"{at}intermediate.dense", inner), config.hidden_act)
        x = g.add(weights.linear(g, wide, f"{at}output.dense", hidden), x)
        x = weights.layer_norm(g, x, f"{at}output.LayerNorm", config.layer_norm_eps)
    return x


class _Weights:
    """Names weights as the checkpoint does, and adds the ops that use them."""

    def __init__(self, names: TensorNames) -> None:
        self._prefix = names.prefix
        self._layer_norm = names.layer_norm

    def table(self, name: str, rows: int, width: int) -> WeightRef:
        return GraphBuilder.weight(f"{self._prefix}{name}.weight", (rows, width), use="rows")

    def linear(self, g: GraphBuilder, x: View, name: str, width: int) -> View:
        weight = g.weight(f"{self._prefix}{name}.weight", (width, x.width))
        return g.linear(x, weight, g.weight(f"{self._prefix}{name}.bias", (width,), use="vector"))

    def layer_norm(self, g: GraphBuilder, x: View, name: str, epsilon: float) -> View:
        scale, shift = (g.weight(f"{self._prefix}{name}.{part}", (x.width,), use="vector") for part in self._layer_norm)
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
