"""BERT, RoBERTa, XLM-RoBERTa and CamemBERT as a row of the table of families."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.graph.program import Program
from lattice_inference.models.adapter_sites import AdapterSites
from lattice_inference.models.bert import TensorNames, build_bert_classifier, build_bert_encoder, find_names
from lattice_inference.models.bert_config import BertConfig, BertFamily
from lattice_inference.models.bert_gguf import ARCHITECTURE, gguf_export, gguf_names, read_bert_gguf
from lattice_inference.models.family import Family, GgufModel, Head, StoredWeights
from lattice_inference.models.idle_tensors import PARTS, PRETRAINING_HEADS, TEXT_CLASSIFIER

__all__ = ["BERT", "IDLE_IN_BERT_GGUF", "bert_weights", "idle_in_bert"]

#: Matches the idle tensors of BERT encoders in GGUF files: the pooler and the head of a reranker.
IDLE_IN_BERT_GGUF = re.compile(rf"cls(?:\.output)?{PARTS}")


def idle_in_bert(prefix: str, *, classifies: bool) -> re.Pattern[str]:
    """Return what matches the names of idle tensors of a BERT or RoBERTa encoder.

    Args:
        prefix: what stands before ``embeddings.`` in the checkpoint.
        classifies: whether the model is a classifier, whose own head is not idle.
    """
    own = rf"{re.escape(prefix)}(?:embeddings\.(?:position_ids|token_type_ids)|pooler\.dense{PARTS})"
    heads = PRETRAINING_HEADS if classifies else (*PRETRAINING_HEADS, TEXT_CLASSIFIER)
    return re.compile("|".join((own, *heads)))


def bert_weights(checkpoint: Checkpoint, config: BertConfig, head: Head) -> StoredWeights[BertConfig]:
    """Say how an open safetensors checkpoint holds the weights.

    Raises:
        CheckpointError: no known form of the word embeddings is there.
    """
    names = find_names(checkpoint)
    return StoredWeights(
        partial(_build, names=names, head=head),
        first_layer=f"{names.prefix}encoder.layer.0.",
        layers_told_by="num_hidden_layers",
        idle=idle_in_bert(names.prefix, classifies=head.kind == "scores"),
    )


def _read_config(mapping: Mapping[str, object], source: str) -> BertConfig:
    return BertConfig.from_mapping(mapping, source=source)


def _read_gguf(checkpoint: Checkpoint) -> GgufModel[BertConfig]:
    config, pooling = read_bert_gguf(checkpoint)
    return GgufModel(config, partial(_gguf_weights, config.num_hidden_layers), pooling)


def _gguf_weights(layers: int, head: Head) -> StoredWeights[BertConfig]:
    return StoredWeights(
        partial(_build, names=TensorNames(), head=head),
        first_layer="blk.0.",
        layers_told_by="bert.block_count",
        idle=IDLE_IN_BERT_GGUF,
        renamed=gguf_names(layers),
    )


def _build(config: BertConfig, *, names: TensorNames, head: Head) -> Program:
    if head.kind == "scores":
        return build_bert_classifier(config, names=names)
    return build_bert_encoder(config, pooling=head.pooling, names=names, layers=head.layers)


def _bert_linears() -> dict[str, str | None]:
    layers: dict[str, str | None] = {
        name.removesuffix(".weight").replace(".0.", ".{layer}."): theirs.removesuffix(".weight").replace(
            ".0.", ".{layer}."
        )
        for name, theirs in gguf_names(1).items()
        if name.startswith("encoder.") and name.endswith(".weight") and "LayerNorm" not in name
    }
    return layers | dict.fromkeys(("pooler.dense", "classifier", "classifier.dense", "classifier.out_proj"))


BERT = Family(
    "bert",
    tuple(family.value for family in BertFamily),
    read_config=_read_config,
    read_weights=bert_weights,
    gguf_architectures=(ARCHITECTURE,),
    read_gguf=_read_gguf,
    export_gguf=gguf_export,
    adapter_sites=AdapterSites(_bert_linears(), "", lambda config: ARCHITECTURE),
)
