"""The batch test: are two sets of vectors samples of one distribution?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.checks import check_callable, check_choice, check_count, check_flag, check_positive, check_seed
from lattice_transport.config import SinkhornConfig
from lattice_transport.costs import METRICS, Metric, as_cost, cost_matrix, differences_that_fit, points_that_fit
from lattice_transport.drift.baselines import classifier_test, mmd_test
from lattice_transport.drift.report import DriftItems, DriftReport, DriftSummary, TestResult, check_rate, judge
from lattice_transport.drift.samples import SupportsFingerprint, VectorSet, as_vector_set
from lattice_transport.drift.statistic import PooledDivergence, permutation_p_value, quantile_threshold
from lattice_transport.errors import CancelledError, DimensionMismatchError, InvalidInputError, TooFewSamplesError
from lattice_transport.measures import balanced_marginals
from lattice_transport.result import SinkhornResult
from lattice_transport.sinkhorn import run

__all__ = ["MIN_SAMPLES", "RELATIVE_EPSILON", "choose_epsilon", "detect_drift"]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]

MIN_SAMPLES = 8
"""The least vectors a side for a test. With fewer, hardly any permutation differs from the sample itself."""

MOST_PERMUTATIONS = 100_000
"""The most permutations of a test, however small its samples are."""

MOST_WORK = 1 << 34
"""The most permutations times pairs of a reference and a current vector: beyond it a test takes hours."""

RELATIVE_EPSILON = 0.5
"""Default epsilon as a part of the mean cost of the pooled sample: blurs sampling noise, keeps clusters apart."""

_FLOAT32_LEAST_EPSILON = 0.02


def choose_epsilon(costs: _Array) -> float:
    """Return the default epsilon for a pooled cost matrix.

    :data:`RELATIVE_EPSILON` of its mean, 1 if that is 0.
    """
    mean = float(costs.mean(dtype=np.float64))
    return RELATIVE_EPSILON * mean if mean > 0.0 else 1.0


def detect_drift(
    reference: npt.ArrayLike | VectorSet | SupportsFingerprint,
    current: npt.ArrayLike | VectorSet | SupportsFingerprint,
    *,
    metric: Metric = "sqeuclidean",
    epsilon: float | None = None,
    false_alarm_rate: float = 0.05,
    permutations: int = 199,
    reindex_effect: float = 0.5,
    outlier_std_threshold: float = 2.0,
    baselines: bool = True,
    max_samples: int = 1000,
    seed: int = 0,
    reference_fingerprint: str | Sequence[str] | None = None,
    current_fingerprint: str | Sequence[str] | None = None,
    observer: Callable[[int, int], bool | None] | None = None,
) -> DriftReport:
    """Test whether two sets of vectors differ, say by how much, and which items are to blame.

    The statistic is the debiased Sinkhorn divergence; its null distribution comes from permuting the pooled sample, so
    the false-alarm rate holds whatever the vectors' distribution.

    Args:
        reference: what was: (n, dimension) array, :class:`VectorSet`, or an embedding result with its fingerprint.
        current: what is, alike. Sets of two models may be compared, if their dimension is one; a set that mixes models
            is refused.
        epsilon: strength of the entropic term, in units of the cost; None takes half of the pooled sample's mean cost.
        false_alarm_rate: the p-value at which drift is reported.
        permutations: how many; the p-value is a multiple of 1 / (permutations + 1). At most 100,000, and at most 2^34
            over the pairs of a reference and a current vector.
        reindex_effect: the effect size from which the verdict is ``reindex``.
        outlier_std_threshold: standard deviations above the mean cost at which an item is an outlier.
        baselines: run the MMD and classifier tests as well.
        max_samples: larger sets are thinned to this many vectors, drawn without replacement.
        seed: of the permutations and the thinning: equal seeds give equal reports.
        reference_fingerprint, current_fingerprint: what model made the vectors, if the sets do not say.
        observer: called with (permutations done, of how many); returning False cancels.

    Raises:
        TooFewSamplesError: fewer than 8 vectors in a set.
        MixedModelsError: a set has vectors of more than one model.
        InvalidInputError: and its kinds, for other bad input.
        CancelledError: the observer returned False.
    """
    check_count("permutations", permutations, most=MOST_PERMUTATIONS)
    check_count("max_samples", max_samples)
    check_choice("metric", metric, METRICS)
    check_callable("observer", observer)
    baselines = check_flag("baselines", baselines)
    seed = check_seed(seed)
    check_rate(false_alarm_rate, permutations)
    check_positive("reindex_effect", reindex_effect)
    check_positive("outlier_std_threshold", outlier_std_threshold)
    if epsilon is not None:
        check_positive("epsilon", epsilon)
    if max_samples < MIN_SAMPLES:
        raise InvalidInputError(f"max_samples must be at least {MIN_SAMPLES}, not {max_samples}")
    random = np.random.default_rng(seed)
    before = _ready(as_vector_set(reference, "the reference", reference_fingerprint), max_samples, random)
    after = _ready(as_vector_set(current, "the current set", current_fingerprint), max_samples, random)
    if before.array.shape[1] != after.array.shape[1]:
        raise DimensionMismatchError(
            "dimension of the current vectors", expected=before.array.shape[1], actual=after.array.shape[1]
        )
    n, m = len(before), len(after)
    if not permutations * n * m <= MOST_WORK:
        raise InvalidInputError(
            f"{permutations:,} permutations of {n:,} + {m:,} vectors would take hours; with samples of that size ask for "
            f"at most {MOST_WORK // (n * m):,}, or give a smaller max_samples"
        )
    pooled = np.concatenate([before.array, after.array])
    points_that_fit(pooled, "the vectors", metric)
    differences_that_fit(pooled, pooled, metric)
    costs = cost_matrix(pooled, pooled, metric)
    epsilon = choose_epsilon(costs) if epsilon is None else epsilon
    if epsilon < _FLOAT32_LEAST_EPSILON * float(costs.max()):
        costs = np.ascontiguousarray(costs, np.float64)
    weights = np.concatenate([_weights(before), _weights(after)])

    orders = [np.arange(n + m)] + [random.permutation(n + m) for _ in range(permutations)]
    divergence = PooledDivergence(costs, weights, epsilon, n)
    values, converged = [], True
    for done, order in enumerate(orders):
        value, one_converged = divergence.between(order[:n], order[n:])
        values.append(value)
        converged = converged and one_converged
        if observer is not None and observer(done, permutations) is False:
            raise CancelledError(f"the observer cancelled the test after {done} permutations")
    observed, null = values[0], np.array(values[1:])

    cross = _cross_problem(costs[n:, :n], _weights(after), _weights(before), epsilon)
    p_value = permutation_p_value(observed, null)
    drifted = p_value <= false_alarm_rate
    spread = 0.5 * float(costs[:n, :n].sum(dtype=np.float64)) / (n * (n - 1))
    effect = effect_size(observed, null, spread)
    deviation = float(null.std())
    items = _items(cross, after, before, outlier_std_threshold)
    others: tuple[TestResult, ...] = ()
    if baselines:
        labels = np.ones((permutations + 1, n + m))
        for row, order in enumerate(orders):
            labels[row, order[n:]] = -1.0
        wide = pooled.astype(np.float64)
        squared = costs if metric == "sqeuclidean" else cost_matrix(pooled, pooled, "sqeuclidean")
        others = (mmd_test(squared.astype(np.float64), labels), classifier_test(wide, labels))
    models = before.fingerprint, after.fingerprint
    assert not isinstance(models[0], list)
    shown = (models[0] if isinstance(models[0], str) else None, models[1] if isinstance(models[1], str) else None)
    evidence = (
        f"{'drift' if drifted else 'no drift'}: p = {p_value:.3g} against a false-alarm rate of {false_alarm_rate:g} "
        f"({permutations} permutations of {n} + {m} vectors)"
    )
    return DriftReport(
        divergence=max(observed, 0.0),
        p_value=p_value,
        drifted=drifted,
        threshold=quantile_threshold(null, false_alarm_rate),
        false_alarm_rate=false_alarm_rate,
        effect_size=effect,
        z_score=(observed - float(null.mean())) / deviation if deviation > 0.0 else 0.0,
        null=null,
        wasserstein_distance=math.sqrt(max(observed, 0.0)) if metric == "sqeuclidean" else max(observed, 0.0),
        transport_cost=cross.transport_cost,
        regularized_cost=cross.regularized_cost,
        epsilon=epsilon,
        metric=metric,
        converged=converged and cross.converged,
        verdict=judge(
            drifted=drifted,
            evidence=evidence,
            effect_size=effect,
            reindex_effect=reindex_effect,
            models=shown,
            converged=converged and cross.converged,
        ),
        items=items,
        summary=DriftSummary(
            mean=float(items.expected_costs.mean()),
            median=float(np.median(items.expected_costs)),
            maximum=float(items.expected_costs.max()),
            standard_deviation=float(items.expected_costs.std()),
            outlier_count=int(items.outliers.sum()),
        ),
        baselines=others,
        reference_size=n,
        current_size=m,
        reference_model=shown[0],
        current_model=shown[1],
    )


def effect_size(observed: float, null: _Float64, spread: float) -> float:
    """Return the shift in units of the reference's spread.

    It is the divergence less its mean under the null.
    """
    excess = max(observed - float(null.mean()), 0.0)
    if spread > 0.0:
        return math.sqrt(excess / spread)
    return math.inf if excess > 0.0 else 0.0


def _ready(sample: VectorSet, most: int, random: np.random.Generator) -> VectorSet:
    """Drop vectors without weight, thin to at most ``most``, and refuse what is too small."""
    kept = np.arange(len(sample)) if sample.weights is None else np.flatnonzero(np.asarray(sample.weights) > 0.0)
    if len(kept) < MIN_SAMPLES:
        raise TooFewSamplesError(sample.name, len(kept), MIN_SAMPLES)
    if len(kept) > most:
        kept = np.sort(random.choice(kept, most, replace=False))
    return sample if len(kept) == len(sample) else sample.subset(kept)


def _weights(sample: VectorSet) -> _Float64:
    if sample.weights is None:
        return np.full(len(sample), 1.0 / len(sample))
    return np.asarray(sample.weights, np.float64)


def _cross_problem(costs: _Array, a: _Float64, b: _Float64, epsilon: float) -> SinkhornResult:
    cost = as_cost(np.ascontiguousarray(costs))
    config = SinkhornConfig(epsilon=epsilon, max_iterations=2000)
    return run(cost, balanced_marginals(a, b, cost.rows, cost.columns), config)


def _items(cross: SinkhornResult, current: VectorSet, reference: VectorSet, deviations: float) -> DriftItems:
    count = len(current)
    strongest, heaviest = np.zeros(count, np.int64), np.zeros(count)
    for first, block in cross.plan_blocks():
        best = block.argmax(axis=1)
        strongest[first : first + len(block)] = best
        heaviest[first : first + len(block)] = block[np.arange(len(block)), best]
    expected = cross.row_costs / cross.row_sums
    # population statistics, and a margin for rounding: equal costs have no outliers
    margin = 1e-6 * float(np.abs(expected).max())
    outliers = expected > float(expected.mean()) + deviations * float(expected.std()) + margin
    current_ids: Sequence[Any] = current.ids if current.ids is not None else range(count)
    reference_ids: Sequence[Any] = reference.ids if reference.ids is not None else range(len(reference))
    return DriftItems(
        ids=tuple(current_ids),
        masses=cross.row_sums.copy(),
        expected_costs=expected,
        strongest=tuple(reference_ids[int(i)] for i in strongest),
        strongest_masses=heaviest,
        outliers=outliers,
    )
