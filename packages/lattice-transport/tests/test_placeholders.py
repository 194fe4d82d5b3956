"""Entropic problems with huge costs for forbidden pairs."""

import numpy as np
import pytest
from exact_oracle import wide_problem
from pot_oracle import pot, quietly

from lattice_transport import barycenter, sinkhorn_divergence, solve, solve_unbalanced


def forbidden_pairs(value, seed=0, size=5):
    rng = np.random.default_rng(seed)
    cost = rng.random((size, size))
    cost[rng.permutation(size)[:3], rng.permutation(size)[:3]] = value
    return cost


@pytest.mark.parametrize("value", [1e9, 1e14, 1e30, 1e300])
def test_schedule_comes_back_from_forbidden_pairs(value):
    cost = forbidden_pairs(value)
    result = solve(None, None, cost, epsilon=0.05)
    assert result.converged
    assert result.transported_mass == pytest.approx(1.0, abs=1e-4)
    plain = solve(None, None, cost, epsilon=0.05, epsilon_schedule=None)
    np.testing.assert_allclose(result.plan(), plain.plan(), atol=1e-5)
    assert (result.plan()[cost == value] == 0.0).all()
    assert result.transport_cost < 1.0


@pytest.mark.slow
def test_plans_with_forbidden_pairs_are_those_of_pot_or_not_converged():
    ot = pot()
    converged = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        cost = forbidden_pairs(10.0 ** rng.integers(9, 36), seed, int(rng.integers(3, 9)))
        cost = cost.astype(np.float32 if seed % 2 else np.float64)
        result = solve(None, None, cost, epsilon=0.05, max_iterations=3000)
        if not result.converged:
            continue
        weights = np.full(len(cost), 1 / len(cost))
        other = quietly(ot.bregman.sinkhorn_log, weights, weights, cost.astype(float), 0.05, numItermax=1000)
        np.testing.assert_allclose(result.plan(), other, atol=1e-4)
        converged += 1
    assert converged >= 5


def test_other_entropic_problems_come_back_from_forbidden_pairs():
    cost = forbidden_pairs(1e30)
    free = solve_unbalanced(None, None, cost, epsilon=0.05)
    assert free.converged
    assert free.transport_cost < 1.0
    np.testing.assert_allclose(
        free.plan(), solve_unbalanced(None, None, cost, epsilon=0.05, epsilon_schedule=None).plan(), atol=1e-3
    )
    within = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    within[0, 4] = within[4, 0] = 1e30
    divergence = sinkhorn_divergence(None, None, (cost, within, within), epsilon=0.05)
    assert divergence.converged
    assert abs(divergence.raw_value) < 10.0
    mean = barycenter([cost, cost.T], epsilon=0.05)
    assert mean.converged
    assert mean.weights.sum() == pytest.approx(1.0)


def test_potentials_without_digits_are_not_converged():
    # both rows must pay 1e16; what they differ by is lost beside it
    result = solve(None, None, [[1e16, 1e16 + 4], [1e16, 1e16 + 2]], epsilon=0.05)
    assert not result.converged


@pytest.mark.parametrize("seed", [200, 430, 480])
def test_mass_that_must_go_where_it_should_not_is_unconverged_and_no_error(seed):
    _, _, cost, supply, demand = wide_problem(seed)
    result = solve([float(x) for x in supply], [float(x) for x in demand], cost, epsilon=0.05)
    assert not result.converged
