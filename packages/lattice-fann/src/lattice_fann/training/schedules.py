"""Learning-rate schedules: factors of the configured rate over the course of training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from lattice_fann.arguments import real, shown, whole
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
        whole(self.every, "every", least=1)
        real(self.factor, "factor", "in (0, 1]", above=0, most=1)

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return ``factor ** (epoch // every)``."""
        epoch, _ = _point(epoch, max_epochs)
        return float(self.factor ** (int(epoch) // self.every))


@dataclass(frozen=True)
class ExponentialDecay:
    """Multiplies the rate by ``factor`` once an epoch, smoothly."""

    factor: float = 0.95

    def __post_init__(self) -> None:
        real(self.factor, "factor", "in (0, 1]", above=0, most=1)

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return ``factor ** epoch``."""
        epoch, _ = _point(epoch, max_epochs)
        return float(self.factor**epoch)


@dataclass(frozen=True)
class LinearDecay:
    """Goes from 1 to ``end`` in a straight line over the whole training."""

    end: float = 0.0

    def __post_init__(self) -> None:
        real(self.end, "end", "in [0, 1]", least=0, most=1)

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the point of the line at ``epoch``."""
        epoch, last = _point(epoch, max_epochs)
        return 1.0 + (self.end - 1.0) * min(epoch / last, 1.0)


@dataclass(frozen=True)
class CosineDecay:
    """Falls from 1 to ``end`` along half a cosine [Loshchilov and Hutter 2017].

    It covers the whole training.
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        real(self.end, "end", "in [0, 1]", least=0, most=1)

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the point of the curve at ``epoch``."""
        epoch, last = _point(epoch, max_epochs)
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * min(epoch / last, 1.0)))


@dataclass(frozen=True)
class Warmup:
    """Rises from ``start`` to 1 over ``epochs``, then follows ``then`` from its beginning.

    None is constant.
    """

    epochs: float
    then: Schedule | None = None
    start: float = 0.0

    def __post_init__(self) -> None:
        real(self.epochs, "epochs", "above 0", above=0)
        real(self.start, "start", "in [0, 1]", least=0, most=1)
        if self.then is not None and not callable(self.then):
            raise InvalidInputError(f"then is {shown(self.then)}; it must be a schedule, or None")

    def __call__(self, epoch: float, max_epochs: int) -> float:
        """Return the rising factor, or that of ``then``."""
        epoch, _ = _point(epoch, max_epochs)
        if epoch < self.epochs:
            return self.start + (1.0 - self.start) * epoch / self.epochs
        if self.then is None:
            return 1.0
        return self.then(epoch - self.epochs, max(1, math.ceil(max_epochs - self.epochs)))


def _point(epoch: float, max_epochs: int) -> tuple[float, float]:
    """The arguments of a schedule as floats."""
    return (
        real(epoch, "epoch", "of at least 0", least=0),
        real(max_epochs, "max_epochs", "of at least 1", least=1),
    )
