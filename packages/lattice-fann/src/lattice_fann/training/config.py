"""What training is told: one frozen dataclass, checked on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from lattice_fann.errors import InvalidInputError
from lattice_fann.training.loss import Loss
from lattice_fann.training.schedules import Schedule

__all__ = ["GradientGuardStrategy", "Optimizer", "TrainingConfig"]


class Optimizer(Enum):
    """The rule that turns gradients into steps, in PyTorch's form."""

    SGD = 0
    NESTEROV = 1
    ADAM = 2
    ADAMW = 3
    RMSPROP = 4
    RPROP = 5


class GradientGuardStrategy(Enum):
    """What to do when a forward value or a gradient of a mini-batch is not finite.

    ``ERROR`` restores the last good weights and raises. ``SANITIZE`` leaves the samples at fault out of the batch and
    sets gradients that are not finite to zero. ``SKIP_BATCH`` leaves the batch out. An epoch without a usable batch is
    an error under all three.
    """

    ERROR = "error"
    SANITIZE = "sanitize"
    SKIP_BATCH = "skip_batch"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train.

    Attributes:
        learning_rate: step size before the schedule; the first step of Rprop.
        momentum: of SGD and Nesterov.
        weight_decay: L2 on the mean gradient (decoupled for AdamW), whatever the batch size; not on biases unless
            ``decay_biases``.
        max_epochs: most passes over the data.
        target_error: stop when an epoch's training loss is below this; None never does.
        batch_size: samples in a mini-batch; the last of an epoch may be smaller.
        shuffle: a new order each epoch, drawn from the seed and the epoch's number.
        gradient_guard: see :class:`GradientGuardStrategy`.
        seed: of shuffles and of the validation split; None takes entropy from the system.
        loss: None takes cross-entropy for a softmax output, MSE otherwise.
        optimizer: see :class:`Optimizer`.
        beta1, beta2, epsilon: of Adam and AdamW; RMSprop smooths squares with ``beta2``. ``beta2`` None is 0.999, or
            0.99 for RMSprop.
        schedule: factor of the learning rate over time; None is constant.
        max_gradient_norm: longer gradients are scaled down to this L2 norm over all parameters.
        max_gradient_value: each gradient entry is cut to this magnitude.
        validation_fraction: part of the data kept out of training to measure the validation loss, drawn by the seed
            and, for class targets, in each class alike.
        patience: stop after so many epochs without a better monitored loss (validation if there is one, else training);
            None never does.
        min_delta: how much lower counts as better.
        restore_best: end with the weights of the best monitored epoch, when patience is set.
        huber_delta: the error at which HUBER goes from square to straight.
        temperature: of KL.
        decay_biases: apply ``weight_decay`` to biases too.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    max_epochs: int = 1000
    target_error: float | None = 0.001
    batch_size: int = 32
    shuffle: bool = True
    gradient_guard: GradientGuardStrategy = GradientGuardStrategy.ERROR
    seed: int | None = None
    loss: Loss | None = None
    optimizer: Optimizer = Optimizer.SGD
    beta1: float = 0.9
    beta2: float | None = None
    epsilon: float = 1e-8
    schedule: Schedule | None = None
    max_gradient_norm: float | None = None
    max_gradient_value: float | None = None
    validation_fraction: float = 0.0
    patience: int | None = None
    min_delta: float = 0.0
    restore_best: bool = True
    huber_delta: float = 1.0
    temperature: float = 1.0
    decay_biases: bool = False

    def __post_init__(self) -> None:
        self._range("learning_rate", self.learning_rate > 0, "above 0")
        self._range("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self._range("weight_decay", self.weight_decay >= 0, "at least 0")
        self._whole("max_epochs", 0)
        self._whole("batch_size", 1)
        self._whole("patience", 1, optional=True)
        self._range("target_error", self.target_error is None or self.target_error >= 0, "at least 0, or None")
        self._range("beta1", 0 <= self.beta1 < 1, "in [0, 1)")
        self._range("beta2", self.beta2 is None or 0 <= self.beta2 < 1, "in [0, 1), or None")
        self._range("epsilon", self.epsilon > 0, "above 0")
        for name in ("max_gradient_norm", "max_gradient_value"):
            value = getattr(self, name)
            self._range(name, value is None or value > 0, "above 0, or None")
        self._range("validation_fraction", 0 <= self.validation_fraction < 1, "in [0, 1)")
        self._range("min_delta", self.min_delta >= 0, "at least 0")
        self._range("huber_delta", self.huber_delta > 0, "above 0")
        self._range("temperature", self.temperature > 0, "above 0")
        for name, kind in (("loss", Loss), ("optimizer", Optimizer), ("gradient_guard", GradientGuardStrategy)):
            value = getattr(self, name)
            if not isinstance(value, kind) and not (name == "loss" and value is None):
                raise InvalidInputError(f"{name} is {value!r}; it must be a member of {kind.__name__}")

    def _range(self, name: str, holds: bool, wanted: str) -> None:
        value = getattr(self, name)
        if not holds or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidInputError(f"{name} is {value}; it must be finite and {wanted}")

    def _whole(self, name: str, least: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidInputError(f"{name} is {value!r}; it must be an integer of at least {least}")

    @property
    def square_smoothing(self) -> float:
        """``beta2``, or its default for the optimizer."""
        if self.beta2 is not None:
            return self.beta2
        return 0.99 if self.optimizer is Optimizer.RMSPROP else 0.999
