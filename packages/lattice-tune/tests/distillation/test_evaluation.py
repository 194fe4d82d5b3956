"""Evaluation and calibration, against scikit-learn and SciPy where they measure the same."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_fann import Activation, NetworkBuilder
from lattice_tune import InvalidInputError, LabelSet, deferral_table, evaluate, fit_temperature
from lattice_tune.distillation.temperature_scaling import calibrated_network

NAMES = LabelSet(["a", "b", "c", "d"])


def drawn(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.RandomState(seed)
    probabilities = draws.dirichlet([0.5, 0.5, 0.5, 0.01], count).astype(np.float32)
    classes = np.array([draws.choice(4, p=row / row.sum()) for row in probabilities.astype(np.float64)])
    return probabilities, classes


@pytest.mark.slow
def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    probabilities, classes = drawn()
    predicted = probabilities.argmax(axis=1)
    found = evaluate(probabilities, classes, NAMES)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(classes, predicted))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(classes, predicted, average="macro"))
    assert found.log_loss == pytest.approx(metrics.log_loss(classes, probabilities, labels=range(4)), rel=1e-4)
    assert (np.array(found.confusion) == metrics.confusion_matrix(classes, predicted, labels=range(4))).all()
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        classes, predicted, labels=range(4), zero_division=0
    )
    for number, name in enumerate(NAMES):
        scores = found.by_label[name]
        assert (scores.precision, scores.recall, scores.f1, scores.support) == pytest.approx(
            (precision[number], recall[number], f1[number], support[number])
        )


def test_the_calibration_error_is_the_mean_distance_of_confidence_and_accuracy() -> None:
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.45, 0.55], [0.35, 0.65]])
    found = evaluate(probabilities, [0, 1, 1, 1], LabelSet(["x", "y"]), bins=10)
    # bins: 0.9-1.0 holds two, 0.5 right; 0.5-0.6 one, right; 0.6-0.7 one, right
    assert found.expected_calibration_error == pytest.approx((2 * 0.45 + 0.45 + 0.35) / 4)


def test_the_worst_examples_come_first() -> None:
    probabilities, classes = drawn(20)
    found = evaluate(probabilities, classes, NAMES, texts=[f"t{i}" for i in range(20)], worst=3)
    of_expected = probabilities[np.arange(20), classes]
    assert [w.index for w in found.worst] == np.argsort(of_expected, kind="stable")[:3].tolist()
    assert found.worst[0].text == f"t{found.worst[0].index}"
    assert found.worst[0].expected == NAMES.names[classes[found.worst[0].index]]


def test_the_temperature_has_the_lowest_log_loss() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    draws = np.random.RandomState(1)
    logits = draws.standard_normal((2000, 4)) * 3
    truth = np.array([draws.choice(4, p=np.exp(z) / np.exp(z).sum()) for z in logits])
    expected = np.eye(4)[truth]
    over = np.exp(logits * 2.5) / np.exp(logits * 2.5).sum(axis=1, keepdims=True)
    temperature = fit_temperature(over, expected)
    assert temperature == pytest.approx(2.5, rel=0.1)

    smooth = (2000 * expected + 0.25) / 2001

    def loss(heat: float) -> float:
        scaled = np.log(over) / heat
        return float((np.log(np.exp(scaled).sum(axis=1)) - (smooth * scaled).sum(axis=1)).mean())

    best = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded").x
    assert temperature == pytest.approx(best, rel=1e-3)


def test_a_few_right_examples_make_nothing_certain() -> None:
    """All four are right: the log loss alone would be lowest for the sharpest probabilities."""
    probabilities = np.array([[0.7, 0.3], [0.8, 0.2], [0.3, 0.7], [0.25, 0.75]])
    temperature = fit_temperature(probabilities, np.eye(2)[[0, 0, 1, 1]])
    powers = probabilities ** (1 / temperature)
    confidence = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
    assert 0.8 < confidence.mean() < 0.95


def test_a_calibrated_network_has_the_softmax_at_the_temperature() -> None:
    network = NetworkBuilder().input(5).dense(7).output(3, Activation.SOFTMAX).build(seed=0)
    network.layers[-1].biases = [0.5, -1.0, 2.0]
    x = np.random.RandomState(0).standard_normal((10, 5)).astype(np.float32)
    network.fit_input_scaling(x)
    powers = np.log(network.forward_batch(x).astype(np.float64)) / 3.0
    wanted = np.exp(powers) / np.exp(powers).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibrated_network(network, 3.0).forward_batch(x), wanted, rtol=1e-5)


def test_passing_back_is_measured() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55]])
    table = deferral_table(probabilities, [0, 1, 1, 1], LabelSet(["x", "y"]), thresholds=[0.0, 0.7, 0.95])
    assert [row.passed_back for row in table] == [0.0, 0.5, 1.0]
    assert [row.accuracy_kept for row in table] == [0.75, 1.0, None]
    assert [row.accuracy_passed_back for row in table] == [None, 0.5, 0.75]


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        (np.empty((0, 4)), []),
        (np.ones((2, 4)), [0, 1]),
        (np.full((2, 4), np.nan), [0, 1]),
        (np.eye(4), [0, 1]),
        (np.eye(4), [0, 1, 2, 4]),
        (np.eye(4), [0.5, 1, 2, 3]),
        (np.eye(3), [0, 1, 2]),
        (np.eye(4), np.eye(3)),
        ("x", [0]),
    ],
)
def test_what_cannot_be_measured_is_refused(probabilities: object, expected: object) -> None:
    with pytest.raises(InvalidInputError):
        evaluate(probabilities, expected, NAMES)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        deferral_table(probabilities, expected, NAMES)  # type: ignore[arg-type]
