"""The common part of decoders' metadata in GGUF files.

llama.cpp's keys begin with the name of the architecture.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf_header import NO_TOKEN
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.models.config_fields import MAX_VOCAB_SIZE, ConfigFields
from lattice_inference.models.decoder_config import MAX_CONTEXT, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH
from lattice_inference.models.experts import MAX_EXPERTS, Experts
from lattice_inference.models.rope_scaling import RopeScaling

__all__ = ["FACTORS", "read_decoder_metadata", "rotary_frequencies"]

_LARGEST_FACTOR = 1e6

#: The tensor that divides the frequencies of rotary positions, if a file has it.
FACTORS = "rope_freqs.weight"


def read_decoder_metadata(
    checkpoint: Checkpoint, fields: ConfigFields, architecture: str, *, experts: bool = False, extra_blocks: int = 0
) -> dict[str, Any]:
    """Return the arguments of :class:`~lattice_inference.models.decoder_config.DecoderConfig`.

    ``experts`` says whether the architecture has mixtures of experts. They are then read; other files must not have them.
    The last ``extra_blocks`` blocks are no layers of the model.

    Raises:
        UnsupportedError: the file uses a feature that is not built.
        ModelConfigError: a key is missing, of the wrong type or out of range.
        CheckpointError: a tensor that gives the sizes is missing or has another shape.
    """
    source, at = fields.source, f"{architecture}."
    if not experts and fields.has(f"{at}expert_count") and fields.integer(f"{at}expert_count", 0, MAX_EXPERTS):
        raise UnsupportedError(f"{source}: {at}expert_count is not 0; mixtures of experts are not built for it")
    layers = fields.integer(f"{at}block_count", 1 + extra_blocks, MAX_LAYERS) - extra_blocks
    hidden = fields.integer(f"{at}embedding_length", 1, MAX_WIDTH)
    heads = fields.integer(f"{at}attention.head_count", 1, MAX_HEADS)
    kv_heads = fields.integer(f"{at}attention.head_count_kv", 1, heads, default=heads)
    if heads % kv_heads:
        raise fields.error(f"{at}attention.head_count_kv", f"{kv_heads} does not divide the {heads} heads")
    head_dim = fields.integer(f"{at}attention.key_length", 1, MAX_HEAD_DIM, default=hidden // heads)
    value_dim = fields.integer(f"{at}attention.value_length", 1, MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"{source}: {at}attention.key_length is {head_dim} and {at}attention.value_length is {value_dim}; keys and "
            "values of different widths are not built"
        )
    rotary_dim = fields.integer(f"{at}rope.dimension_count", 2, head_dim, default=head_dim)
    if rotary_dim % 2:
        raise fields.error(f"{at}rope.dimension_count", f"{rotary_dim} is odd")
    context = fields.integer(f"{at}context_length", 1, MAX_CONTEXT)
    window = fields.integer(f"{at}attention.sliding_window", 0, MAX_CONTEXT, default=0)
    rope = _rope(fields, at, context)
    tensors = set(checkpoint.names())
    mixtures = _experts(fields, at, tensors, layers) if experts else None
    inner = None if mixtures is None else mixtures.width
    return {
        "vocab_size": _vocabulary(checkpoint, hidden),
        "hidden_size": hidden,
        "intermediate_size": fields.integer(f"{at}feed_forward_length", 1, MAX_WIDTH, default=inner),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "context_length": context,
        "rms_norm_eps": fields.real(f"{at}attention.layer_norm_rms_epsilon", above=0.0, at_most=1.0),
        "rope": rope,
        "rotary_dim": rotary_dim,
        "tied": "output.weight" not in tensors,
        "windows": (window,) * layers,
        "query_key_value_bias": "blk.0.attn_q.bias" in tensors,
        "output_bias": "blk.0.attn_output.bias" in tensors,
        "feed_forward_bias": "blk.0.ffn_up.bias" in tensors,
        "bos_token_id": _token(fields, "bos_token_id"),
        "eos_token_ids": tuple(
            dict.fromkeys(
                token for name in ("eos", "eot", "eom") if (token := _token(fields, f"{name}_token_id")) is not None
            )
        ),
        "experts": mixtures,
    }


def _experts(fields: ConfigFields, at: str, tensors: Collection[str], layers: int) -> Experts:
    """Return the mixtures of experts.

    A layer with a feed-forward block and without a router is dense. llama.cpp always normalizes.
    """
    count = fields.integer(f"{at}expert_count", 1, MAX_EXPERTS)
    chosen = fields.integer(f"{at}expert_used_count", 1, MAX_EXPERTS)
    if chosen > count:
        raise fields.error(f"{at}expert_used_count", f"{chosen} is more than the {count} experts")
    return Experts(
        count=count,
        chosen=chosen,
        width=fields.integer(f"{at}expert_feed_forward_length", 1, MAX_WIDTH),
        normalized=True,
        layers=tuple(
            f"blk.{layer}.ffn_gate_inp.weight" in tensors or f"blk.{layer}.ffn_gate.weight" not in tensors
            for layer in range(layers)
        ),
    )


def _vocabulary(checkpoint: Checkpoint, hidden: int) -> int:
    shape = checkpoint.info("token_embd.weight").shape
    if len(shape) != 2 or shape[1] != hidden or not 1 <= shape[0] <= MAX_VOCAB_SIZE:
        raise CheckpointError(
            f"{checkpoint.directory}: token_embd.weight has the shape {shape}; expected up to {MAX_VOCAB_SIZE:,} rows of "
            f"{hidden}"
        )
    return shape[0]


def _token(fields: ConfigFields, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if not fields.has(key) or (value := fields.integer(key, 0, NO_TOKEN)) == NO_TOKEN:
        return None
    return value


def _rope(fields: ConfigFields, at: str, context: int) -> RopeScaling:
    base = fields.real(f"{at}rope.freq_base", above=1, at_most=1e12) if fields.has(f"{at}rope.freq_base") else 10_000.0

    def number(name: str, default: float) -> float:
        key = f"{at}{name}"
        return fields.real(key, above=0, at_most=_LARGEST_FACTOR) if fields.has(key) else default

    kind = fields.text(f"{at}rope.scaling.type", default="linear")
    # older files have no type: a factor alone means linear, and without a factor there is no scaling
    factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return RopeScaling(base)
    known: dict[str, Literal["linear", "yarn"]] = {"linear": "linear", "yarn": "yarn"}
    if kind not in known:
        raise UnsupportedError(
            f"{fields.source}: {at}rope.scaling.type is {kind!r:.60}; built are none, linear and yarn"
        )
    plain = RopeScaling(
        base,
        known[kind],
        factor,
        fields.integer(f"{at}rope.scaling.original_context_length", 1, MAX_CONTEXT, default=context),
        beta_fast=number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=number("rope.scaling.yarn_beta_slow", 1.0),
    )
    return replace(plain, attention_factor=plain.scale * number("rope.scaling.attn_factor", 1.0))


def rotary_frequencies(checkpoint: Checkpoint, rope: RopeScaling, rotary_dim: int) -> npt.NDArray[np.float32]:
    """Return the frequencies, divided by the file's factors if it has them.

    Llama 3.1's scaling is stored as such factors.
    """
    plain = rope.frequencies(rotary_dim)
    if FACTORS not in checkpoint:
        return plain
    factors = checkpoint.float32(FACTORS)
    if factors.shape != plain.shape or not (factors > 0).all():
        raise CheckpointError(
            f"{checkpoint.directory}: {FACTORS} has the shape {factors.shape} or a factor that is not positive; expected "
            f"{plain.shape}"
        )
    return np.asarray(plain / factors, np.float32)
