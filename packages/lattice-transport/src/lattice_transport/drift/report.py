"""What a drift test found."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.checks import check_count, check_number
from lattice_transport.errors import InvalidInputError

__all__ = [
    "DriftItems",
    "DriftReport",
    "DriftSummary",
    "DriftVerdict",
    "TestResult",
    "Verdict",
    "check_rate",
    "judge",
]

_Float64 = npt.NDArray[np.float64]


class Verdict(enum.StrEnum):
    """What to do about it."""

    STABLE = "stable"
    WATCH = "watch"
    REINDEX = "reindex"


@dataclass(frozen=True)
class DriftVerdict:
    """A decision and its reason.

    ``stable``: nothing found; ``watch``: found but small; ``reindex``: found and large.
    """

    decision: Verdict
    reasons: tuple[str, ...]

    @property
    def needs_reindex(self) -> bool:
        """Whether stored vectors should be computed anew."""
        return self.decision is Verdict.REINDEX


def judge(
    *,
    drifted: bool,
    evidence: str,
    effect_size: float,
    reindex_effect: float,
    models: tuple[str | None, str | None],
    converged: bool,
) -> DriftVerdict:
    """Return the verdict on a test.

    Significance says whether there is drift, effect size whether it matters.
    """
    reasons = [evidence]
    large = effect_size >= reindex_effect
    if drifted and math.isinf(effect_size):
        reasons.append("the reference has no spread, so any shift calls for a new index")
    elif drifted:
        comparison = "at least" if large else "below"
        reasons.append(
            f"the shift is {effect_size:.3g} of the reference's spread, {comparison} the {reindex_effect:.3g} that "
            "calls for a new index"
        )
    if models[0] is not None and models[1] is not None and models[0] != models[1]:
        reasons.append(f"the sets come from two models: {models[0]} and {models[1]}")
    if not converged:
        reasons.append("not every transport problem converged: raise epsilon or treat the figures as rough")
    decision = Verdict.STABLE if not drifted else Verdict.REINDEX if large else Verdict.WATCH
    if decision is Verdict.STABLE and not converged:
        decision = Verdict.WATCH
    return DriftVerdict(decision, tuple(reasons))


def check_rate(false_alarm_rate: float, permutations: int) -> None:
    """Refuse a false-alarm rate that is none, or finer than the permutations can resolve."""
    if not 0.0 < check_number("false_alarm_rate", false_alarm_rate) < 1.0:
        raise InvalidInputError(f"false_alarm_rate must be between 0 and 1, not {false_alarm_rate!r}")
    if not (permutations + 1) * false_alarm_rate >= 1.0 - 1e-9:
        wanted = 1.0 / false_alarm_rate  # infinite for the smallest rates
        remedy = f"{int(np.ceil(wanted)) - 1} can" if wanted < 1e9 else "take a larger rate"
        raise InvalidInputError(
            f"{permutations} permutations cannot resolve a false-alarm rate of {false_alarm_rate:g}: {remedy}"
        )


@dataclass(frozen=True)
class TestResult:
    """A two-sample test: its statistic, and the p-value from permutations of the pooled sample."""

    __test__ = False  # not a test case, whatever its name looks like

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class DriftSummary:
    """Expected transport costs of the current items: statistics, and the number of outliers."""

    mean: float
    median: float
    maximum: float
    standard_deviation: float
    outlier_count: int


@dataclass(frozen=True, eq=False)
class DriftItems:
    """What each item of the current set contributes, as parallel arrays.

    Attributes:
        ids: the caller's ids, else positions.
        masses: mass of each item in the plan.
        expected_costs: mean cost of moving the item to the reference, under the plan.
        strongest: id of the reference item that receives most of its mass, and ``strongest_masses`` how much.
        outliers: whether the expected cost lies above mean + k standard deviations.
    """

    ids: tuple[Any, ...]
    masses: _Float64
    expected_costs: _Float64
    strongest: tuple[Any, ...]
    strongest_masses: _Float64
    outliers: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def worst(self, count: int = 10) -> list[tuple[Any, float]]:
        """Return the ``count`` items with the highest expected cost, as (id, expected cost).

        The highest comes first.
        """
        check_count("count", count, least=0)
        order = np.argsort(-self.expected_costs, kind="stable")[:count]
        return [(self.ids[int(i)], float(self.expected_costs[i])) for i in order]


@dataclass(frozen=True, eq=False)
class DriftReport:
    """The result of :func:`~lattice_transport.detect_drift`.

    Attributes:
        divergence: the debiased Sinkhorn divergence between the sets.
        p_value: how often sets drawn from the pooled sample differ at least as much; (k + 1) / (n + 1).
        drifted: whether the p-value is at most ``false_alarm_rate``.
        threshold: the divergence that would have been an alarm.
        effect_size: sqrt((divergence - its mean under the null) / spread of the reference), where the spread is half
            the mean cost between reference points: for squared distances, the length of a shift in standard deviations.
        z_score: divergence in standard deviations above the mean of the null.
        null: divergences of the permuted samples.
        wasserstein_distance: square root of the divergence for squared costs, else the divergence.
        transport_cost, regularized_cost: of the plan from the current set to the reference.
        epsilon: strength of the entropic term, in units of the cost.
        converged: whether every transport problem converged.
        verdict: what to do, and why.
        items: contributions of the current items.
        summary: their statistics.
        baselines: other tests on the same samples and permutations.
        reference_size, current_size: how many vectors were compared (fewer than given if subsampled).
        reference_model, current_model: fingerprints, if known.
    """

    divergence: float
    p_value: float
    drifted: bool
    threshold: float
    false_alarm_rate: float
    effect_size: float
    z_score: float
    null: _Float64
    wasserstein_distance: float
    transport_cost: float
    regularized_cost: float
    epsilon: float
    metric: str
    converged: bool
    verdict: DriftVerdict
    items: DriftItems
    summary: DriftSummary
    baselines: tuple[TestResult, ...]
    reference_size: int
    current_size: int
    reference_model: str | None
    current_model: str | None

    def to_dict(self, *, items: bool = True) -> dict[str, Any]:
        """Return the report as JSON values, with or without the per-item part.

        Infinity, which JSON does not have, becomes None, and ids that are neither numbers nor texts become texts.
        """
        result: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name == "items":
                if items:
                    result["items"] = [
                        {
                            "id": _json_value(self.items.ids[i]),
                            "mass": float(self.items.masses[i]),
                            "expected_cost": float(self.items.expected_costs[i]),
                            "strongest": _json_value(self.items.strongest[i]),
                            "strongest_mass": float(self.items.strongest_masses[i]),
                            "outlier": bool(self.items.outliers[i]),
                        }
                        for i in range(len(self.items))
                    ]
            elif entry.name == "verdict":
                result["verdict"] = {"decision": value.decision.value, "reasons": list(value.reasons)}
            elif entry.name == "baselines":
                result["baselines"] = [dataclasses.asdict(test) for test in value]
            elif entry.name == "summary":
                result["summary"] = dataclasses.asdict(value)
            elif isinstance(value, np.ndarray):
                result[entry.name] = value.tolist()
            else:
                result[entry.name] = _json_value(value)
        return result

    def plot(self, path: str | None = None) -> Any:
        """Draw the null distribution and the items' costs, and return the figure.

        It is written to ``path`` if given.

        Raises:
            MissingDependencyError: matplotlib is not installed; install ``lattice-transport[plot]``.
        """
        from lattice_transport.drift.plots import plot_report

        return plot_report(self, path)


def _json_value(value: Any) -> Any:
    if isinstance(value, np.generic):  # ids of an array
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
