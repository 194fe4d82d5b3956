"""Qwen3.5 as a row of the table of families."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.program import Program
from lattice_inference.models.adapter_sites import AdapterSites, module_stem
from lattice_inference.models.experts import find_expert_names, find_gguf_experts
from lattice_inference.models.family import Family, GgufModel, Head, StoredWeights
from lattice_inference.models.llama import HUGGING_FACE_NAMES, find_decoder_names
from lattice_inference.models.llama_family import IDLE_IN_DECODER_GGUF, decoder_weights, idle_in_decoder
from lattice_inference.models.qwen35 import build_qwen35, build_qwen35_rules
from lattice_inference.models.qwen35_config import MODEL_TYPES, Qwen35Config
from lattice_inference.models.qwen35_gguf import ARCHITECTURES, read_qwen35_gguf
from lattice_inference.models.qwen35_mtp import find_gguf_mtp, find_mtp
from lattice_inference.models.qwen35_names import GGUF_QWEN35_NAMES, Qwen35Names, qwen35_names

__all__ = ["QWEN35"]

#: What stands before ``layers.`` in files with a vision part, and in those of text models.
_PREFIXES = ("model.language_model.", "model.")

#: The vision part and the layers that predict further tokens.
_OTHER_PARTS = r"model\.visual\..*|mtp\..*"


def _read_config(mapping: Mapping[str, object], source: str) -> Qwen35Config:
    return Qwen35Config.from_mapping(mapping, source=source)


def _read_weights(checkpoint: Checkpoint, config: Qwen35Config, head: Head) -> StoredWeights[Qwen35Config]:
    names = qwen35_names(
        find_decoder_names(checkpoint, tied=config.tied, prefixes=_PREFIXES, source=checkpoint.directory)
    )
    prefix = names.norm.removesuffix("norm")
    if config.experts is not None:
        names = replace(names, experts=find_expert_names(checkpoint, config.experts, config.hidden_size, prefix))
    if _is_next(checkpoint, f"{prefix}layers.", ".linear_attn.in_proj_qkvz.weight"):
        at = f"{prefix}layers.{{layer}}.linear_attn.in_proj_"
        names = replace(names, delta=replace(names.delta, qkvz=f"{at}qkvz", ba=f"{at}ba"))
    _check_rows(checkpoint, config, names)
    stored = decoder_weights(
        config,
        names,
        config.rope.frequencies(config.rotary_dim),
        partial(build_qwen35, names=names),
        (f"{prefix}layers.0.", "num_hidden_layers", re.compile(rf"{idle_in_decoder(prefix).pattern}|{_OTHER_PARTS}")),
    )
    logarithms = [f"{prefix}layers.{layer}.linear_attn.A_log" for layer in _layers_with_rule(config)]
    return replace(
        stored,
        computed={**stored.computed, **_decays(checkpoint, config, names, logarithms)},
        also_read=stored.also_read | set(logarithms),
        predicting=find_mtp(checkpoint, config, names),
        recurrent_only=_recurrent_only(config, names),
    )


def _read_gguf(checkpoint: Checkpoint) -> GgufModel[Qwen35Config]:
    model = read_qwen35_gguf(checkpoint)
    config, names = model.config, GGUF_QWEN35_NAMES
    if config.experts is not None:
        names = replace(names, experts=find_gguf_experts(checkpoint, config.experts, config.hidden_size))
    if _is_next(checkpoint, "blk.", ".ssm_ba.weight"):
        names = replace(names, delta=replace(names.delta, ba="blk.{layer}.ssm_ba"))
    _check_rows(checkpoint, config, names)
    blocks = range(config.num_hidden_layers, config.num_hidden_layers + config.mtp_layers)
    extra = "".join(rf"|blk\.{block}\..*" for block in blocks)
    weights = decoder_weights(
        config,
        names,
        model.frequencies,
        partial(build_qwen35, names=names),
        ("blk.0.", "block_count", re.compile(IDLE_IN_DECODER_GGUF.pattern + extra)),
    )
    weights = replace(
        weights,
        predicting=find_gguf_mtp(checkpoint, config, names),
        recurrent_only=_recurrent_only(config, names),
    )
    return GgufModel(config, lambda head: weights)


def _recurrent_only(config: Qwen35Config, names: Qwen35Names) -> Callable[[Qwen35Config], Program] | None:
    """Return what makes the program of the rules alone, if there are both kinds of layers."""
    return partial(build_qwen35_rules, names=names) if len(set(config.delta.layers)) == 2 else None


def _layers_with_rule(config: Qwen35Config) -> list[int]:
    return [layer for layer, has_rule in enumerate(config.delta.layers) if has_rule]


def _decays(
    checkpoint: Checkpoint, config: Qwen35Config, names: Qwen35Names, logarithms: list[str]
) -> dict[str, npt.NDArray[np.float32]]:
    """Return -exp(A_log) of each layer with a gated delta rule, worked out in float64.

    The first layer's name is always among them: it stands for any layer in the check of weights.
    """
    shape = (config.delta.value_heads,)
    found = {names.delta.decay.format(layer=0): np.zeros(shape, np.float32)}
    for layer, name in zip(_layers_with_rule(config), logarithms, strict=True):
        _check_shape(checkpoint, name, shape)
        found[names.delta.decay.format(layer=layer)] = _decay(checkpoint.float32(name))
    return found


def _decay(logarithms: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(-np.exp(logarithms.astype(np.float64)), np.float32)


def _is_next(checkpoint: Checkpoint, start: str, end: str) -> bool:
    """Whether a layer has matrices as Qwen3-Next has them."""
    return any(name.startswith(start) and name.endswith(end) for name in checkpoint.names())


def _check_rows(checkpoint: Checkpoint, config: Qwen35Config, names: Qwen35Names) -> None:
    """Check the shape of matrices of which the program reads rows by number."""
    delta, hidden = config.delta, config.hidden_size
    for layer, has_rule in enumerate(delta.layers):
        rows: dict[str | None, int] = {names.query: 2 * config.num_attention_heads * config.head_dim}
        if has_rule:
            rows = {names.delta.qkvz: delta.channels + delta.value_width, names.delta.ba: 2 * delta.value_heads}
        for stem, count in rows.items():
            name = f"{stem}.weight".format(layer=layer)
            if stem is not None and name in checkpoint:  # a missing one is refused with the other tensors
                _check_shape(checkpoint, name, (count, hidden))


def _check_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    if name not in checkpoint:
        raise CheckpointError(f"{checkpoint.directory}: the checkpoint holds no tensor {name!r}")
    found = checkpoint.info(name).shape
    if found != shape:
        raise CheckpointError(
            f"{checkpoint.directory}: the model needs a tensor of shape {shape}, the checkpoint has {name} {found}"
        )


#: The linears that adapters may change, by their fields in ``DecoderNames`` and in ``DeltaNames``.
_ADAPTED = ("query", "key", "value", "attention_output", "gate", "up", "down", "output")
_ADAPTED_IN_RULES = ("qkv", "z", "a", "b", "output")


def _sites() -> AdapterSites:
    theirs, ours = qwen35_names(HUGGING_FACE_NAMES), GGUF_QWEN35_NAMES
    pairs: dict[str, str | None] = {module_stem(getattr(theirs, name)): getattr(ours, name) for name in _ADAPTED}
    in_rules = {module_stem(getattr(theirs.delta, name)): getattr(ours.delta, name) for name in _ADAPTED_IN_RULES}

    def architecture(config: Qwen35Config) -> str:
        return "qwen35" if config.experts is None else "qwen35moe"

    def reordered(config: Qwen35Config) -> frozenset[str]:
        same = config.delta.key_heads == config.delta.value_heads
        return frozenset() if same else frozenset(in_rules)

    return AdapterSites(pairs | in_rules, "model.", architecture, reordered=reordered)


QWEN35 = Family(
    "qwen35",
    MODEL_TYPES,
    read_config=_read_config,
    read_weights=_read_weights,
    is_causal=True,
    gguf_architectures=tuple(ARCHITECTURES),
    read_gguf=_read_gguf,
    adapter_sites=_sites(),
)
