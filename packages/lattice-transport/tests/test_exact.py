import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import identity, kron, vstack
from scipy.stats import wasserstein_distance

from lattice_transport import (
    DimensionMismatchError,
    EmptyProblemError,
    InvalidInputError,
    MarginalMassMismatchError,
    NonFinitePointError,
    NotConvergedError,
    PointClouds,
    emd,
    sliced_wasserstein,
    wasserstein_1d,
)


def linear_program(a, b, cost):
    n, m = cost.shape
    rows = kron(identity(n), np.ones((1, m)))
    columns = kron(np.ones((1, n)), identity(m))
    solution = linprog(cost.ravel(), A_eq=vstack([rows, columns]), b_eq=np.concatenate([a, b]), method="highs")
    assert solution.success
    return solution.fun


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 15),
    m=st.integers(1, 15),
    seed=st.integers(0, 100_000),
    kind=st.sampled_from(["random", "integers", "equal", "negative", "huge"]),
    weights=st.sampled_from(["random", "uniform", "coarse", "sparse"]),
)
def test_cost_is_that_of_the_linear_program(n, m, seed, kind, weights):
    rng = np.random.default_rng(seed)
    cost = {
        "random": lambda: rng.random((n, m)),
        "integers": lambda: rng.integers(0, 3, (n, m)).astype(float),
        "equal": lambda: np.ones((n, m)),
        "negative": lambda: rng.normal(size=(n, m)),
        "huge": lambda: 1e9 * rng.random((n, m)),
    }[kind]()
    a, b = (
        {
            "random": lambda k: rng.random(k) + 1e-3,
            "uniform": np.ones,
            "coarse": lambda k: rng.integers(1, 4, k).astype(float),
            "sparse": lambda k: np.maximum(rng.random(k) - 0.5, 0) + np.eye(1, k)[0],
        }[weights](n),
        None,
    )
    b = {
        "random": lambda k: rng.random(k) + 1e-3,
        "uniform": np.ones,
        "coarse": lambda k: rng.integers(1, 4, k).astype(float),
        "sparse": lambda k: np.maximum(rng.random(k) - 0.5, 0) + np.eye(1, k)[0],
    }[weights](m)
    a, b = a / a.sum(), b / b.sum()
    result = emd(a, b, cost)
    scale = np.abs(cost).max() or 1.0
    assert result.converged
    assert result.cost == pytest.approx(linear_program(a, b, cost), abs=1e-7 * scale)
    assert abs(result.gap) <= 1e-12 * scale
    plan = result.plan()
    np.testing.assert_allclose(plan.sum(1), a, atol=1e-14)
    np.testing.assert_allclose(plan.sum(0), b, atol=1e-14)
    assert (plan >= 0).all()
    assert len(result.masses) <= n + m - 1
    slack = cost - result.u[:, None] - result.v[None]
    assert np.nanmin(slack) >= -1e-12 * scale


@pytest.mark.parametrize("n", [50, 200])
def test_uniform_problem_is_an_assignment(n):
    cost = np.random.default_rng(n).random((n, n))
    rows, columns = linear_sum_assignment(cost)
    result = emd(None, None, cost)
    assert result.cost == pytest.approx(cost[rows, columns].mean(), abs=1e-14)
    np.testing.assert_array_equal(result.targets, columns)


@pytest.mark.parametrize("seed", range(3))
def test_equal_weights_and_costs_do_not_cycle(seed):
    """Every basis of an assignment is degenerate: most pivots move no mass, and a wrong choice among ties can cycle."""
    cost = np.random.default_rng(seed).integers(0, 2, (60, 60)).astype(float)
    result = emd(None, None, cost, max_pivots=1000)
    rows, columns = linear_sum_assignment(cost)
    assert result.converged
    assert result.cost == pytest.approx(cost[rows, columns].mean(), abs=1e-15)


def test_large_problem_is_optimal_by_its_own_certificate():
    rng = np.random.default_rng(0)
    a, b = rng.random(700), rng.random(900)
    clouds = PointClouds(rng.normal(size=(700, 5)), rng.normal(size=(900, 5)))
    result = emd(a / a.sum(), b / b.sum(), clouds)
    assert result.converged
    assert abs(result.gap) < 1e-11
    slack = clouds.matrix() - result.u[:, None] - result.v[None]
    assert slack.min() >= -1e-11


def test_published_distance_of_four_points():
    """pyemd's issue 32: 1.5811388301 on the diagonal of a rectangle."""
    x, y = np.array([[0.0, 0.0]]), np.array([[1.5, 0.5]])
    assert emd([1.0], [1.0], PointClouds(x, y, "euclidean")).cost == pytest.approx(1.5811388301, abs=1e-10)
    assert emd([0.5, 0.5], [0.2, 0.8], [[0, 1], [1, 0]]).cost == pytest.approx(0.3, abs=1e-15)


def test_masses_that_differ_are_refused():
    with pytest.raises(MarginalMassMismatchError):
        emd([3.0], [2.0], [[1.0]])


def test_running_out_of_pivots_is_said():
    cost = np.random.default_rng(0).random((30, 30))
    with pytest.raises(NotConvergedError):
        emd(None, None, cost, max_pivots=5)
    result = emd(None, None, cost, max_pivots=5, error_on_non_convergence=False)
    assert not result.converged
    assert result.pivots == 5


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 30), m=st.integers(1, 30), seed=st.integers(0, 10_000), ties=st.booleans())
def test_distance_on_the_line_is_scipys(n, m, seed, ties):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=n), rng.normal(size=m)
    if ties:
        x, y = np.round(x), np.round(y)
    a, b = rng.random(n) + 0.01, rng.random(m) + 0.01
    a, b = a / a.sum(), b / b.sum()
    assert wasserstein_1d(x, y, a, b) == pytest.approx(wasserstein_distance(x, y, a, b), abs=1e-12)
    cost = (x[:, None] - y[None]) ** 2
    assert wasserstein_1d(x, y, a, b, p=2) ** 2 == pytest.approx(emd(a, b, cost).cost, abs=1e-12)


def test_sliced_distance_is_seeded_and_below_the_full_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.normal(size=(50, 4)) + 1
    value = sliced_wasserstein(x, y)
    assert value == sliced_wasserstein(x, y)
    assert value != sliced_wasserstein(x, y, seed=1)
    assert value < math.sqrt(emd(None, None, PointClouds(x, y)).cost)
    assert sliced_wasserstein(x, x) == 0.0
    # a shift along one axis is seen with 1 / sqrt(dimension) of its length on average
    assert sliced_wasserstein(x, x + np.array([3.0, 0, 0, 0]), projections=4000) == pytest.approx(1.5, rel=0.05)


def test_line_and_slices_refuse_what_has_no_distance():
    with pytest.raises(EmptyProblemError):
        wasserstein_1d([], [1.0])
    with pytest.raises(NonFinitePointError):
        wasserstein_1d([math.nan], [1.0])
    with pytest.raises(InvalidInputError, match="order"):
        wasserstein_1d([0.0], [1.0], p=0.5)
    with pytest.raises(DimensionMismatchError):
        sliced_wasserstein(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(InvalidInputError, match="projections"):
        sliced_wasserstein(np.zeros((2, 2)), np.zeros((2, 2)), projections=0)
