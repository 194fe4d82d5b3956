import math

import numpy as np
import pytest

from lattice_transport import (
    DimensionMismatchError,
    Gaussian,
    InvalidInputError,
    PointClouds,
    SinkhornConfig,
    TooFewSamplesError,
    barycentric_projection,
    divergence_gradient,
    extract_sparse_plan,
    fit_gaussian,
    gaussian_wasserstein,
    sinkhorn_divergence,
    solve,
    transport_gradient,
    weight_gradients,
)

CONFIG = SinkhornConfig(epsilon=0.5, convergence_threshold=1e-13, max_iterations=10_000)


def clouds(metric="sqeuclidean"):
    rng = np.random.default_rng(0)
    return PointClouds(rng.normal(size=(8, 3)), rng.normal(size=(9, 3)) + 1, metric)


@pytest.mark.parametrize("threshold", [0.0, 1e-3, 1e-2])
def test_sparse_plan_keeps_the_heavy_entries(threshold):
    result = solve([0.1] * 5 + [0.0] + [0.25] * 2, None, clouds(), config=CONFIG)
    plan = result.plan()
    sparse = extract_sparse_plan(result, threshold)
    rebuilt = np.zeros_like(plan)
    rebuilt[sparse.sources, sparse.targets] = sparse.masses
    np.testing.assert_array_equal(rebuilt, np.where((plan >= threshold) & (plan > 0), plan, 0))
    assert sparse.retained_mass + sparse.dropped_mass == pytest.approx(plan.sum())
    assert len(sparse) == len(sparse.masses)
    with pytest.raises(InvalidInputError):
        extract_sparse_plan(result, math.nan)


def test_projection_is_the_mean_of_the_targets():
    points = clouds()
    result = solve([0.0] + [1 / 7] * 7, None, points, config=CONFIG)
    plan = result.plan()
    projected = barycentric_projection(result, points.y)
    assert np.isnan(projected[0]).all()
    np.testing.assert_allclose(projected[1:], (plan @ points.y)[1:] / plan.sum(1, keepdims=True)[1:])
    with pytest.raises(DimensionMismatchError):
        barycentric_projection(result, points.x)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_gradients_are_those_of_finite_differences(metric):
    points = clouds(metric)
    x, y = points.x, points.y
    weights = np.random.default_rng(1).random(8)
    weights /= weights.sum()

    def cost_at(moved):
        return solve(weights, None, PointClouds(moved, y, metric), config=CONFIG).regularized_cost

    def divergence_at(moved):
        return sinkhorn_divergence(weights, None, PointClouds(moved, y, metric), config=CONFIG).raw_value

    of_cost = transport_gradient(solve(weights, None, points, config=CONFIG), points)
    of_divergence = divergence_gradient(sinkhorn_divergence(weights, None, points, config=CONFIG), points)
    rng = np.random.default_rng(2)
    for _ in range(4):
        direction = rng.normal(size=x.shape)
        for function, gradient in ((cost_at, of_cost), (divergence_at, of_divergence.points)):
            slope = (function(x + 1e-5 * direction) - function(x - 1e-5 * direction)) / 2e-5
            assert slope == pytest.approx((gradient * direction).sum(), abs=2e-7)


def test_weight_gradients_are_those_of_finite_differences():
    points = clouds()
    weights = np.full(8, 1 / 8)
    change = np.random.default_rng(3).normal(size=8)
    change = 1e-5 * (change - change.mean())

    def cost_of(a):
        return solve(a, None, points, config=CONFIG).regularized_cost

    def divergence_of(a):
        return sinkhorn_divergence(a, None, points, config=CONFIG).raw_value

    gradient, _ = weight_gradients(solve(weights, None, points, config=CONFIG))
    slope = (cost_of(weights + change) - cost_of(weights - change)) / 2
    assert slope == pytest.approx(gradient @ change, abs=1e-10)
    of_divergence = divergence_gradient(sinkhorn_divergence(weights, None, points, config=CONFIG), points).weights
    slope = (divergence_of(weights + change) - divergence_of(weights - change)) / 2
    assert slope == pytest.approx(of_divergence @ change, abs=1e-10)


def test_gaussians_have_the_closed_form():
    a = Gaussian([0.0, 0.0], [[4.0, 0.0], [0.0, 1.0]])
    b = Gaussian([3.0, 4.0], [[1.0, 0.0], [0.0, 9.0]])
    # commuting covariances: |m|^2 + sum of (sqrt difference)^2
    assert gaussian_wasserstein(a, b) == pytest.approx(math.sqrt(25 + 1 + 4))
    assert gaussian_wasserstein(a, a) == pytest.approx(0.0, abs=1e-7)
    singular = Gaussian([0.0, 0.0], np.zeros((2, 2)))
    assert gaussian_wasserstein(a, singular) == pytest.approx(math.sqrt(5.0))
    rotation = np.array([[0.6, -0.8], [0.8, 0.6]])
    turned = Gaussian([0.0, 0.0], rotation @ a.covariance @ rotation.T)
    assert gaussian_wasserstein(a, turned) == pytest.approx(gaussian_wasserstein(turned, a))


def test_fitted_gaussian_is_the_sample_covariance():
    points = np.random.default_rng(0).normal(size=(50, 4))
    fitted = fit_gaussian(points)
    np.testing.assert_allclose(fitted.covariance, np.cov(points.T), atol=1e-12)
    with pytest.raises(TooFewSamplesError, match="the points: 1 are too few, at least 2 are needed"):
        fit_gaussian(points[:1])


@pytest.mark.parametrize(
    "covariance", [[[1.0, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]], [[math.nan, 0], [0, 1]], [[1.0]]]
)
def test_what_is_no_covariance_is_refused(covariance):
    with pytest.raises(InvalidInputError):
        Gaussian([0.0, 0.0], covariance)


@pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e-30, 1e30, 1e70])
def test_distance_of_gaussians_grows_with_the_points(scale):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(20, 3)), 2 * rng.normal(size=(20, 3)) + 1
    expected = gaussian_wasserstein(fit_gaussian(first), fit_gaussian(second))
    found = gaussian_wasserstein(fit_gaussian(first * scale), fit_gaussian(second * scale))
    assert found / scale == pytest.approx(expected, rel=1e-12)
