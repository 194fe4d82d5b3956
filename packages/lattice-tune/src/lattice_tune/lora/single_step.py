"""One example, or one gradient, at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_tune.arguments import instance, real
from lattice_tune.errors import TrainingError
from lattice_tune.lora.rows import RowSource
from lattice_tune.lora.trainer import LoraTrainer

__all__ = ["AdaptStep", "LoraGradients", "adapt_step", "compute_lora_gradients"]

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LoraGradients:
    """The gradients of a mean loss.

    Attributes:
        loss: the mean over the trained tokens, or the examples.
        weight: how many there were.
        norm: the L2 norm of all gradients together.
        sites: the gradients of A, (rank, inputs), and B, (outputs, rank), by site; float32.
    """

    loss: float
    weight: float
    norm: float
    sites: Mapping[str, tuple[Float32Array, Float32Array]]


class AdaptStep(NamedTuple):
    """The loss before a step, and the norm of the gradient."""

    loss: float
    gradient_norm: float


def compute_lora_gradients(trainer: LoraTrainer, examples: RowSource) -> LoraGradients:
    """Return the gradients of the mean loss of rows at the adapter as it is, without dropout.

    Raises:
        DatasetError: a row is no example.
        TrainingError: the loss or a gradient is not finite.
    """
    loss, weight = instance(trainer, "trainer", LoraTrainer)._gradients(examples)
    parameters = trainer._parameters
    norm = parameters.gradient_norm() / weight
    if not np.isfinite(norm) or not np.isfinite(loss):
        raise TrainingError("the loss or its gradient is not finite")
    mean = parameters.gradients * np.float32(1.0 / weight)
    sites = {
        site: (parameters.view(mean, site, "a").copy(), parameters.view(mean, site, "b").copy())
        for site in parameters.shapes
    }
    return LoraGradients(loss / weight, weight, norm, sites)


def adapt_step(trainer: LoraTrainer, example: Mapping[str, Any], *, learning_rate: float) -> AdaptStep:
    """Take one step of SGD on one row: matrices -= learning_rate * gradient of the mean loss.

    Raises:
        InvalidInputError: the rate is not above 0 and finite.
        DatasetError: the row is no example.
        TrainingError: the loss or a gradient is not finite, or a matrix would be; then none was changed.
    """
    rate = real(learning_rate, "learning_rate", "above 0", above=0)
    instance(example, "example", Mapping)  # type: ignore[type-abstract]
    found = compute_lora_gradients(trainer, [example])
    parameters = trainer._parameters
    with np.errstate(over="ignore", invalid="ignore"):
        moved = parameters.values - np.float32(min(rate / found.weight, 3e38)) * parameters.gradients
    if not np.isfinite(moved).all():
        raise TrainingError("the step would make a number that is not finite: lower the learning rate")
    parameters.values[:] = moved
    trainer._link.write()
    return AdaptStep(found.loss, found.norm)
