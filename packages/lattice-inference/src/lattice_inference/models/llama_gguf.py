"""Llama, Mistral and Qwen2 in GGUF files, with llama.cpp's keys.

:mod:`lattice_inference.models.llama` builds their programs. Mistral is stored as ``llama`` with a window. Files of
architecture ``llama`` have the rows of queries and keys in another order than transformers: the two rows of a rotated
pair are neighbours. Those of ``qwen2`` have the order of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.decoder_gguf import read_decoder_metadata, rotary_frequencies
from lattice_inference.models.llama import GGUF_NAMES, DecoderNames
from lattice_inference.models.llama_config import LlamaConfig, LlamaFamily
from lattice_inference.models.weight_check import refuse_adapter_file

__all__ = ["ARCHITECTURES", "LlamaGguf", "read_llama_gguf"]

_FAMILIES = {"llama": LlamaFamily.LLAMA, "qwen2": LlamaFamily.QWEN2}

#: The values of ``general.architecture`` that can be read.
ARCHITECTURES = tuple(_FAMILIES)


@dataclass(frozen=True)
class LlamaGguf:
    """The description of a decoder in an open GGUF file.

    Attributes:
        config: sizes and choices.
        names: the names of the tensors, and the pairing of their rows.
        frequencies: the frequencies of rotary positions, (rotary_dim / 2,) float32, with the file's factors applied.
    """

    config: LlamaConfig
    names: DecoderNames
    frequencies: npt.NDArray[np.float32]


def read_llama_gguf(checkpoint: Checkpoint) -> LlamaGguf:
    """Read the metadata of a decoder.

    Raises:
        UnsupportedError: it is another architecture, or uses a feature that is not built.
        ModelConfigError: a key is missing, of the wrong type or out of range.
        CheckpointError: a tensor that gives the sizes is missing or has another shape.
    """
    source = str(checkpoint.directory)
    fields = ConfigFields(checkpoint.metadata, source)
    refuse_adapter_file(fields)
    architecture = fields.text("general.architecture")
    if architecture not in _FAMILIES:
        raise UnsupportedError(
            f"{source}: general.architecture is {architecture!r:.60}; of decoders in GGUF files, {', '.join(_FAMILIES)} are "
            "built"
        )
    sizes = read_decoder_metadata(checkpoint, fields, architecture)
    config = LlamaConfig(family=_FAMILIES[architecture], **sizes)
    names = replace(GGUF_NAMES, pairing="half") if architecture == "qwen2" else GGUF_NAMES
    return LlamaGguf(config, names, rotary_frequencies(checkpoint, config.rope, config.rotary_dim))
