"""Qwen3 as a row of the table of families: a language model, an encoder and a ranker."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from lattice_inference.calibration import RANGE_SUFFIX
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.int8_weights import SCALE_SUFFIX
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.program import Program
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.decoder_gguf import read_decoder_metadata, rotary_frequencies
from lattice_inference.models.experts import find_expert_names, find_gguf_experts
from lattice_inference.models.family import Family, GgufModel, Head, StoredWeights
from lattice_inference.models.gguf_pooling import RANK, read_pooling
from lattice_inference.models.llama import DecoderNames, find_decoder_names
from lattice_inference.models.llama_family import IDLE_IN_DECODER_GGUF, decoder_sites, decoder_weights, idle_in_decoder
from lattice_inference.models.qwen3 import (
    QWEN3_GGUF_NAMES,
    QWEN3_TEMPLATE,
    ScoreRows,
    build_qwen3,
    build_qwen3_encoder,
    build_qwen3_ranker,
    qwen3_names,
)
from lattice_inference.models.qwen3_config import MODEL_TYPES, Qwen3Class, Qwen3Config

__all__ = ["QWEN3"]

_ARCHITECTURE = "qwen3"
_OF_EXPERTS = "qwen3moe"
_CLASSIFIER = "score.weight"
_GGUF_CLASSIFIER = "cls.output.weight"


def _read_config(mapping: Mapping[str, object], source: str) -> Qwen3Config:
    return Qwen3Config.from_mapping(mapping, source=source)


def _read_weights(checkpoint: Checkpoint, config: Qwen3Config, head: Head) -> StoredWeights[Qwen3Config]:
    if head.kind == "logits" and config.classifies:
        raise UnsupportedError(
            f"{checkpoint.directory} holds a {config.class_name}, which scores texts and has no output matrix: it is loaded "
            "by load_cross_encoder"
        )
    names = qwen3_names(find_decoder_names(checkpoint, tied=config.tied, source=checkpoint.directory))
    prefix = names.norm.removesuffix("norm")
    if config.experts is not None:
        names = replace(names, experts=find_expert_names(checkpoint, config.experts, config.hidden_size, prefix))
    whole = ScoreRows(_CLASSIFIER, None, config.label_count)
    scores = whole if config.classifies else _answer_rows(config, names, head)
    idle = idle_in_decoder(prefix).pattern
    if head.kind != "logits":
        idle += rf"|{re.escape(names.output)}\.weight(?:{SCALE_SUFFIX}|{RANGE_SUFFIX})?"
    return decoder_weights(
        config,
        names,
        config.rope.frequencies(config.rotary_dim),
        _builder(names, head, scores),
        (f"{prefix}layers.0.", "num_hidden_layers", re.compile(idle)),
    )


def _read_gguf(checkpoint: Checkpoint) -> GgufModel[Qwen3Config]:
    fields = ConfigFields(checkpoint.metadata, str(checkpoint.directory))
    architecture = fields.text("general.architecture")
    ranks = fields.integer(f"{architecture}.pooling_type", 0, 2**31 - 1, default=0) == RANK
    pooling = None if ranks else read_pooling(fields, architecture)
    has_experts = architecture == _OF_EXPERTS
    config = Qwen3Config(**read_decoder_metadata(checkpoint, fields, architecture, experts=has_experts))
    names = QWEN3_GGUF_NAMES
    if config.experts is not None:
        names = replace(names, experts=find_gguf_experts(checkpoint, config.experts, config.hidden_size))
    frequencies = rotary_frequencies(checkpoint, config.rope, config.rotary_dim)
    idle = IDLE_IN_DECODER_GGUF.pattern

    def weights(head: Head) -> StoredWeights[Qwen3Config]:
        scores = _answer_rows(config, names, head)
        unread = idle if head.kind == "logits" else rf"{idle}|output\.weight"
        if _GGUF_CLASSIFIER in checkpoint:
            shape = checkpoint.info(_GGUF_CLASSIFIER).shape
            if shape != (2, config.hidden_size):
                raise CheckpointError(
                    f"{checkpoint.directory}: {_GGUF_CLASSIFIER} has the shape {shape}; expected (2, {config.hidden_size}), "
                    "the rows of yes and no"
                )
            scores = ScoreRows(_GGUF_CLASSIFIER, None, 2)
            unread += r"|cls\.output\.weight"
        return decoder_weights(
            config,
            names,
            frequencies,
            _builder(names, head, scores),
            ("blk.0.", "block_count", re.compile(unread)),
        )

    return GgufModel(config, weights, pooling)


def _answer_rows(config: Qwen3Config, names: DecoderNames, head: Head) -> ScoreRows:
    """Return the rows of the output matrix for the head's answers."""
    matrix = names.embedding if config.tied or config.written_by is Qwen3Class.MODEL else names.output
    return ScoreRows(f"{matrix}.weight", head.answers, len(head.answers))


def _builder(names: DecoderNames, head: Head, scores: ScoreRows) -> Callable[[Qwen3Config], Program]:
    if head.kind == "logits":
        return partial(build_qwen3, names=names)
    if head.kind == "scores":
        return partial(build_qwen3_ranker, names=names, scores=scores)
    return partial(build_qwen3_encoder, names=names, pooling=head.pooling, layers=head.layers)


QWEN3 = Family(
    "qwen3",
    MODEL_TYPES,
    read_config=_read_config,
    read_weights=_read_weights,
    is_causal=True,
    reads_texts=True,
    ends_texts=True,
    pair_template=QWEN3_TEMPLATE,
    gguf_architectures=(_ARCHITECTURE, _OF_EXPERTS),
    read_gguf=_read_gguf,
    adapter_sites=decoder_sites(lambda config: _ARCHITECTURE if config.experts is None else _OF_EXPERTS),
)
