import datetime
import json
import math

import numpy as np
import pytest

from lattice_transport import (
    CancelledError,
    DimensionMismatchError,
    InvalidInputError,
    MixedModelsError,
    NonFinitePointError,
    TooFewSamplesError,
    VectorSet,
    Verdict,
    detect_drift,
)
from lattice_transport.drift.baselines import classifier_test, mmd_test
from lattice_transport.drift.report import judge
from lattice_transport.drift.statistic import permutation_p_value, quantile_threshold


def sample(seed, n=60, d=8, shift=0.0):
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


def test_no_drift_is_stable():
    report = detect_drift(sample(1), sample(2))
    assert not report.drifted
    assert report.verdict.decision is Verdict.STABLE
    assert not report.verdict.needs_reindex
    assert report.p_value > 0.05
    assert "no drift" in report.verdict.reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "decision"), [(0.3, Verdict.WATCH), (1.0, Verdict.REINDEX)])
def test_effect_size_is_the_shift_in_standard_deviations(shift, decision):
    report = detect_drift(sample(1, 200), sample(2, 200, shift=shift))
    assert report.drifted
    assert report.p_value == 1 / 200
    assert report.effect_size == pytest.approx(shift, rel=0.15)
    assert report.verdict.decision is decision
    assert report.z_score > 5
    assert report.wasserstein_distance == pytest.approx(math.sqrt(report.divergence))
    assert {test.name for test in report.baselines} == {"mmd", "classifier"}
    assert all(test.p_value < 0.02 for test in report.baselines)
    assert report.divergence > report.threshold


def test_embedding_shift_of_a_fifth_of_sigma_is_found_in_384_dimensions():
    report = detect_drift(sample(1, 64, 384), sample(2, 64, 384, 0.2), permutations=99)
    assert report.p_value == 0.01
    assert report.effect_size == pytest.approx(0.2, rel=0.15)


def test_effect_size_is_the_excess_over_the_spread():
    """The spread is half the mean squared distance over pairs of two different reference vectors."""
    x, y = sample(1, 8, 3), sample(2, 8, 3, 0.7)
    report = detect_drift(x, y, permutations=19)
    spread = ((x[:, None] - x[None]) ** 2).sum() / 2 / (8 * 7)
    assert report.effect_size == pytest.approx(math.sqrt((report.divergence - report.null.mean()) / spread), rel=1e-4)


@pytest.mark.parametrize(
    ("drifted", "effect", "decision"),
    [(True, 0.5, Verdict.REINDEX), (True, 0.49, Verdict.WATCH), (False, 9.0, Verdict.STABLE)],
)
def test_a_shift_of_exactly_the_limit_calls_for_a_new_index(drifted, effect, decision):
    verdict = judge(
        drifted=drifted, evidence="p", effect_size=effect, reindex_effect=0.5, models=(None, None), converged=True
    )
    assert verdict.decision is decision


@pytest.mark.slow
def test_rate_of_false_alarms_is_the_stated_one():
    """400 nulls: within the binomial 99.9 % band of 10 %."""
    random = np.random.default_rng(0)
    alarms = 0
    for seed in range(400):
        points = random.normal(size=(24, 4)) * np.array([1, 1, 1, 10.0])
        alarms += detect_drift(
            points[:12], points[12:], permutations=19, false_alarm_rate=0.1, baselines=False, seed=seed
        ).drifted
    assert 22 <= alarms <= 62


def test_p_value_is_never_zero():
    assert permutation_p_value(9.0, np.zeros(100)) == pytest.approx(1 / 101)
    assert permutation_p_value(0.0, np.zeros(100)) == 1.0


def test_quantile_leaves_the_stated_rate_above():
    null = np.arange(1.0, 100.0)
    assert quantile_threshold(null, 0.05) == 95.0
    assert quantile_threshold(null, 0.01) == 99.0


def test_items_name_what_moved():
    reference = sample(1, 80, 3)
    current = sample(2, 80, 3)
    current[7] += 15.0
    ids = [f"doc-{i}" for i in range(80)]
    report = detect_drift(reference, VectorSet(current, ids=ids), permutations=19)
    assert report.items.worst(1)[0][0] == "doc-7"
    assert report.items.outliers[7]
    assert report.summary.outlier_count == report.items.outliers.sum()
    assert report.summary.maximum == report.items.expected_costs[7]
    np.testing.assert_allclose(report.items.masses, 1 / 80, rtol=1e-3)
    assert (report.items.strongest_masses <= report.items.masses * 1.001).all()
    weighted = (report.items.masses * report.items.expected_costs).sum()
    assert weighted == pytest.approx(report.transport_cost, rel=1e-6)


def test_report_goes_to_json():
    report = detect_drift(sample(1), sample(2), permutations=19)
    whole = json.loads(json.dumps(report.to_dict()))
    assert whole["verdict"]["decision"] in ("stable", "watch", "reindex")
    assert len(whole["items"]) == 60
    assert len(whole["null"]) == 19
    assert "items" not in report.to_dict(items=False)


def test_ids_and_infinite_effects_go_to_json():
    """Ids of an array are NumPy's numbers, and JSON has no infinity."""
    reference = VectorSet(np.ones((10, 2)), ids=np.arange(10))
    current = VectorSet(np.full((10, 2), 2.0), ids=[datetime.date(2026, 1, day) for day in range(1, 11)])
    report = detect_drift(reference, current, permutations=19)
    whole = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert math.isinf(report.effect_size)
    assert whole["effect_size"] is None
    assert whole["items"][0]["id"] == "2026-01-01"
    assert whole["items"][0]["strongest"] in range(10)
    assert report.verdict.reasons[1] == "the reference has no spread, so any shift calls for a new index"


