import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pot_oracle import pot, quietly

from lattice_transport import InvalidEpsilonError, NotConvergedError, solve, solve_unbalanced


def problem(n, m, seed=0):
    rng = np.random.default_rng(seed)
    cost = ((rng.random((n, 1, 3)) - rng.random((1, m, 3))) ** 2).sum(-1)
    return 1.4 * rng.random(n) + 0.05, rng.random(m) + 0.05, cost / cost.max()


def objective(plan, a, b, cost, epsilon, tau_source, tau_target):
    def kl(x, y):
        logs = np.log(np.where(x > 0, x, 1) / y)
        return (x * logs - x + y).sum()

    logs = np.log(np.where(plan > 0, plan, 1))
    value = (plan * cost).sum() + epsilon * (plan * (logs - 1)).sum()
    return value + tau_source * kl(plan.sum(1), a) + tau_target * kl(plan.sum(0), b)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 30),
    m=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    epsilon=st.sampled_from([1.0, 0.1, 0.02]),
    tau_source=st.sampled_from([0.1, 1.0, 5.0]),
    tau_target=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_plan_is_that_of_pot(n, m, seed, epsilon, tau_source, tau_target):
    ot = pot()
    a, b, cost = problem(n, m, seed)
    ours = solve_unbalanced(
        a, b, cost, epsilon=epsilon, tau_source=tau_source, tau_target=tau_target, convergence_threshold=1e-14,
        max_iterations=20_000,
    )  # fmt: skip
    theirs = quietly(
        ot.unbalanced.sinkhorn_unbalanced,
        a,
        b,
        cost,
        epsilon,
        [tau_source, tau_target],
        reg_type="entropy",
        numItermax=50_000,
        stopThr=1e-13,
    )
    assert np.abs(ours.plan() - theirs).max() <= 1e-6
    assert abs(ours.transport_cost - (theirs * cost).sum()) <= 1e-6


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    epsilon=st.sampled_from([1.0, 0.1, 0.01]),
    taus=st.sampled_from([(1.0, 1.0), (0.05, 2.0), (math.inf, 0.5), (0.5, math.inf)]),
)
def test_values_are_those_of_the_plan_and_the_gap_closes(seed, epsilon, taus):
    a, b, cost = problem(14, 11, seed)
    result = solve_unbalanced(
        a, b, cost, epsilon=epsilon, tau_source=taus[0], tau_target=taus[1], convergence_threshold=1e-10,
        max_iterations=20_000,
    )  # fmt: skip
    assert result.converged
    plan = result.plan()
    finite = [tau if math.isfinite(tau) else 0.0 for tau in taus]
    assert result.regularized_cost == pytest.approx(objective(plan, a, b, cost, epsilon, *finite), abs=1e-8)
    assert result.dual_objective <= result.regularized_cost + 1e-9
    assert result.gap <= 1e-9 * (abs(result.regularized_cost) + result.transported_mass) + 1e-8
    for tau, sums, weights in ((taus[0], plan.sum(1), a), (taus[1], plan.sum(0), b)):
        if math.isinf(tau):
            np.testing.assert_allclose(sums, weights, atol=1e-4)


def test_one_point_has_the_closed_form():
    """The one mass p minimises p + p (ln p - 1) + 2 (p ln p - p + 1), so 1 + 3 ln p = 0."""
    result = solve_unbalanced(
        [1.0], [1.0], [[1.0]], epsilon=1.0, tau_source=1.0, tau_target=1.0, convergence_threshold=1e-14,
        max_iterations=1000,
    )  # fmt: skip
    p = math.exp(-1 / 3)
    kl = p * math.log(p) - p + 1
    assert result.plan()[0, 0] == pytest.approx(p, abs=1e-8)
    assert result.row_kl == pytest.approx(kl, abs=1e-8)
    assert result.column_kl == pytest.approx(kl, abs=1e-8)
    assert result.entropy == pytest.approx(p * (1 - math.log(p)), abs=1e-8)
    assert result.regularized_cost == pytest.approx(p + p * (math.log(p) - 1) + 2 * kl, abs=1e-8)


def test_gap_bounds_the_distance_to_the_optimum():
    a, b, cost = problem(20, 20)
    best = solve_unbalanced(a, b, cost, convergence_threshold=1e-14, max_iterations=20_000).regularized_cost
    for iterations in (1, 3, 9):
        rough = solve_unbalanced(a, b, cost, max_iterations=iterations, convergence_threshold=1e-15)
        assert rough.dual_objective <= best + 1e-12 <= rough.regularized_cost + 1e-10


def test_infinite_taus_are_the_balanced_problem():
    a, b, cost = problem(10, 12)
    a, b = a / a.sum(), b / b.sum()
    balanced = solve(a, b, cost, convergence_threshold=1e-10)
    free = solve_unbalanced(
        a, b, cost, tau_source=math.inf, tau_target=math.inf, convergence_threshold=1e-10, relaxation="auto"
    )
    assert np.array_equal(balanced.plan(), free.plan())


def test_large_tau_approaches_the_balanced_plan():
    a, b, cost = problem(10, 12)
    a, b = a / a.sum(), b / b.sum()
    balanced = solve(a, b, cost, convergence_threshold=1e-11)
    near = solve_unbalanced(
        a, b, cost, tau_source=1e5, tau_target=1e5, convergence_threshold=1e-14, max_iterations=20_000
    )
    np.testing.assert_allclose(near.plan(), balanced.plan(), atol=1e-5)


def test_zero_weights_get_no_phantom_mass():
    result = solve_unbalanced([0.5, 0.0, 1.0], [0.0, 2.0], np.ones((3, 2)))
    plan = result.plan()
    assert (plan[1] == 0).all()
    assert (plan[:, 0] == 0).all()
    assert result.converged


def test_strict_flag_is_kept():
    a, b, cost = problem(10, 10)
    with pytest.raises(NotConvergedError, match="1 iterations"):
        solve_unbalanced(
            a, b, cost, epsilon=1e-3, max_iterations=1, convergence_threshold=1e-12, error_on_non_convergence=True
        )


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, None])
def test_bad_tau_is_refused(tau):
    with pytest.raises(InvalidEpsilonError, match="tau_source"):
        solve_unbalanced([1.0], [1.0], [[1.0]], tau_source=tau)


def test_small_tau_drops_far_mass():
    cost = np.array([[0.0, 9.0], [9.0, 9.0]])
    result = solve_unbalanced([0.5, 0.5], [0.5, 0.5], cost, tau_source=0.5, tau_target=0.5, epsilon=0.02)
    plan = result.plan()
    assert plan[0, 0] > 0.45
    assert plan[1].sum() < 1e-3
