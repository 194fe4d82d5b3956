"""Llama, Mistral and Qwen2 as a row of the table of families."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.graph.program import Program
from lattice_inference.models.adapter_sites import AdapterSites, module_stem
from lattice_inference.models.decoder_config import DecoderConfig
from lattice_inference.models.decoder_gguf import FACTORS
from lattice_inference.models.family import Family, GgufModel, Head, StoredWeights
from lattice_inference.models.idle_tensors import PARTS
from lattice_inference.models.llama import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    ROPE_FREQUENCIES,
    DecoderNames,
    build_llama,
    find_decoder_names,
)
from lattice_inference.models.llama_config import LlamaConfig, LlamaFamily
from lattice_inference.models.llama_gguf import ARCHITECTURES, read_llama_gguf

__all__ = ["IDLE_IN_DECODER_GGUF", "LLAMA", "decoder_sites", "decoder_weights", "idle_in_decoder"]

#: The linears that adapters may change, by their fields in ``DecoderNames``.
_ADAPTED = ("query", "key", "value", "attention_output", "gate", "up", "down", "output")

#: Matches the idle tensors of decoders in GGUF files; ``rope_freqs.weight`` is read.
IDLE_IN_DECODER_GGUF = re.compile(r"blk\.[0-9]+\.attn_rot_embd(?:\.weight)?")


def idle_in_decoder(prefix: str) -> re.Pattern[str]:
    """Return a pattern for the names of a decoder's idle tensors.

    ``prefix`` is the text before ``embed_tokens.``.
    """
    frequencies = rf"{re.escape(prefix)}(?:layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq"
    return re.compile(rf"{frequencies}|score\.weight|v_head\.summary{PARTS}")


def _read_config(mapping: Mapping[str, object], source: str) -> LlamaConfig:
    return LlamaConfig.from_mapping(mapping, source=source)


def _read_weights(checkpoint: Checkpoint, config: LlamaConfig, head: Head) -> StoredWeights[LlamaConfig]:
    names = find_decoder_names(checkpoint, tied=config.tied, source=checkpoint.directory)
    prefix = names.norm.removesuffix("norm")
    return decoder_weights(
        config,
        names,
        config.rope.frequencies(config.rotary_dim),
        partial(build_llama, names=names),
        (f"{prefix}layers.0.", "num_hidden_layers", idle_in_decoder(prefix)),
    )


def _read_gguf(checkpoint: Checkpoint) -> GgufModel[LlamaConfig]:
    stored = read_llama_gguf(checkpoint)
    weights = decoder_weights(
        stored.config,
        stored.names,
        stored.frequencies,
        partial(build_llama, names=stored.names),
        ("blk.0.", "block_count", IDLE_IN_DECODER_GGUF),
    )
    return GgufModel(stored.config, lambda head: weights)


Config = TypeVar("Config", bound=DecoderConfig)


def decoder_weights(
    config: Config,
    names: DecoderNames,
    frequencies: npt.NDArray[np.float32],
    build: Callable[[Config], Program],
    layout: tuple[str, str, re.Pattern[str]],
) -> StoredWeights[Config]:
    """Describe how a checkpoint holds the weights of a decoder.

    Args:
        config: sizes and choices.
        names: the names of the tensors.
        frequencies: the frequencies of rotary positions.
        build: makes the program of a configuration.
        layout: the beginning of the first layer's names, the field with the number of layers, and a pattern for idle
            tensors.
    """
    first_layer, told_by, idle = layout
    output, embedding = f"{names.output}.weight", f"{names.embedding}.weight"
    return StoredWeights(
        build,
        first_layer=first_layer,
        layers_told_by=told_by,
        idle=idle,
        computed={ROPE_FREQUENCIES: frequencies},
        also_read=frozenset({FACTORS}),
        same=(output, embedding) if config.tied and output != embedding else None,
        kinds_of_layers=config.kinds_of_layers(),
    )


def decoder_sites(architecture: Callable[[Any], str]) -> AdapterSites:
    """Return the adapter sites of decoders.

    Their names are those of :class:`~lattice_inference.models.llama.DecoderNames`.
    """
    pairs: dict[str, str | None] = {
        module_stem(getattr(HUGGING_FACE_NAMES, name)): getattr(GGUF_NAMES, name) for name in _ADAPTED
    }
    counts = {
        module_stem(HUGGING_FACE_NAMES.query): "num_attention_heads",
        module_stem(HUGGING_FACE_NAMES.key): "num_key_value_heads",
    }
    return AdapterSites(pairs, "model.", architecture, counts, frozenset({"llama"}))


LLAMA = Family(
    "llama",
    tuple(family.value for family in LlamaFamily),
    read_config=_read_config,
    read_weights=_read_weights,
    is_causal=True,
    gguf_architectures=ARCHITECTURES,
    read_gguf=_read_gguf,
    adapter_sites=decoder_sites(lambda config: "qwen2" if config.family is LlamaFamily.QWEN2 else "llama"),
)
