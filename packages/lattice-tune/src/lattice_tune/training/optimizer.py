"""Which rule turns gradients into steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lattice_fann.training.config import LEAST_EPSILON
from lattice_tune.arguments import instance, real
from lattice_tune.errors import ConfigError

__all__ = ["Optimizer", "OptimizerConfig"]


class Optimizer(Enum):
    """The rules, in PyTorch's form."""

    SGD = "sgd"
    SGD_MOMENTUM = "sgd_momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    RMSPROP = "rmsprop"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which rule turns gradients into steps.

    Attributes:
        optimizer: see :class:`Optimizer`.
        learning_rate: step size before the schedule.
        momentum: of SGD_MOMENTUM.
        beta1, beta2: of ADAM and ADAMW; RMSPROP smooths squares with ``beta2``.
        epsilon: of ADAM, ADAMW and RMSPROP.
        weight_decay: decoupled for ADAMW, L2 on the mean gradient for the others; not on biases.
    """

    optimizer: Optimizer = Optimizer.ADAMW
    learning_rate: float = 0.001
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        instance(self.optimizer, "optimizer", Optimizer, refusal=ConfigError)
        real(self.learning_rate, "learning_rate", "above 0", above=0, refusal=ConfigError)
        real(self.momentum, "momentum", "in [0, 1)", least=0, below=1, refusal=ConfigError)
        real(self.beta1, "beta1", "in [0, 1)", least=0, below=1, refusal=ConfigError)
        real(self.beta2, "beta2", "in [0, 1)", least=0, below=1, refusal=ConfigError)
        real(self.epsilon, "epsilon", "of at least 2**-126", least=LEAST_EPSILON, refusal=ConfigError)
        real(self.weight_decay, "weight_decay", "of at least 0", least=0, refusal=ConfigError)
