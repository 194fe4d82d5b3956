import numpy as np
import pytest
from pot_oracle import pot, quietly

from lattice_transport import (
    CancelledError,
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    NotConvergedError,
    PointClouds,
    barycenter,
    free_support_barycenter,
)


def histograms(points=60):
    s = np.linspace(0, 1, points)
    a = np.stack([np.exp(-(((s - centre) / width) ** 2)) for centre, width in ((0.3, 0.07), (0.7, 0.1))])
    return s[:, None], a / a.sum(1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "debiased"), [(0.1, False), (0.01, False), (1e-3, False), (0.01, True), (1e-3, True)]
)
def test_weights_are_those_of_pot(epsilon, debiased):
    ot = pot()
    support, a = histograms(30)
    cost = (support - support.T) ** 2
    ours = barycenter(
        [cost, cost], a, lambdas=[0.4, 0.6], epsilon=epsilon, debiased=debiased, support_cost=cost,
        convergence_threshold=1e-6 if debiased else 1e-8, max_iterations=10_000,
    )  # fmt: skip
    function = ot.bregman.barycenter_debiased if debiased else ot.bregman.barycenter
    theirs = quietly(
        function,
        a.T,
        cost,
        epsilon,
        weights=np.array([0.4, 0.6]),
        method="sinkhorn_log",
        numItermax=1000,
        stopThr=1e-9,
    )
    assert ours.converged
    assert np.abs(ours.weights - theirs).max() <= (5e-5 if debiased else 1e-6)
    assert ours.weights.sum() == pytest.approx(1.0, abs=1e-12)


def test_barycentre_of_one_measure_is_blurred_unless_debiased():
    support, a = histograms()
    cost = (support - support.T) ** 2
    blurred = barycenter([cost], a[:1], epsilon=0.01)
    sharp = barycenter([cost], a[:1], epsilon=0.01, debiased=True, support_cost=cost)

    def variance(weights):
        mean = weights @ support[:, 0]
        return weights @ (support[:, 0] - mean) ** 2

    assert variance(blurred.weights) > 1.5 * variance(a[0])
    assert variance(sharp.weights) == pytest.approx(variance(a[0]), rel=0.05)


def test_mass_is_one_with_an_asymmetric_cost():
    cost = np.random.default_rng(0).random((30, 20))
    result = barycenter([cost, cost[::-1] ** 2], epsilon=0.05)
    assert result.converged
    assert result.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (result.weights >= 0).all()


def test_measures_may_be_clouds_with_zero_weights():
    rng = np.random.default_rng(1)
    support = rng.normal(size=(15, 2))
    measures = [PointClouds(rng.normal(size=(k, 2)), support) for k in (10, 12)]
    weights = [None, np.r_[np.zeros(2), np.ones(10)]]
    full = barycenter(measures, weights, epsilon=0.5)
    pruned = barycenter([measures[0], PointClouds(np.asarray(measures[1].x)[2:], support)], epsilon=0.5)
    np.testing.assert_allclose(full.weights, pruned.weights, atol=1e-9)


def test_bad_barycentres_are_refused():
    cost = np.ones((3, 4))
    with pytest.raises(EmptyProblemError):
        barycenter([])
    with pytest.raises(DimensionMismatchError, match="support"):
        barycenter([cost, np.ones((3, 5))])
    with pytest.raises(DimensionMismatchError, match="measures"):
        barycenter([cost], [None, None])
    with pytest.raises(InvalidInputError, match="support_cost"):
        barycenter([cost], debiased=True)
    with pytest.raises(DimensionMismatchError, match="within the support"):
        barycenter([cost], debiased=True, support_cost=np.ones((3, 3)))
    with pytest.raises(NotConvergedError):
        barycenter(
            [np.eye(4), np.ones((4, 4))[::-1] * np.arange(4)],
            epsilon=0.01,
            max_iterations=1,
            error_on_non_convergence=True,
        )
    with pytest.raises(CancelledError):
        barycenter(
            [np.eye(4), np.ones((4, 4)) * np.arange(4)],
            epsilon=0.01,
            convergence_threshold=1e-300,
            observer=lambda *_: False,
        )


@pytest.mark.slow
def test_free_support_moves_to_the_middle():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x + np.array([6.0, 2.0])
    result = free_support_barycenter([x, y], rng.normal(size=(40, 2)), epsilon=0.05)
    assert result.converged
    np.testing.assert_allclose(result.points.mean(0), x.mean(0) + np.array([3.0, 1.0]), atol=0.02)
    weighted = free_support_barycenter([x, y], rng.normal(size=(40, 2)), lambdas=[3, 1], epsilon=0.05)
    np.testing.assert_allclose(weighted.points.mean(0), x.mean(0) + np.array([1.5, 0.5]), atol=0.02)


def test_free_support_refuses_what_it_cannot_do():
    x = np.zeros((3, 2))
    with pytest.raises(InvalidInputError, match="squared"):
        free_support_barycenter([x], x, metric="cosine")
    with pytest.raises(EmptyProblemError):
        free_support_barycenter([], x)
    with pytest.raises(DimensionMismatchError):
        free_support_barycenter([np.zeros((3, 3))], x)
    with pytest.raises(InvalidInputError, match="mass"):
        free_support_barycenter([x], x, masses=[1, 1, 0])
