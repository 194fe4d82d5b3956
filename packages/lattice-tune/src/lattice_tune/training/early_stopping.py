"""When training has ceased to help."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lattice_tune.arguments import choice, instance, real, whole
from lattice_tune.errors import ConfigError, InvalidInputError
from lattice_tune.training.metrics import EpochMetrics

__all__ = ["EarlyStopping", "StoppingState"]

_MONITORS = {"val_loss": "val_loss", "val_accuracy": "val_accuracy", "train_loss": "train_loss"}


@dataclass(frozen=True)
class StoppingState:
    """How an early stopping stands.

    Attributes:
        best: the best value so far; infinity, or minus infinity for a maximum, before the first.
        best_epoch: its epoch; None before the first.
        waited: epochs since.
    """

    best: float
    best_epoch: int | None = None
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stops when a monitored value has not improved for some epochs.

    The best epoch's weights are then restored.

    Attributes:
        monitor: ``"val_loss"``, ``"val_accuracy"`` or ``"train_loss"``.
        patience: epochs to wait for a better value.
        min_delta: how much better counts.
        mode: ``"min"`` or ``"max"``; None takes the one that fits the monitor.
    """

    monitor: str = "val_loss"
    patience: int = 10
    min_delta: float = 1e-4
    mode: str | None = None

    def __post_init__(self) -> None:
        choice(self.monitor, "monitor", _MONITORS, refusal=ConfigError)
        whole(self.patience, "patience", least=1, refusal=ConfigError)
        real(self.min_delta, "min_delta", "of at least 0", least=0, refusal=ConfigError)
        if self.mode is not None:
            choice(self.mode, "mode", ("min", "max"), refusal=ConfigError)

    @property
    def is_maximum(self) -> bool:
        """Whether more is better."""
        return self.monitor == "val_accuracy" if self.mode is None else self.mode == "max"

    def begin(self) -> StoppingState:
        """Return the state before the first epoch."""
        return StoppingState(-math.inf if self.is_maximum else math.inf)

    def observe(self, state: StoppingState, metrics: EpochMetrics) -> StoppingState:
        """Return the state after an epoch. A value that is not a number is never better.

        Raises:
            InvalidInputError: the epoch has no such value, as it had no validation examples.
        """
        instance(state, "state", StoppingState)
        value = getattr(instance(metrics, "metrics", EpochMetrics), _MONITORS[self.monitor])
        if value is None:
            raise InvalidInputError(f"{self.monitor} is monitored and there are no validation examples: set val_split")
        better = value > state.best + self.min_delta if self.is_maximum else value < state.best - self.min_delta
        if better:
            return StoppingState(float(value), metrics.epoch, 0)
        return StoppingState(state.best, state.best_epoch, state.waited + 1)

    def is_over(self, state: StoppingState) -> bool:
        """Whether training should end."""
        return instance(state, "state", StoppingState).waited >= self.patience
