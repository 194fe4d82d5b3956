"""Finds the layers of a Qwen3.5 that predict further tokens (MTP) in its files.

Gloeckle et al. 2024 (https://arxiv.org/abs/2404.19737): one more layer takes the model's last rows and the next token, and
predicts the token after that. It serves drafts that the model then verifies. Files may leave it out as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.program import Program
from lattice_inference.models.experts import find_expert_names, find_gguf_experts
from lattice_inference.models.family import Predicting
from lattice_inference.models.llama import ROPE_FREQUENCIES
from lattice_inference.models.qwen35 import build_qwen35, build_qwen35_mtp
from lattice_inference.models.qwen35_config import Qwen35Config
from lattice_inference.models.qwen35_names import MtpNames, Qwen35Names, gguf_mtp_names, mtp_names

__all__ = ["find_gguf_mtp", "find_mtp"]


def find_mtp(checkpoint: Checkpoint, config: Qwen35Config, names: Qwen35Names) -> Predicting[Qwen35Config] | None:
    """Return the programs with the extra layers of a checkpoint; None if it holds none.

    Raises:
        CheckpointError: it holds a part of them, or a tensor has another shape.
    """
    if not config.mtp_layers or not any(name.startswith("mtp.") for name in checkpoint.names()):
        return None
    experts = None
    if config.experts is not None:
        of_extra = replace(config.experts, layers=(True,) * config.mtp_layers)
        experts = find_expert_names(checkpoint, of_extra, config.hidden_size, "mtp.")
    layers = [mtp_names(names, number, experts) for number in range(config.mtp_layers)]
    return _predicting(checkpoint, config, names, layers)


def find_gguf_mtp(checkpoint: Checkpoint, config: Qwen35Config, names: Qwen35Names) -> Predicting[Qwen35Config] | None:
    """Return the same for a GGUF file, in which they are blocks after the model's last one.

    Raises:
        CheckpointError: it holds a part of them, or a tensor has another shape.
    """
    blocks = range(config.num_hidden_layers, config.num_hidden_layers + config.mtp_layers)
    stems = tuple(f"blk.{block}." for block in blocks)
    if not any(name.startswith(stems) for name in checkpoint.names()):
        return None
    if config.experts is not None:
        of_extra = replace(config.experts, layers=(False,) * blocks.start + (True,) * config.mtp_layers)
        experts = find_gguf_experts(checkpoint, of_extra, config.hidden_size)
        names_of_layers = [gguf_mtp_names(replace(names, experts=experts), block) for block in blocks]
    else:
        names_of_layers = [gguf_mtp_names(names, block) for block in blocks]
    return _predicting(checkpoint, config, names, names_of_layers)


def _predicting(
    checkpoint: Checkpoint, config: Qwen35Config, names: Qwen35Names, layers: Sequence[MtpNames]
) -> Predicting[Qwen35Config]:
    builders = [partial(build_qwen35_mtp, names=layer, number=number) for number, layer in enumerate(layers)]
    for build in builders:
        _check(checkpoint, build(config), config.mtp_layers)
    return Predicting(partial(build_qwen35, names=names, keeps_hidden=True), tuple(builders))


def _check(checkpoint: Checkpoint, program: Program, layers: int) -> None:
    """Check that the checkpoint holds the tensors of an extra layer."""
    for op in program.ops:
        for ref in op.weights.values():
            for name in ref.sources:
                if name == ROPE_FREQUENCIES:
                    continue
                if name not in checkpoint:
                    raise CheckpointError(
                        f"{checkpoint.directory}: the checkpoint holds a part of the {layers} layers that predict further "
                        f"tokens, without {name!r}: take all of them out, or complete them"
                    )
                if (found := checkpoint.info(name).shape) != ref.source_shape:
                    raise CheckpointError(
                        f"{checkpoint.directory}: the model needs a tensor of shape {ref.source_shape}, the checkpoint "
                        f"has {name} {found}"
                    )
