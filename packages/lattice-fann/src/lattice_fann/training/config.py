"""What training is told: one frozen dataclass, checked on construction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lattice_fann.arguments import flag, real, shown, whole
from lattice_fann.errors import InvalidInputError
from lattice_fann.initialization import check_seed
from lattice_fann.training.loss import Loss
from lattice_fann.training.schedules import Schedule

__all__ = ["LEAST_EPSILON", "GradientGuardStrategy", "Optimizer", "TrainingConfig"]

LEAST_EPSILON = 2.0**-126
"""The smallest normal float32: a smaller epsilon would be 0 there, and 0 / 0 where a gradient is 0."""


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
        temperature: of KL and DISTILLATION.
        hard_share: of DISTILLATION, the weight of the hard targets' cross-entropy; the rest is the soft targets'.
        input_dropout: part of the (scaled) inputs set to zero in a training step, drawn by the seed for each sample and
            update; the others are scaled up. Measuring and running the network leave all inputs in.
        decay_biases: apply ``weight_decay`` to biases too.

    >>> from lattice_fann import Optimizer
    >>> config = TrainingConfig(learning_rate=0.01, optimizer=Optimizer.ADAM, seed=1)
    >>> config.learning_rate, config.optimizer.name
    (0.01, 'ADAM')
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
    hard_share: float = 0.5
    input_dropout: float = 0.0
    decay_biases: bool = False

    def __post_init__(self) -> None:
        self._real("learning_rate", "above 0", above=0)
        self._real("momentum", "in [0, 1)", least=0, below=1)
        self._real("weight_decay", "of at least 0", least=0)
        self._whole("max_epochs", 0)
        self._whole("batch_size", 1)
        self._whole("patience", 1, optional=True)
        self._real("target_error", "of at least 0, or None", optional=True, least=0)
        self._real("beta1", "in [0, 1)", least=0, below=1)
        self._real("beta2", "in [0, 1), or None", optional=True, least=0, below=1)
        self._real("epsilon", "of at least 2**-126", least=LEAST_EPSILON)
        for name in ("max_gradient_norm", "max_gradient_value"):
            self._real(name, "above 0, or None", optional=True, above=0)
        self._real("validation_fraction", "in [0, 1)", least=0, below=1)
        self._real("min_delta", "of at least 0", least=0)
        self._real("huber_delta", "above 0", above=0)
        self._real("temperature", "above 0", above=0)
        self._real("hard_share", "from 0 to 1", least=0, most=1)
        self._real("input_dropout", "from 0 to 0.999", least=0, most=0.999)
        for name in ("shuffle", "restore_best", "decay_biases"):
            flag(getattr(self, name), name)
        if self.seed is not None:
            check_seed(self.seed)
        if self.schedule is not None and not callable(self.schedule):
            raise InvalidInputError(f"schedule is {shown(self.schedule)}; it must be a schedule, or None")
        for name, kind in (("loss", Loss), ("optimizer", Optimizer), ("gradient_guard", GradientGuardStrategy)):
            value = getattr(self, name)
            if not isinstance(value, kind) and not (name == "loss" and value is None):
                raise InvalidInputError(f"{name} is {shown(value)}; it must be a member of {kind.__name__}")

    def _real(self, name: str, wanted: str, *, optional: bool = False, **limits: float) -> None:
        value = getattr(self, name)
        if value is not None or not optional:
            real(value, name, wanted, **limits)  # type: ignore[arg-type]

    def _whole(self, name: str, least: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is not None or not optional:
            whole(value, name, least=least)

    @property
    def square_smoothing(self) -> float:
        """``beta2``, or its default for the optimizer."""
        if self.beta2 is not None:
            return self.beta2
        return 0.99 if self.optimizer is Optimizer.RMSPROP else 0.999
