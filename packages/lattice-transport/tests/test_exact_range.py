"""The exact solver where costs differ by many orders of magnitude."""

import sys
from fractions import Fraction

import numpy as np
import pytest
from exact_oracle import optimum, wide_problem

from lattice_transport import (
    CostOverflowError,
    InvalidInputError,
    NotConvergedError,
    NumericalError,
    PivotLimitError,
    PointClouds,
    detect_drift,
    emd,
    sliced_wasserstein,
    wasserstein_1d,
)


def hold_against_whole_numbers(seeds):
    """Return how many of the problems did not converge; every other must have its optimum to 1e-9."""
    unconverged = 0
    for seed in seeds:
        a, b, cost, supply, demand = wide_problem(seed)
        result = emd(a, b, cost, error_on_non_convergence=False)
        if not result.converged:
            unconverged += 1
            continue
        best, terms = optimum(supply, demand, cost)
        mass = 1 if a is None else Fraction(float(a.sum())).limit_denominator(100)
        assert abs(Fraction(result.cost) / mass - best) <= terms / 10**9, seed
        assert result.gap <= 1e-9 * float(terms * mass), seed
    return unconverged


def test_wide_costs_are_solved_to_the_optimum_of_whole_numbers():
    assert hold_against_whole_numbers(range(60)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_wide_problems_are_solved_to_the_optimum_of_whole_numbers(part):
    assert hold_against_whole_numbers(range(500 * part, 500 * (part + 1))) <= 5


@pytest.mark.parametrize(
    ("forbidden", "dtype"), [(1e9, np.float32), (1e16, np.float32), (3.4e38, np.float32), (1e16, float), (1e300, float)]
)
def test_forbidden_pair_does_not_blur_the_plan_over_the_others(forbidden, dtype):
    cost = np.abs(np.subtract.outer(np.arange(3), np.arange(3))).astype(dtype)
    cost[0, 0] = forbidden
    result = emd(None, None, cost)
    assert result.converged
    assert result.cost == pytest.approx(2 / 3, rel=1e-15)
    assert 0.0 <= result.gap <= 1e-15
    # the potentials fit all pairs, each to the last bits of its own terms
    assert (result.u[:, None] + result.v <= cost).all()


def test_pairs_that_must_be_used_count_fully():
    cost = np.array([[1e16, 1e16], [1.0, 2.0]])
    result = emd([0.5, 0.5], [0.25, 0.75], cost)
    assert result.cost == pytest.approx(0.5e16 + 0.75, rel=1e-15)
    assert result.converged


def test_shares_that_binary_fractions_round_need_no_forbidden_pair():
    # 1/7 + 2/7 = 3/7, but not in floating point
    cost = np.array([[1.0, 1e16], [2.0, 1e16], [1e16, 3.0]])
    for a, b in (([1, 2, 4], [3, 4]), (np.array([1, 2, 4]) / 7, np.array([3, 4]) / 7)):
        result = emd(a, b, cost)
        assert result.cost / np.sum(a) == pytest.approx((1 + 2 * 2 + 3 * 4) / 7, rel=1e-14)
        assert result.cost < 20
    single = emd(np.array([1, 2, 4], np.float32) / np.float32(7), np.array([3, 4], np.float32) / np.float32(7), cost)
    assert single.cost == pytest.approx(17 / 7, rel=1e-6)


def test_sums_that_agree_but_for_rounding_need_no_forbidden_pair():
    rng = np.random.default_rng(0)
    left, right = rng.random(4), rng.random(3)
    cost = np.full((7, 2), 1e200)
    cost[:4, 0], cost[4:, 1] = 1.0, 2.0
    result = emd(np.concatenate([left, right]), [left.sum(), right.sum()], cost)
    assert result.converged
    assert result.cost == pytest.approx(left.sum() + 2 * right.sum(), rel=1e-14)


def test_tiny_costs_are_solved_too():
    cost = np.array([[3.0, 1.0], [1.0, 3.0]]) * 2.0**-1073
    result = emd(None, None, cost)
    np.testing.assert_array_equal(result.plan(), [[0.0, 0.5], [0.5, 0.0]])


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, sys.float_info.max])
def test_costs_whose_sums_overflow_are_refused(value):
    with pytest.raises(CostOverflowError, match="divide all costs") as caught:
        emd(None, None, [[value, 1.0], [1.0, 2.0]])
    assert isinstance(caught.value, (InvalidInputError, NumericalError))
    assert caught.value.value == abs(value)
    assert caught.value.limit < 1.7e308


def test_cost_of_heavy_mass_does_not_overflow_in_silence():
    with pytest.raises(CostOverflowError):
        emd([1e10], [1e10], [[1e300]])


def test_running_out_of_pivots_is_said_in_the_words_of_this_solver():
    cost = 10.0 ** np.random.default_rng(0).uniform(-9, 9, (30, 30))
    with pytest.raises(PivotLimitError, match="max_pivots") as caught:
        emd(None, None, cost, max_pivots=5)
    assert isinstance(caught.value, NotConvergedError)
    assert caught.value.pivots == 5
    assert "epsilon" not in str(caught.value)
    assert "iterations" not in str(caught.value)


def test_gap_of_an_unfinished_plan_bounds_what_it_lacks():
    cost = 10.0 ** np.random.default_rng(1).uniform(-9, 9, (12, 12))
    best = emd(None, None, cost)
    gaps = []
    for pivots in range(1, best.pivots):
        result = emd(None, None, cost, max_pivots=pivots, error_on_non_convergence=False)
        assert not result.converged
        gaps.append(result.gap)
        if np.isfinite(result.gap):
            assert result.cost - result.gap <= best.cost * (1 + 1e-9)
    assert np.isinf(gaps[0])
    assert np.isfinite(gaps[-1])


@pytest.mark.parametrize("pivots", [0, -1, 1.5, True, "many"])
def test_number_of_pivots_is_checked(pivots):
    with pytest.raises(InvalidInputError, match="max_pivots"):
        emd(None, None, [[1.0]], max_pivots=pivots)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1.0, 1e150, 1e300])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 50.0])
def test_distances_on_the_line_grow_with_the_points(scale, p):
    rng = np.random.default_rng(0)
    x, y, a = rng.normal(size=12), rng.normal(size=9) + 1, rng.dirichlet(np.ones(12))
    cost = np.abs(x[:, None] - y) ** p
    expected = emd(a, None, cost).cost ** (1 / p)
    assert wasserstein_1d(x * scale, y * scale, a, p=p) / scale == pytest.approx(expected, rel=1e-9)
    sliced = sliced_wasserstein(x[:, None] * scale, y[:, None] * scale, a, p=p, projections=3)
    assert sliced / scale == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e-22), (np.float64, 1e-160)])
@pytest.mark.parametrize("call", [lambda x, y: emd(None, None, PointClouds(x, y)), detect_drift])
def test_points_whose_distances_underflow_are_refused(dtype, scale, call):
    """All distances would be 0, and nothing would seem to have moved."""
    points = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(InvalidInputError, match=r"underflow: (pass float64, or )?scale the points"):
        call((points * scale).astype(dtype), (points * scale + scale).astype(dtype))


def test_tiny_points_beside_ordinary_ones_are_taken():
    tiny = np.full((4, 2), 1e-200)
    assert emd(None, None, PointClouds(tiny, np.ones((4, 2)))).cost == pytest.approx(2.0)
    assert emd(None, None, PointClouds(tiny, tiny.copy())).cost == 0.0
