"""Qwen3.5 in GGUF files, with llama.cpp's keys.

Such files hold norms as 1 + w and decays as -exp(A_log). Where there are more value heads than key heads, value heads are
stored tiled: head h uses key head h modulo the number of key heads. Those of Qwen3-Next keep the order of transformers.
Extra layers that predict further tokens are the blocks after the model's last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf_header import GgufArray
from lattice_inference.graph.recurrent_ops import MOST_TAPS
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.decoder_config import MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH
from lattice_inference.models.decoder_gguf import read_decoder_metadata, rotary_frequencies
from lattice_inference.models.qwen35_config import (
    MAX_MTP_LAYERS,
    DeltaLayers,
    Qwen35Config,
    check_attends,
    check_rope_sections,
)

__all__ = ["ARCHITECTURES", "Qwen35Gguf", "read_qwen35_gguf"]

#: The values of ``general.architecture`` that can be read, and whether each has experts.
ARCHITECTURES: Mapping[str, bool] = {"qwen35": False, "qwen35moe": True, "qwen3next": True}

_INTERVAL = 4


@dataclass(frozen=True)
class Qwen35Gguf:
    """The description of a Qwen3.5 in an open GGUF file.

    It is the configuration, and the frequencies of rotary positions.
    """

    config: Qwen35Config
    frequencies: npt.NDArray[np.float32]


def read_qwen35_gguf(checkpoint: Checkpoint) -> Qwen35Gguf:
    """Read the metadata of a Qwen3.5.

    Raises:
        UnsupportedError: it uses a feature that is not built.
        ModelConfigError: a key is missing, of the wrong type or out of range, or contradicts another.
        CheckpointError: a tensor that gives the sizes is missing or has another shape.
    """
    fields = ConfigFields(checkpoint.metadata, str(checkpoint.directory))
    architecture = fields.text("general.architecture")
    at, has_experts = f"{architecture}.", ARCHITECTURES[architecture]
    extra = fields.integer(f"{at}nextn_predict_layers", 0, MAX_MTP_LAYERS, default=0)
    sizes = read_decoder_metadata(checkpoint, fields, architecture, experts=has_experts, extra_blocks=extra)
    sections = checkpoint.metadata.get(f"{at}rope.dimension_sections")
    if sections is not None:
        check_rope_sections(fields, f"{at}rope.dimension_sections", _plain(sections), sizes["rotary_dim"])
    shared = f"{at}expert_shared_feed_forward_length"
    config = Qwen35Config(
        delta=_read_delta(fields, checkpoint.metadata, at, sizes["num_hidden_layers"]),
        shared_width=fields.integer(shared, 1, MAX_WIDTH) if has_experts else 0,
        mtp_layers=extra,
        **sizes,
    )
    return Qwen35Gguf(config, rotary_frequencies(checkpoint, config.rope, config.rotary_dim))


def _plain(value: object) -> object:
    """Return an array of the file's metadata as a list, and any other value as it is."""
    return value.numbers().tolist() if isinstance(value, GgufArray) and value.kind != "STRING" else value


def _read_delta(fields: ConfigFields, metadata: Mapping[str, object], at: str, layers: int) -> DeltaLayers:
    key_heads = fields.integer(f"{at}ssm.group_count", 1, MAX_HEADS)
    value_heads = fields.integer(f"{at}ssm.time_step_rank", 1, MAX_HEADS)
    if value_heads % key_heads:
        name = f"{at}ssm.time_step_rank"
        raise fields.error(name, f"{value_heads} is no multiple of {at}ssm.group_count {key_heads}")
    inner = fields.integer(f"{at}ssm.inner_size", 1, MAX_WIDTH)
    if inner % value_heads or inner // value_heads > MAX_HEAD_DIM:
        raise fields.error(f"{at}ssm.inner_size", f"{inner} gives no width for {value_heads} value heads")
    delta = DeltaLayers(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer(f"{at}ssm.state_size", 1, MAX_HEAD_DIM),
        value_dim=inner // value_heads,
        kernel=fields.integer(f"{at}ssm.conv_kernel", 2, MOST_TAPS),
        grouping="blocks" if at == "qwen3next." else "interleaved",
        layers=check_attends(fields, _layers_with_rule(fields, metadata, at, layers)),
    )
    if delta.channels > MAX_WIDTH:
        raise fields.error(f"{at}ssm.inner_size", f"queries, keys and values have {delta.channels:,} columns")
    return delta


def _layers_with_rule(fields: ConfigFields, metadata: Mapping[str, object], at: str, layers: int) -> tuple[bool, ...]:
    name = f"{at}attention.recurrent_layers"
    if (given := metadata.get(name)) is not None:
        flags = _plain(given)
        if not isinstance(flags, list) or len(flags) < layers or not all(flag in (0, 1) for flag in flags):
            raise fields.error(name, f"is not a list of {layers} flags")
        return tuple(bool(flag) for flag in flags[:layers])
    interval = fields.integer(f"{at}full_attention_interval", 1, 2**31 - 1, default=_INTERVAL)
    return tuple(bool((layer + 1) % interval) for layer in range(layers))