def test_equal_seeds_give_equal_reports():
    first = detect_drift(sample(1), sample(2), permutations=39, seed=3)
    again = detect_drift(sample(1), sample(2), permutations=39, seed=3)
    assert first.to_dict() == again.to_dict()
    assert first.divergence >= 0


def test_weights_and_float32_are_taken():
    reference, current = sample(1).astype(np.float32), sample(2).astype(np.float32)
    weights = np.r_[np.zeros(10), np.ones(50)]
    report = detect_drift(VectorSet(reference, weights), current, permutations=39)
    pruned = detect_drift(reference[10:], current, permutations=39)
    assert report.reference_size == 50
    assert report.divergence == pytest.approx(pruned.divergence, rel=1e-6)


def test_large_sets_are_thinned():
    report = detect_drift(sample(1, 500, 2), sample(2, 30, 2), max_samples=40, permutations=19)
    assert (report.reference_size, report.current_size) == (40, 30)


def test_sets_that_mix_models_are_refused_and_two_models_compared():
    with pytest.raises(MixedModelsError, match="the reference mixes vectors of 2 models"):
        detect_drift(sample(1), sample(2), reference_fingerprint=["a"] * 59 + ["b"])
    report = detect_drift(
        sample(1), sample(2, shift=2.0), reference_fingerprint="a", current_fingerprint="b", permutations=19
    )
    assert (report.reference_model, report.current_model) == ("a", "b")
    assert any("two models" in reason for reason in report.verdict.reasons)
    with pytest.raises(DimensionMismatchError, match="fingerprints"):
        detect_drift(sample(1), sample(2), current_fingerprint=["a"])


def test_embedding_results_bring_their_fingerprint():
    class Result:
        vectors = sample(1)
        fingerprint = "model-1"

    report = detect_drift(Result(), sample(2), permutations=19)
    assert report.reference_model == "model-1"


def test_equal_points_are_no_drift():
    report = detect_drift(np.ones((10, 3)), np.ones((12, 3)), permutations=19)
    assert report.p_value == 1.0
    assert not report.drifted
    assert report.effect_size == 0.0
    assert report.summary.outlier_count == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"reference": np.zeros((7, 8))}, TooFewSamplesError),
        ({"current": np.zeros((60, 7))}, DimensionMismatchError),
        ({"current": np.full((60, 8), math.nan)}, NonFinitePointError),
        ({"false_alarm_rate": 0.0}, InvalidInputError),
        ({"false_alarm_rate": math.nan}, InvalidInputError),
        ({"false_alarm_rate": 0.001}, InvalidInputError),
        ({"false_alarm_rate": 1e-30}, InvalidInputError),
        ({"false_alarm_rate": 5e-324}, InvalidInputError),
        ({"permutations": 0}, InvalidInputError),
        ({"epsilon": math.nan}, InvalidInputError),
        ({"metric": "x"}, InvalidInputError),
        ({"max_samples": 3}, InvalidInputError),
    ],
)
def test_bad_tests_are_refused(change, error):
    arguments = {"reference": sample(1), "current": sample(2)} | change
    with pytest.raises(error):
        detect_drift(arguments.pop("reference"), arguments.pop("current"), **arguments)


def test_observer_cancels():
    with pytest.raises(CancelledError):
        detect_drift(sample(1), sample(2), observer=lambda done, total: done < 5)


@pytest.mark.slow
def test_plot_is_drawn_or_its_need_is_named(tmp_path):
    from lattice_transport import MissingDependencyError

    report = detect_drift(sample(1), sample(2, shift=1.0), permutations=19)
    path = tmp_path / "drift.png"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match="plot"):
            report.plot(str(path))
    else:
        report.plot(str(path))
        assert path.read_bytes().startswith(b"\x89PNG")


def labels_of(n, m, permutations=49):
    random = np.random.default_rng(0)
    labels = np.ones((permutations + 1, n + m))
    labels[0, n:] = -1
    for row in labels[1:]:
        row[random.permutation(n + m)[n:]] = -1
    return labels


def test_mmd_is_its_definition():
    x, y = sample(1, 12, 3), sample(2, 9, 3, 0.7)
    pooled = np.concatenate([x, y])
    squared = ((pooled[:, None] - pooled[None]) ** 2).sum(-1)
    kernel = np.exp(-squared / np.median(squared[np.triu_indices(21, 1)]))
    expected = kernel[:12, :12].mean() + kernel[12:, 12:].mean() - 2 * kernel[:12, 12:].mean()
    assert mmd_test(squared, labels_of(12, 9)).statistic == pytest.approx(expected, abs=1e-12)


def test_classifier_is_left_one_out():
    x, y = sample(1, 14, 3), sample(2, 10, 3, 1.0)
    pooled = np.concatenate([x, y])
    labels = labels_of(14, 10)
    centred = pooled - pooled.mean(0)
    ridge = np.trace(centred @ centred.T) / 24
    right = []
    for out in range(24):
        kept = np.arange(24) != out
        # ridge regression without a penalty on the intercept, fitted to all but one
        design = np.c_[np.ones(23), centred[kept]]
        penalty = ridge * np.eye(4)
        penalty[0, 0] = 0
        coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ labels[0][kept])
        score = coefficients @ np.r_[1, centred[out]] - labels[0][kept].mean()
        right.append(np.sign(score) == labels[0][out])
    right = np.array(right)
    expected = 0.5 * (right[:14].mean() + right[14:].mean())
    assert classifier_test(pooled, labels).statistic == pytest.approx(expected)
