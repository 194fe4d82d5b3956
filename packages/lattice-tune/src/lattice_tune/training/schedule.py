"""Learning-rate schedules: the rate at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lattice_tune.arguments import choice, real, whole
from lattice_tune.errors import ConfigError

__all__ = ["LRSchedule"]

_FLOOR = 0.01
_FIELDS = {
    "constant": (),
    "linear_warmup": ("warmup_steps",),
    "step_decay": ("step_size", "gamma"),
    "exponential_decay": ("gamma",),
    "cosine_annealing": ("min_lr", "t_max"),
    "cosine_annealing_warmup": ("warmup_steps", "min_lr", "t_max"),
    "linear_decay": ("warmup_steps", "total_steps"),
    "cosine_decay": ("warmup_steps", "total_steps"),
    "one_cycle": ("max_lr", "pct_start", "total_steps"),
}


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """The learning rate at each step. Made by the class methods; ``kind`` says which.

    With base the configured rate, steps and epochs counted from 0:

    ===========================  =====================================================================
    ``constant``                 base
    ``linear_warmup``            base (step + 1) / warmup_steps, then base
    ``step_decay``               base gamma^floor(epoch / step_size)
    ``exponential_decay``        base gamma^epoch
    ``cosine_annealing``         min_lr + (base - min_lr) (1 + cos(pi (epoch mod t_max) / t_max)) / 2
    ``cosine_annealing_warmup``  linear_warmup by step, then cosine_annealing by epoch
    ``linear_decay``             linear_warmup, then a line down to 0 at total_steps
    ``cosine_decay``             linear_warmup, then half a cosine down to 0 at total_steps
    ``one_cycle``                a line from base to max_lr over pct_start of total_steps, then one down to base / 100,
                                 where it stays
    ===========================  =====================================================================
    """

    kind: str = "constant"
    warmup_steps: int = 100
    step_size: int = 10
    gamma: float = 0.95
    min_lr: float = 1e-6
    t_max: int = 100
    max_lr: float = 0.01
    pct_start: float = 0.3
    total_steps: int = 1000

    def __post_init__(self) -> None:
        choice(self.kind, "kind", _FIELDS, refusal=ConfigError)
        for name in ("warmup_steps", "step_size", "t_max", "total_steps"):
            whole(getattr(self, name), name, least=1, most=2**53, refusal=ConfigError)
        real(self.gamma, "gamma", "in (0, 1]", above=0, most=1, refusal=ConfigError)
        real(self.min_lr, "min_lr", "of at least 0", least=0, refusal=ConfigError)
        real(self.max_lr, "max_lr", "above 0", above=0, refusal=ConfigError)
        real(self.pct_start, "pct_start", "in (0, 1)", above=0, below=1, refusal=ConfigError)

    @classmethod
    def constant(cls) -> LRSchedule:
        """Return the schedule that changes nothing."""
        return cls()

    @classmethod
    def linear_warmup(cls, warmup_steps: int) -> LRSchedule:
        """Return a line up to the base rate, which the step ``warmup_steps - 1`` reaches."""
        return cls(kind="linear_warmup", warmup_steps=warmup_steps)

    @classmethod
    def step_decay(cls, step_size: int, gamma: float) -> LRSchedule:
        """Return a decay by ``gamma`` every ``step_size`` epochs."""
        return cls(kind="step_decay", step_size=step_size, gamma=gamma)

    @classmethod
    def exponential_decay(cls, gamma: float) -> LRSchedule:
        """Return a decay by ``gamma`` every epoch."""
        return cls(kind="exponential_decay", gamma=gamma)

    @classmethod
    def cosine_annealing(cls, min_lr: float, t_max: int) -> LRSchedule:
        """Return half a cosine from the base rate to ``min_lr``, again every ``t_max`` epochs."""
        return cls(kind="cosine_annealing", min_lr=min_lr, t_max=t_max)

    @classmethod
    def cosine_annealing_warmup(cls, warmup_steps: int = 100, min_lr: float = 1e-6, t_max: int = 100) -> LRSchedule:
        """Return a linear warmup by step, then cosine annealing by epoch."""
        return cls(kind="cosine_annealing_warmup", warmup_steps=warmup_steps, min_lr=min_lr, t_max=t_max)

    @classmethod
    def linear_decay(cls, warmup_steps: int, total_steps: int) -> LRSchedule:
        """Return a linear warmup, then a line down to 0, both by step."""
        return cls(kind="linear_decay", warmup_steps=warmup_steps, total_steps=total_steps)

    @classmethod
    def cosine_decay(cls, warmup_steps: int, total_steps: int) -> LRSchedule:
        """Return a linear warmup, then half a cosine down to 0, both by step."""
        return cls(kind="cosine_decay", warmup_steps=warmup_steps, total_steps=total_steps)

    @classmethod
    def one_cycle(cls, max_lr: float, pct_start: float, total_steps: int) -> LRSchedule:
        """Return a line up to ``max_lr``, then one down to a hundredth of the base rate."""
        return cls(kind="one_cycle", max_lr=max_lr, pct_start=pct_start, total_steps=total_steps)

    def get_lr(self, base: float, step: int, epoch: int) -> float:
        """Return the learning rate at an update.

        Args:
            base: the configured rate.
            step: updates done before, from 0.
            epoch: epochs done before, from 0.
        """
        rate = real(base, "base", "above 0", above=0)
        done, passes = whole(step, "step"), whole(epoch, "epoch")
        match self.kind:
            case "linear_warmup":
                return self._warmup(rate, done)
            case "step_decay":
                return float(rate * self.gamma ** (passes // self.step_size))
            case "exponential_decay":
                return float(rate * self.gamma**passes)
            case "cosine_annealing":
                return self._cosine(rate, passes)
            case "cosine_annealing_warmup":
                return self._warmup(rate, done) if done < self.warmup_steps else self._cosine(rate, passes)
            case "linear_decay":
                return self._warmup(rate, done) * (1.0 - self._share_of_decay(done))
            case "cosine_decay":
                return self._warmup(rate, done) * (1.0 + math.cos(math.pi * self._share_of_decay(done))) / 2.0
            case "one_cycle":
                return self._one_cycle(rate, done)
            case _:
                return rate

    def _warmup(self, rate: float, step: int) -> float:
        return rate * min(step + 1, self.warmup_steps) / self.warmup_steps

    def _cosine(self, rate: float, epoch: int) -> float:
        share = (1.0 + math.cos(math.pi * (epoch % self.t_max) / self.t_max)) / 2.0
        return self.min_lr + (rate - self.min_lr) * share

    def _share_of_decay(self, step: int) -> float:
        """Return 0 at the last step of the warmup, 1 at ``total_steps``."""
        top = self.warmup_steps - 1
        return min(1.0, max(0.0, (step - top) / max(self.total_steps - top, 1)))

    def _one_cycle(self, rate: float, step: int) -> float:
        top = self.pct_start * self.total_steps
        if step < top:
            return rate + (self.max_lr - rate) * step / top
        floor = rate * _FLOOR
        share = min(1.0, (step - top) / max(self.total_steps - top, 1e-9))
        return max(floor, self.max_lr + (floor - self.max_lr) * share)
