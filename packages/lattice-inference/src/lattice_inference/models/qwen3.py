"""Qwen3 as programs: one that generates, one that embeds and one that ranks.

Yang et al. 2025 (https://arxiv.org/abs/2505.09388): a Llama (:mod:`~lattice_inference.models.llama`) whose queries and keys
have a norm for each head. Zhang et al. 2025 (https://arxiv.org/abs/2506.05176): the vector of a text is the last norm's
output for its last token. A score compares two logits of the last token. The programs that embed and rank keep no keys
and values. After the last layer's attention, they compute only the last token of each text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from lattice_inference.graph.builder import GraphBuilder
from lattice_inference.graph.program import Program
from lattice_inference.models.llama import GGUF_NAMES, DecoderLayers, DecoderNames, build_llama
from lattice_inference.models.pair_template import PairTemplate
from lattice_inference.models.qwen3_config import Qwen3Config
from lattice_inference.models.sentence_layers import SentenceLayer, add_sentence_layer

__all__ = [
    "QWEN3_GGUF_NAMES",
    "QWEN3_TEMPLATE",
    "ScoreRows",
    "build_qwen3",
    "build_qwen3_encoder",
    "build_qwen3_ranker",
    "qwen3_names",
]

QWEN3_GGUF_NAMES = replace(
    GGUF_NAMES, pairing="half", query_norm="blk.{layer}.attn_q_norm", key_norm="blk.{layer}.attn_k_norm"
)

#: The prompt of Qwen3-Reranker, as on its model card.
QWEN3_TEMPLATE = PairTemplate(
    before=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    ),
    body="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)


@dataclass(frozen=True)
class ScoreRows:
    """The rows of a matrix that turn the last token's state into scores.

    Attributes:
        tensor: the matrix.
        rows: the rows to multiply, one for each output; None for all ``count`` of them.
        count: the number of outputs.
    """

    tensor: str
    rows: tuple[int, ...] | None
    count: int


def qwen3_names(names: DecoderNames) -> DecoderNames:
    """Return the names of a safetensors checkpoint, with the norms of heads."""
    at = names.query.removesuffix("q_proj")
    return replace(names, query_norm=f"{at}q_norm", key_norm=f"{at}k_norm")


def build_qwen3(config: Qwen3Config, names: DecoderNames) -> Program:
    """Return the program that generates, with the output ``logits``, (R, vocab_size)."""
    return build_llama(config, names)


def build_qwen3_encoder(
    config: Qwen3Config,
    names: DecoderNames,
    *,
    pooling: Literal["cls", "mean", "last"] = "last",
    layers: Sequence[SentenceLayer] = (),
) -> Program:
    """Return the program that embeds.

    It has two outputs: ``pooled``, the vectors (B, width) after ``layers``, and ``normalized``, the same scaled to length 1.
    """
    g = GraphBuilder()
    decoder = DecoderLayers(g, config, names, keeps_keys=False)
    if pooling == "mean":
        pooled = g.pool(decoder.states(lambda x: x), mode="mean")
    else:  # the last norm's output for a token depends on that token's row alone
        pooled = decoder.states(partial(g.pool, mode=pooling))
    for layer in layers:
        pooled = add_sentence_layer(g, pooled, layer)
    return g.build({"pooled": pooled, "normalized": g.l2_normalize(pooled)})


def build_qwen3_ranker(config: Qwen3Config, names: DecoderNames, *, scores: ScoreRows) -> Program:
    """Return the program that ranks.

    Its output ``logits``, (B, scores.count), is that of the last token of each text.
    """
    g = GraphBuilder()
    last = DecoderLayers(g, config, names, keeps_keys=False).states(partial(g.pool, mode="last"))
    if scores.rows is None:
        return g.build({"logits": g.linear(last, g.weight(scores.tensor, (scores.count, last.width)))})
    weight = g.rows_weight(scores.tensor, scores.rows, last.width)
    return g.build({"logits": g.linear(last, weight)})
