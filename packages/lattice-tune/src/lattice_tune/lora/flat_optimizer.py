"""Clips gradients by their norm, then applies PyTorch's rule in C (lattice_fann's kernels)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import lattice_fann
from lattice_fann.training.flat_update import update_parameters
from lattice_tune.errors import TrainingError
from lattice_tune.lora.parameters import TrainedParameters
from lattice_tune.training.optimizer import Optimizer, OptimizerConfig

__all__ = ["FlatOptimizer", "Update"]

_RULES = {
    Optimizer.SGD: lattice_fann.Optimizer.SGD,
    Optimizer.SGD_MOMENTUM: lattice_fann.Optimizer.SGD,
    Optimizer.ADAM: lattice_fann.Optimizer.ADAM,
    Optimizer.ADAMW: lattice_fann.Optimizer.ADAMW,
    Optimizer.RMSPROP: lattice_fann.Optimizer.RMSPROP,
}


class Update(NamedTuple):
    """What an update did: the norm of the mean gradient before clipping, and the learning rate."""

    gradient_norm: float
    learning_rate: float


class FlatOptimizer:
    """An optimizer of :class:`TrainedParameters`.

    Args:
        config: the rule.
        parameters: what it moves.
        b_rate_ratio: the rate of B divided by that of A.
        gradient_clip: the longest gradient, or None.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        parameters: TrainedParameters,
        *,
        b_rate_ratio: float = 1.0,
        gradient_clip: float | None = None,
    ) -> None:
        self._config, self._parameters = config, parameters
        self._ratio, self._clip = b_rate_ratio, gradient_clip
        self.moment1: npt.NDArray[np.float32] = np.zeros_like(parameters.values)
        self.moment2: npt.NDArray[np.float32] = np.zeros_like(parameters.values)
        self.updates = 0

    def update(self, learning_rate: float, weight: float) -> Update:
        """Move the parameters along the summed gradients divided by ``weight``.

        Raises:
            TrainingError: the gradient is not finite; nothing was moved.
        """
        parameters, config = self._parameters, self._config
        norm = parameters.gradient_norm() / weight
        if not math.isfinite(norm):
            raise TrainingError("the gradient is not finite")
        factor = 1.0 / weight
        if self._clip is not None and norm > self._clip:
            factor *= self._clip / norm
        self.updates += 1
        for group in parameters.groups:
            update_parameters(
                _RULES[config.optimizer],
                parameters.values[group.part],
                parameters.gradients[group.part],
                self.moment1[group.part],
                self.moment2[group.part],
                learning_rate=learning_rate * (self._ratio if group.is_b else 1.0),
                step=self.updates,
                momentum=config.momentum if config.optimizer is Optimizer.SGD_MOMENTUM else 0.0,
                beta1=config.beta1,
                beta2=config.beta2,
                epsilon=config.epsilon,
                weight_decay=config.weight_decay if group.decays else 0.0,
                gradient_scale=factor,
            )
        return Update(norm, learning_rate)
