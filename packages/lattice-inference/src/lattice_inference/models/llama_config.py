"""The configuration of a Llama, Mistral or Qwen2 model, read strictly from ``config.json``.

They share one network: Mistral limits the window of attention, and Qwen2 adds biases to queries, keys and values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.decoder_config import MAX_CONTEXT, DecoderConfig, read_decoder_sizes, windows_of_layers

__all__ = ["LlamaConfig", "LlamaFamily"]


class LlamaFamily(Enum):
    """The kind of model of a checkpoint, by its ``model_type``."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"

    @property
    def class_name(self) -> str:
        """The name of transformers' class of the family."""
        return {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[self.value] + "ForCausalLM"


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """Sizes and choices of such a decoder.

    Attributes:
        family: the kind of model.
    """

    family: LlamaFamily

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> Self:
        """Read ``config.json`` in ``directory``.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelConfigError: it is malformed, or a field is missing, of the wrong type or out of range.
            UnsupportedError: it has a model type or an option that is not built.
        """
        path = Path(directory) / "config.json"
        return cls.from_mapping(load_json_object(path), source=str(path))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, source: str = "config.json") -> Self:
        """Read the parsed content of a ``config.json``, with the same errors.

        ``source`` is its name in messages.
        """
        fields = ConfigFields(mapping, source)
        family = fields.choice("model_type", LlamaFamily)
        architecture = fields.only_text("architectures")
        if architecture != family.class_name:
            raise UnsupportedError(f"{source}: architectures is {architecture!r:.100}; built is {family.class_name!r}")
        sizes = read_decoder_sizes(fields, mapping)
        qwen2 = family is LlamaFamily.QWEN2
        bias = fields.flag("attention_bias", default=False)
        return cls(
            family=family,
            windows=_windows(fields, mapping, family, sizes["num_hidden_layers"]),
            query_key_value_bias=qwen2 or bias,
            output_bias=bias and not qwen2,
            **sizes,
        )


def _windows(fields: ConfigFields, mapping: Mapping[str, object], family: LlamaFamily, layers: int) -> tuple[int, ...]:
    """Return the window of each layer, as in transformers."""
    if family is LlamaFamily.QWEN2:
        return windows_of_layers(fields, mapping, layers)
    if family is LlamaFamily.LLAMA or ("sliding_window" in mapping and not fields.has("sliding_window")):
        return (0,) * layers
    return (fields.integer("sliding_window", 1, MAX_CONTEXT, default=4096),) * layers
