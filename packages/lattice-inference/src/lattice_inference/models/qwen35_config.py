"""The configuration of a Qwen3.5, read strictly from ``config.json``.

Qwen3.6 and Qwen3.8 have the same network, and so has Qwen3-Next, with other names. Files of text models have the fields at
the top, those with a vision part under ``text_config``. Most layers keep a state of fixed size (a gated delta rule) in place
of keys and values; the others attend. The model is dense or a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from lattice_inference.errors import UnsupportedError
from lattice_inference.graph.recurrent_ops import MOST_TAPS
from lattice_inference.models.config_fields import ConfigFields, shown
from lattice_inference.models.decoder_config import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    DecoderConfig,
    read_decoder_sizes,
)
from lattice_inference.models.experts import read_experts

__all__ = ["MODEL_TYPES", "DeltaLayers", "Qwen35Config", "check_attends", "check_rope_sections", "has_text_config"]

#: The values of ``model_type``: with a vision part and for text only, dense models and mixtures of experts.
MODEL_TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")

_NEXT = "qwen3_next"

#: The most extra layers that predict further tokens.
MAX_MTP_LAYERS = 16

#: What transformers documents for fields that a file may leave out.
_DEFAULTS: Mapping[str, object] = {"max_position_embeddings": 32_768, "norm_topk_prob": True}
_ROTARY_SHARE = 0.25
_HEAD_DIM = 256
_INTERVAL = 4
_KINDS = {"linear_attention": True, "full_attention": False}


@dataclass(frozen=True, kw_only=True)
class DeltaLayers:
    """The layers with a gated delta rule.

    Attributes:
        key_heads, value_heads: heads of queries and keys, and of values; the first number divides the second.
        key_dim, value_dim: their widths.
        kernel: rows that the convolution before the rule reads, the token's own included.
        grouping: which key head a value head uses, as the source orders value heads; see
            :data:`~lattice_inference.graph.recurrent_ops.GROUPINGS`.
        layers: for every layer whether it has the rule.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    grouping: Literal["blocks", "interleaved"]
    layers: tuple[bool, ...]

    @property
    def channels(self) -> int:
        """Columns of queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_width

    @property
    def value_width(self) -> int:
        """Columns of the values."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True, kw_only=True)
class Qwen35Config(DecoderConfig):
    """Sizes and choices of a Qwen3.5.

    Attributes:
        delta: the layers with a gated delta rule.
        shared_width: width of the expert that every token goes through; 0 without experts.
        mtp_layers: extra layers that predict further tokens, as the file promises them.
    """

    delta: DeltaLayers
    shared_width: int = 0
    mtp_layers: int = 0

    def with_one_layer(self) -> Self:
        """Return the same model with its first block only."""
        return self._with_layer(0)

    def kinds_of_layers(self) -> tuple[tuple[Self, tuple[int, ...]], ...]:
        """Return, for each kind of layer, a model with one such layer and these layers' numbers."""
        kinds: dict[tuple[bool, bool], list[int]] = {}
        for layer, has_rule in enumerate(self.delta.layers):
            sparse = self.experts is not None and self.experts.layers[layer]
            kinds.setdefault((has_rule, sparse), []).append(layer)
        return tuple((self._with_layer(numbers[0]), tuple(numbers)) for numbers in kinds.values())

    def with_one_attending_layer(self) -> Self:
        """Return a model of one layer that attends, and has experts if layers have."""
        experts = self.experts and self.experts.of_one_layer(sparse=True)
        delta = replace(self.delta, layers=(False,))
        return replace(self, num_hidden_layers=1, windows=(0,), experts=experts, delta=delta)

    def _with_layer(self, layer: int) -> Self:
        experts = self.experts and self.experts.of_one_layer(sparse=self.experts.layers[layer])
        return replace(
            self,
            num_hidden_layers=1,
            windows=(0,),
            experts=experts,
            delta=replace(self.delta, layers=(self.delta.layers[layer],)),
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, source: str = "config.json") -> Self:
        """Read the parsed content of a ``config.json``; ``source`` is its name in messages.

        Raises:
            ModelConfigError: it is malformed, or a field is missing, of the wrong type or out of range, or two of its
                fields contradict each other.
            UnsupportedError: it has a model type or an option that is not built.
        """
        outer = ConfigFields(mapping, source)
        has_experts = _has_experts(outer)
        text: Mapping[str, object] = mapping
        where = source
        if has_text_config(mapping):
            found = mapping.get("text_config")
            if not isinstance(found, dict):
                raise outer.error("text_config", f"{shown(found)} is not an object")
            text, where = found, f"{source}: text_config"
            inner_type = ConfigFields(text, where).text("model_type", default=f"{mapping['model_type']}_text")
            if inner_type != f"{mapping['model_type']}_text":
                raise UnsupportedError(
                    f"{where}: model_type is {shown(inner_type)}; built is {mapping['model_type']}_text"
                )
        text = {**_DEFAULTS, **text, "tie_word_embeddings": _tied(mapping, text, source)}
        is_next = mapping["model_type"] == _NEXT
        if has_experts and "intermediate_size" not in text:
            text = {**text, "intermediate_size": text.get("moe_intermediate_size")}
        for name in ("eos_token_id", "bos_token_id"):
            if text.get(name) is None:
                text = {**text, name: mapping.get(name)}
        fields = ConfigFields(text, where)
        _refuse_options(fields, text, may_be_dense=is_next)
        sizes = read_decoder_sizes(fields, text, head_dim=_HEAD_DIM, rotary_share=_ROTARY_SHARE)
        layers = sizes["num_hidden_layers"]
        _check_sections(fields, text, sizes["rotary_dim"])
        experts = read_experts(fields, text, layers) if has_experts else None
        return cls(
            windows=(0,) * layers,
            experts=experts,
            shared_width=fields.integer("shared_expert_intermediate_size", 1, MAX_WIDTH) if has_experts else 0,
            mtp_layers=fields.integer("mtp_num_hidden_layers", 0, MAX_MTP_LAYERS, default=0),
            delta=_read_delta(fields, text, layers),
            **sizes,
        )


