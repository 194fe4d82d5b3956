"""The common part of decoders' configurations, read strictly from ``config.json``.

A missing field is an error that names it, unless transformers documents a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import MAX_VOCAB_SIZE, ConfigFields, token_ids_of
from lattice_inference.models.experts import Experts
from lattice_inference.models.rope_scaling import RopeScaling, read_rope_scaling

__all__ = [
    "MAX_CONTEXT",
    "MAX_HEADS",
    "MAX_HEAD_DIM",
    "MAX_LAYERS",
    "MAX_WIDTH",
    "DecoderConfig",
    "read_decoder_sizes",
    "windows_of_layers",
]

#: The largest values that a configuration may hold.
MAX_LAYERS = 1_024
MAX_HEADS = 8_192
MAX_HEAD_DIM = 1_024
MAX_WIDTH = 2**20
MAX_CONTEXT = 2**24


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and choices of a decoder.

    Attributes:
        vocab_size: rows of the embedding, and logits.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward block.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads of the queries.
        num_key_value_heads: heads of keys and values; divides ``num_attention_heads``.
        head_dim: width of a head; need not be ``hidden_size / num_attention_heads``.
        context_length: the number of positions that the model was made for, ``max_position_embeddings``.
        rms_norm_eps: added to the mean square in every norm.
        rope: how positions become angles.
        rotary_dim: dimensions of a head that are rotated.
        tied: whether the output matrix is the embedding.
        windows: for each layer, the number of positions that attention reads, its own included; 0 for all.
        query_key_value_bias, output_bias, feed_forward_bias: whether these linears have biases.
        bos_token_id: the id that begins a text, if the model has one.
        eos_token_ids: ids that end a text.
        experts: the mixtures of experts, if there are some.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeScaling
    rotary_dim: int
    tied: bool
    windows: tuple[int, ...]
    query_key_value_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    experts: Experts | None = None

    def with_one_layer(self) -> Self:
        """Return the same model with its first block only."""
        experts = self.experts and self.experts.of_one_layer(sparse=self.experts.layers[0])
        return replace(self, num_hidden_layers=1, windows=self.windows[:1], experts=experts)

    def kinds_of_layers(self) -> tuple[tuple[Self, tuple[int, ...]], ...]:
        """Return, for each kind of layer, a model with one such layer and these layers' numbers."""
        if self.experts is None:
            return ((self.with_one_layer(), tuple(range(self.num_hidden_layers))),)
        one, layers = self.with_one_layer(), self.experts.layers
        return tuple(
            (replace(one, experts=self.experts.of_one_layer(sparse=sparse)), numbers)
            for sparse in (False, True)
            if (numbers := tuple(number for number, other in enumerate(layers) if other is sparse))
        )


def read_decoder_sizes(
    fields: ConfigFields,
    mapping: Mapping[str, object],
    *,
    head_dim: int | None = None,
    rotary_share: float | None = None,
) -> dict[str, Any]:
    """Return the arguments of :class:`DecoderConfig` that all families spell alike.

    Windows and biases of attention are left out.

    Args:
        fields, mapping: the parsed ``config.json``.
        head_dim: the width of a head if the file does not state it; by default ``hidden_size`` over the heads.
        rotary_share: the share of a head's dimensions that turn if the file does not state it; None if all always turn.

    Raises:
        ModelConfigError: a field is missing, of the wrong type or out of range.
        UnsupportedError: an option is not built.
    """
    source = fields.source
    if mapping.get("quantization_config") is not None:
        raise UnsupportedError(f"{source}: quantization_config is set; only checkpoints of floats are read")
    if fields.text("hidden_act", default="silu") != "silu":
        raise UnsupportedError(f"{source}: hidden_act is {mapping['hidden_act']!r:.100}; built is 'silu'")
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    kv_heads = fields.integer("num_key_value_heads", 1, heads) if fields.has("num_key_value_heads") else heads
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    if fields.has("head_dim"):
        head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM)
    elif head_dim is None:
        head_dim = hidden // heads
        if not 1 <= head_dim <= MAX_HEAD_DIM or hidden % heads:
            raise fields.error("hidden_size", f"{hidden} over {heads} heads gives no head_dim from 1 to {MAX_HEAD_DIM}")
    rope, share = read_rope_scaling(fields, mapping, share=1.0 if rotary_share is None else rotary_share)
    if rotary_share is None and share != 1:
        raise UnsupportedError(
            f"{source}: partial_rotary_factor is {share:g}; in this family all dimensions of a head turn, and versions of "
            "transformers ignore it or fail"
        )
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise fields.error("head_dim", f"{rotary_dim} of {head_dim} dimensions turn; an even number of at least 2 must")
    return {
        "vocab_size": fields.integer("vocab_size", 1, MAX_VOCAB_SIZE),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size", 1, MAX_WIDTH),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "context_length": fields.integer("max_position_embeddings", 1, MAX_CONTEXT),
        "rms_norm_eps": fields.real("rms_norm_eps", above=0.0, at_most=1.0),
        "rope": rope,
        "rotary_dim": rotary_dim,
        "tied": fields.flag("tie_word_embeddings", default=False),
        "feed_forward_bias": fields.flag("mlp_bias", default=False),
        "bos_token_id": fields.integer("bos_token_id", 0, MAX_VOCAB_SIZE) if fields.has("bos_token_id") else None,
        "eos_token_ids": token_ids_of(mapping, "eos_token_id", source=source),
    }


def windows_of_layers(fields: ConfigFields, mapping: Mapping[str, object], layers: int) -> tuple[int, ...]:
    """Return the window of each layer, as transformers has it since Qwen2.

    ``layer_types`` states it, or it begins at one layer.
    """
    if not fields.flag("use_sliding_window", default=False) or not fields.has("sliding_window"):
        return (0,) * layers
    window = fields.integer("sliding_window", 1, MAX_CONTEXT)
    kinds = mapping.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", 0, MAX_LAYERS, default=28)
        return tuple(window if layer >= first else 0 for layer in range(layers))
    known = {"full_attention": 0, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise fields.error("layer_types", f"is not a list of {layers} of {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)
