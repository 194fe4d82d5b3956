"""Configurations of Sinkhorn solvers, validated on construction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from lattice_transport.checks import check_choice, check_count, check_flag, check_number, check_positive
from lattice_transport.errors import InvalidInputError, InvalidScheduleError, shown

__all__ = ["EpsilonSchedule", "Observer", "Precision", "SinkhornConfig", "SinkhornProgress", "config_or_settings"]

Precision = Literal["auto", "float32", "float64"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_MOST_STAGES = 10_000


def _checked_field(check: Callable[[str, Any], float], field: str, value: object, why: str) -> float:
    try:
        return check(field, value)
    except InvalidInputError:
        raise InvalidScheduleError(field, value, why) from None


@dataclass(frozen=True)
class EpsilonSchedule:
    """Decreasing epsilons to solve first: start, start * factor, and so on.

    Each solve is warm-started by the last.

    Attributes:
        start: the first epsilon, in units of the cost.
        factor: what an epsilon is multiplied by to get the next, in (0, 1).
        iterations_per_stage: the most iterations of a stage.
        stage_threshold: the marginal residual at which a stage is left for the next.
    """

    start: float
    factor: float = 0.5
    iterations_per_stage: int = 50
    stage_threshold: float = 1e-2

    def __post_init__(self) -> None:
        for field in ("start", "stage_threshold"):
            _checked_field(check_positive, field, getattr(self, field), "it must be positive and finite")
        factor = _checked_field(check_positive, "factor", self.factor, "it must be a number")
        if not factor < 1.0:
            raise InvalidScheduleError("factor", self.factor, "it must be between 0 and 1, both excluded")
        _checked_field(check_count, "iterations_per_stage", self.iterations_per_stage, "it must be at least 1")

    def stages(self, target: float) -> list[float]:
        """Return the epsilons before ``target``, largest first.

        Raises:
            InvalidScheduleError: the target is no positive number, it is not below the start, or more than 10,000 stages
                lie between.
        """
        target = _checked_field(check_positive, "target", target, "it must be positive and finite")
        if not self.start > target:
            raise InvalidScheduleError(
                "start", self.start, f"it must be above the epsilon that is aimed at, {target!r}"
            )
        if math.log(target / self.start) / math.log(self.factor) > _MOST_STAGES:
            raise InvalidScheduleError("factor", self.factor, f"it takes more than {_MOST_STAGES} stages to {target!r}")
        stages = []
        epsilon = self.start
        while epsilon > target * (1.0 + 1e-12):
            stages.append(epsilon)
            epsilon *= self.factor
        return stages


@dataclass(frozen=True)
class SinkhornConfig:
    """How :func:`~lattice_transport.solve` works.

    Attributes:
        epsilon: strength of the entropic term, in units of the cost. None takes 0.05 of the median cost; the result
            tells the value.
        max_iterations: the most iterations at ``epsilon`` itself (stages of a schedule count apart).
        convergence_threshold: balanced: the largest L1 distance of the plan's marginals to the weights; unbalanced: the
            duality gap as a fraction of the objective and the mass.
        check_convergence_every: iterations between two calls of the observer. Residuals are known after every
            iteration, and the solver stops at the first that is small enough.
        min_marginal: mass, per point, by which the marginals of a balanced problem may differ.
        error_on_non_convergence: raise NotConvergedError instead of returning an unconverged result.
        precision: "auto" computes float32 inputs in float32 where epsilon is at least a fiftieth of the range of the
            costs, and in float64 otherwise.
        relaxation: "auto" adapts over-relaxation to the observed rate of convergence; 1.0 is plain Sinkhorn; a number
            in [1, 2) is kept.
        epsilon_schedule: "auto" passes through larger epsilons first when epsilon is below a hundredth of the range of
            the costs, but not through more than 2^24 times epsilon; None never does.

    >>> config = SinkhornConfig(epsilon=0.1, max_iterations=1000)
    >>> config.epsilon, config.convergence_threshold
    (0.1, 1e-05)
    """

    epsilon: float | None = None
    max_iterations: int = 500
    convergence_threshold: float = 1e-5
    check_convergence_every: int = 10
    min_marginal: float = 1e-12
    error_on_non_convergence: bool = False
    precision: Precision = "auto"
    relaxation: float | Literal["auto"] = "auto"
    epsilon_schedule: EpsilonSchedule | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        check_positive("convergence_threshold", self.convergence_threshold)
        check_positive("min_marginal", self.min_marginal)
        check_count("max_iterations", self.max_iterations)
        check_count("check_convergence_every", self.check_convergence_every)
        check_flag("error_on_non_convergence", self.error_on_non_convergence)
        check_choice("precision", self.precision, ("auto", "float32", "float64"))
        relaxation = self.relaxation
        if isinstance(relaxation, str):
            check_choice("relaxation", relaxation, ("auto",))
        elif not 1.0 <= check_number("relaxation", relaxation) < 2.0:
            raise InvalidInputError(f"relaxation must be 'auto' or a number in [1, 2), not {shown(relaxation)}")
        schedule = self.epsilon_schedule
        automatic = isinstance(schedule, str) and schedule == "auto"
        if not (automatic or schedule is None or isinstance(schedule, EpsilonSchedule)):
            raise InvalidInputError(
                f"epsilon_schedule must be 'auto', None or an EpsilonSchedule, not {shown(schedule)}"
            )


@dataclass(frozen=True)
class SinkhornProgress:
    """What an observer is told: the state after some iterations.

    ``last_error`` is the larger marginal residual of a balanced problem, the relative duality gap of an unbalanced one.
    ``batch_index`` and ``batch_len`` place the problem in a batch.
    """

    iteration: int
    last_error: float
    converged: bool
    epsilon: float
    batch_index: int = 0
    batch_len: int = 1


Observer = Callable[[SinkhornProgress], "bool | None"]
"""Called every ``check_convergence_every`` iterations; returning False cancels the solve."""


def config_or_settings(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Refuse a call of ``function`` that gives ``config`` and one of its settings.

    Such a call does not say which one counts.

    Raises:
        InvalidInputError: at the call; the message names the settings.
    """
    settings = [field.name for field in fields(SinkhornConfig)]

    @wraps(function)
    def checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if options.get("config") is not None:
            given = [name for name in settings if name in options and (name != "epsilon" or options[name] is not None)]
            if given:
                raise InvalidInputError(
                    f"{function.__name__} got config and {', '.join(given)}: set {given[0]} in the config, or give no config"
                )
        return function(*args, **options)

    return checked
