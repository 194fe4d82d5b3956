"""The configuration of a Qwen3, read strictly from ``config.json``.

The model is dense or a mixture of experts. It is a Llama whose queries and keys have a norm for each head. The width of a
head does not follow from the hidden size. The same network generates, embeds (Qwen3-Embedding) and ranks
(Qwen3-Reranker), so all of them have this configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields, shown
from lattice_inference.models.decoder_config import MAX_CONTEXT, DecoderConfig, read_decoder_sizes, windows_of_layers
from lattice_inference.models.experts import read_experts

__all__ = ["MODEL_TYPES", "Qwen3Class", "Qwen3Config"]

#: The values of ``model_type``: dense models, and mixtures of experts.
MODEL_TYPES = ("qwen3", "qwen3_moe")

#: The width of a head if a file does not state it: transformers' default.
HEAD_DIM = 128

MAX_LABELS = 65_536


class Qwen3Class(Enum):
    """The class of transformers that wrote a checkpoint."""

    CAUSAL = "Qwen3ForCausalLM"
    MODEL = "Qwen3Model"
    CLASSIFIER = "Qwen3ForSequenceClassification"

    @property
    def of_experts(self) -> str:
        """The name of the same class of mixtures of experts."""
        return self.value.replace("Qwen3", "Qwen3Moe")


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(DecoderConfig):
    """Sizes and choices of a Qwen3.

    Attributes:
        written_by: the class of transformers that wrote the checkpoint.
        label_count: outputs of the classification head, if there is one; else 1, the score of a pair.
    """

    written_by: Qwen3Class = Qwen3Class.CAUSAL
    label_count: int = 1

    @property
    def longest_input(self) -> int:
        """The longest input in tokens: the number of positions that the model was made for."""
        return self.context_length

    @property
    def has_token_types(self) -> bool:
        """Whether tokens have types: no."""
        return False

    @property
    def classifies(self) -> bool:
        """Whether there is a classification head on top."""
        return self.written_by is Qwen3Class.CLASSIFIER

    @property
    def class_name(self) -> str:
        """The class that wrote the checkpoint, for messages."""
        return self.written_by.value if self.experts is None else self.written_by.of_experts

    def position_ids(self, token_ids: npt.NDArray[np.int32], cu_seqlens: npt.NDArray[np.int32]) -> None:
        """Return None: positions are 0, 1, 2, ... of each sequence."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, source: str = "config.json") -> Self:
        """Read the parsed content of a ``config.json``; ``source`` is its name in messages.

        Raises:
            ModelConfigError: it is malformed, or a field is missing, of the wrong type or out of range.
            UnsupportedError: it has a model type or an option that is not built.
        """
        fields = ConfigFields(mapping, source)
        model_type = fields.text("model_type")
        if model_type not in MODEL_TYPES:
            known = " and ".join(map(repr, MODEL_TYPES))
            raise UnsupportedError(f"{source}: model_type is {model_type!r:.100}; built are {known}")
        has_experts = model_type == "qwen3_moe"
        written_by = _class_of(fields, has_experts)
        sizes = read_decoder_sizes(fields, mapping, head_dim=None if has_experts else HEAD_DIM)
        layers = sizes["num_hidden_layers"]
        bias = fields.flag("attention_bias", default=False)
        return cls(
            written_by=written_by,
            label_count=_label_count(fields, mapping) if written_by is Qwen3Class.CLASSIFIER else 1,
            windows=_one_window(fields, mapping, layers) if has_experts else windows_of_layers(fields, mapping, layers),
            experts=read_experts(fields, mapping, layers) if has_experts else None,
            query_key_value_bias=bias,
            output_bias=bias,
            **(sizes | {"feed_forward_bias": False}),
        )


def _class_of(fields: ConfigFields, has_experts: bool) -> Qwen3Class:
    name = fields.only_text("architectures")
    if not has_experts:
        return fields.choice("architectures", Qwen3Class, value=name)
    for written_by in Qwen3Class:
        if name == written_by.of_experts:
            return written_by
    known = ", ".join(repr(written_by.of_experts) for written_by in Qwen3Class)
    raise UnsupportedError(f"{fields.source}: architectures is {shown(name)}; built are {known}")


def _one_window(fields: ConfigFields, mapping: Mapping[str, object], layers: int) -> tuple[int, ...]:
    """Return the window of each layer of a mixture; transformers uses one window for all."""
    if not fields.flag("use_sliding_window", default=False) or mapping.get("sliding_window", 0) is None:
        return (0,) * layers
    return (fields.integer("sliding_window", 1, MAX_CONTEXT, default=4096),) * layers


def _label_count(fields: ConfigFields, mapping: Mapping[str, object]) -> int:
    """Return the number of outputs of a classification head.

    As in transformers, it is the number of entries of ``id2label``, or 2 without them.
    """
    labels = mapping.get("id2label")
    if labels is None:
        return fields.integer("num_labels", 1, MAX_LABELS, default=2)
    if not isinstance(labels, dict) or not 1 <= len(labels) <= MAX_LABELS:
        raise fields.error("id2label", f"is not an object of 1 to {MAX_LABELS:,} labels")
    return len(labels)
