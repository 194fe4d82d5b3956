"""Learning-rate schedules: factors by which the configured rate is multiplied as training goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from lattice_fann.errors import InvalidInputError

__all__ = ["CosineDecay", "ExponentialDecay", "LinearDecay", "Schedule", "StepDecay", "Warmup"]


class Schedule(Protocol):
    """Anything that gives a factor for a point in training. Called before every update."""

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the factor at ``epoch``, which counts from 0 and has a fraction within an epoch."""


@dataclass(frozen=True)
class StepDecay:
    """Multiplies the rate by ``factor`` after every ``every`` epochs."""

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check(self.every >= 1, f"every is {self.every}; it must be at least 1")
        _check(0 < self.factor <= 1, f"factor is {self.factor}; it must be in (0, 1]")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return ``factor ** (epoch // every)``."""
        return float(self.factor ** (int(epoch) // self.every))


@dataclass(frozen=True)
class ExponentialDecay:
    """Multiplies the rate by ``factor`` once an epoch, smoothly."""

    factor: float = 0.95

    def __post_init__(self) -> None:
        _check(0 < self.factor <= 1, f"factor is {self.factor}; it must be in (0, 1]")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return ``factor ** epoch``."""
        return float(self.factor**epoch)


@dataclass(frozen=True)
class LinearDecay:
    """Goes from 1 to ``end`` in a straight line over the whole training."""

    end: float = 0.0

    def __post_init__(self) -> None:
        _check(0 <= self.end <= 1, f"end is {self.end}; it must be in [0, 1]")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the point of the line at ``epoch``."""
        return 1.0 + (self.end - 1.0) * min(epoch / max_epochs, 1.0)


@dataclass(frozen=True)
class CosineDecay:
    """Goes from 1 to ``end`` along half a cosine over the whole training [Loshchilov and Hutter 2017]."""

    end: float = 0.0

    def __post_init__(self) -> None:
        _check(0 <= self.end <= 1, f"end is {self.end}; it must be in [0, 1]")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the point of the curve at ``epoch``."""
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * min(epoch / max_epochs, 1.0)))


@dataclass(frozen=True)
class Warmup:
    """Rises from ``start`` to 1 over ``epochs``, then follows ``then`` from its beginning; None is constant."""

    epochs: float
    then: Schedule | None = None
    start: float = 0.0

    def __post_init__(self) -> None:
        _check(self.epochs > 0, f"epochs is {self.epochs}; it must be above 0")
        _check(0 <= self.start <= 1, f"start is {self.start}; it must be in [0, 1]")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the rising factor, or that of ``then``."""
        if epoch < self.epochs:
            return self.start + (1.0 - self.start) * epoch / self.epochs
        if self.then is None:
            return 1.0
        return self.then(epoch - self.epochs, max(1, math.ceil(max_epochs - self.epochs)))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidInputError(message)