def has_text_config(mapping: Mapping[str, object]) -> bool:
    """Whether the text model's fields are under ``text_config``, as beside a vision part."""
    return not str(mapping.get("model_type")).endswith(("_text", _NEXT))


def check_attends(fields: ConfigFields, layers: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return for every layer whether it has the rule, after a check that one attends.

    Raises:
        UnsupportedError: none does, so that there are no pages of keys and values.
    """
    if all(layers):
        raise UnsupportedError(
            f"{fields.source}: none of the {len(layers):,} layers attends; built are models with a layer that does"
        )
    return layers


def check_rope_sections(fields: ConfigFields, name: str, sections: object, rotary_dim: int) -> None:
    """Refuse sections of rotary positions that do not fit the rotated pairs.

    A token of text has one position on all axes, so sections change nothing else.

    Raises:
        ModelConfigError: they are no numbers, or have another sum than there are pairs.
    """
    numbers = sections if isinstance(sections, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(numbers) not in (3, 4):
        raise fields.error(name, f"{shown(sections)} is not a list of three numbers")
    if sum(numbers) != rotary_dim // 2:
        raise fields.error(name, f"{shown(sections)} has the sum {sum(numbers)}, and {rotary_dim // 2} pairs turn")


def _has_experts(fields: ConfigFields) -> bool:
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        known = ", ".join(map(repr, MODEL_TYPES))
        raise UnsupportedError(f"{fields.source}: model_type is {shown(model_type)}; built are {known}")
    has_experts = "_moe" in model_type or model_type == _NEXT
    stem = "Qwen3_5Moe" if has_experts else "Qwen3_5"
    known_classes = [f"{stem}ForConditionalGeneration", f"{stem}ForCausalLM"]
    if model_type == _NEXT:
        known_classes = ["Qwen3NextForCausalLM"]
    if (name := fields.only_text("architectures")) not in known_classes:
        raise UnsupportedError(f"{fields.source}: architectures is {shown(name)}; built are {', '.join(known_classes)}")
    return has_experts


def _tied(mapping: Mapping[str, object], text: Mapping[str, object], source: str) -> bool:
    """Return whether the output matrix is the embedding.

    A flag at the top, in ``text_config`` or both say it.
    """
    name = "tie_word_embeddings"
    flags = [ConfigFields(each, source).flag(name) for each in (mapping, text) if each.get(name) is not None]
    if len(set(flags)) > 1:
        raise ConfigFields(mapping, source).error(
            name,
            f"is {str(flags[0]).lower()}, and in text_config it is {str(flags[1]).lower()}: set both to what holds",
        )
    return flags[0] if flags else False


def _refuse_options(fields: ConfigFields, text: Mapping[str, object], *, may_be_dense: bool) -> None:
    for name, built in (("attention_bias", False), ("attn_output_gate", True), ("mlp_bias", False)):
        if fields.flag(name, default=built) is not built:
            raise UnsupportedError(f"{fields.source}: {name} is {not built}; built is {built}")
    if may_be_dense:
        return
    if fields.flag("norm_topk_prob", default=True) is not True:
        raise UnsupportedError(f"{fields.source}: norm_topk_prob is False; the family always divides by the sum")
    if text.get("mlp_only_layers") or fields.integer("decoder_sparse_step", 1, 2**31 - 1, default=1) != 1:
        raise UnsupportedError(
            f"{fields.source}: mlp_only_layers or decoder_sparse_step is set; every layer has experts"
        )


def _check_sections(fields: ConfigFields, text: Mapping[str, object], rotary_dim: int) -> None:
    for name in ("rope_parameters", "rope_scaling"):
        nested = text.get(name)
        if isinstance(nested, dict) and nested.get("mrope_section") is not None:
            check_rope_sections(fields, "mrope_section", nested["mrope_section"], rotary_dim)


def _read_delta(fields: ConfigFields, text: Mapping[str, object], layers: int) -> DeltaLayers:
    key_heads = fields.integer("linear_num_key_heads", 1, MAX_HEADS)
    value_heads = fields.integer("linear_num_value_heads", 1, MAX_HEADS)
    if value_heads % key_heads:
        raise fields.error(
            "linear_num_value_heads", f"{value_heads} is no multiple of linear_num_key_heads {key_heads}"
        )
    delta = DeltaLayers(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer("linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_dim=fields.integer("linear_value_head_dim", 1, MAX_HEAD_DIM),
        kernel=fields.integer("linear_conv_kernel_dim", 2, MOST_TAPS),
        grouping="blocks",
        layers=check_attends(fields, _layers_with_rule(fields, text, layers)),
    )
    if delta.channels > MAX_WIDTH:
        raise fields.error("linear_num_value_heads", f"queries, keys and values have {delta.channels:,} columns")
    return delta


def _layers_with_rule(fields: ConfigFields, text: Mapping[str, object], layers: int) -> tuple[bool, ...]:
    kinds = text.get("layer_types")
    if kinds is None:
        interval = fields.integer("full_attention_interval", 1, 2**31 - 1, default=_INTERVAL)
        return tuple(bool((layer + 1) % interval) for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in _KINDS for kind in kinds):
        raise fields.error("layer_types", f"is not a list of {layers} of {', '.join(_KINDS)}")
    return tuple(_KINDS[kind] for kind in kinds)
