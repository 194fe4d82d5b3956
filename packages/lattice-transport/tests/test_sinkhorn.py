import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pot_oracle import pot, quietly

from lattice_transport import (
    CancelledError,
    DimensionMismatchError,
    EmptyProblemError,
    EpsilonSchedule,
    InvalidEpsilonError,
    InvalidInputError,
    InvalidMarginalError,
    InvalidScheduleError,
    MarginalMassMismatchError,
    NonFiniteCostError,
    NonFinitePointError,
    NotConvergedError,
    PointClouds,
    SinkhornConfig,
    SinkhornWorkspace,
    WorkspaceError,
    solve,
    solve_batch,
)


def problem(n, m, seed=0, dtype=np.float64, zeros=False):
    rng = np.random.default_rng(seed)
    x, y = rng.random((n, 3)), rng.random((m, 3))
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    a, b = rng.random(n) + 0.05, rng.random(m) + 0.05
    if zeros:
        a[rng.integers(n)] = 0.0
        b[rng.integers(m)] = 0.0
    return a / a.sum(), b / b.sum(), (cost / cost.max()).astype(dtype)


@pytest.mark.parametrize(
    ("epsilon", "plan", "cost", "tolerance"),
    [
        (1.0, [[0.167963116819, 0.332036883181], [0.032036883181, 0.467963116819]], 0.36407376636268, 1e-11),
        (0.1, [[0.199999999313, 0.300000000687], [6.87e-10, 0.499999999313]], 0.3000000013741, 1e-11),
        (0.05, [[0.2, 0.3], [0.0, 0.5]], 0.3, 1e-9),
        (0.01, [[0.2, 0.3], [0.0, 0.5]], 0.3, 1e-9),
        (1e-3, [[0.2, 0.3], [0.0, 0.5]], 0.3, 1e-9),
    ],
)
def test_two_by_two_problem_has_the_known_plan(epsilon, plan, cost, tolerance):
    result = solve(
        [0.5, 0.5],
        [0.2, 0.8],
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        epsilon=epsilon,
        convergence_threshold=1e-12,
        max_iterations=5000,
    )
    assert result.converged
    np.testing.assert_allclose(result.plan(), plan, atol=tolerance)
    assert result.transport_cost == pytest.approx(cost, abs=tolerance)


def test_uniform_weights_take_the_mass_that_the_problem_has():
    """A mass of 1 + 5e-5 counts as 1; left as it is, no plan has both marginals to 1e-10."""
    cost = problem(3, 4)[2]
    result = solve(None, np.full(4, 0.25 * (1 + 5e-5)), cost, epsilon=1.0, convergence_threshold=1e-10)
    assert result.converged
    np.testing.assert_allclose(result.column_sums, 0.25, rtol=1e-9)
    np.testing.assert_allclose(result.row_sums, 1 / 3, rtol=1e-9)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    seed=st.integers(0, 10_000),
    epsilon=st.sampled_from([1.0, 0.3, 0.1]),
    zeros=st.booleans(),
)
@example(n=28, m=20, seed=825, epsilon=0.01, zeros=False)
def test_plan_is_that_of_pot(n, m, seed, epsilon, zeros):
    ot = pot()
    a, b, cost = problem(n, m, seed, zeros=zeros and n > 1 and m > 1)
    ours = solve(a, b, cost, epsilon=epsilon, convergence_threshold=1e-9, max_iterations=100_000)
    assert ours.converged
    rows, columns = a > 0, b > 0
    theirs = np.zeros_like(cost)
    theirs[np.ix_(rows, columns)] = quietly(
        ot.sinkhorn,
        a[rows],
        b[columns],
        cost[np.ix_(rows, columns)],
        epsilon,
        method="sinkhorn_log",
        numItermax=5000,
        stopThr=1e-10,
    )
    theirs_residual = np.abs(theirs.sum(0) - b).sum() + np.abs(theirs.sum(1) - a).sum()
    allowed = 1e-6 + theirs_residual  # POT may run out of iterations: its plan is then that far off
    assert np.abs(ours.plan() - theirs).max() <= allowed
    assert abs(ours.transport_cost - (theirs * cost).sum()) <= allowed


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), seed=st.integers(0, 10_000), epsilon=st.sampled_from([0.01, 1e-3]))
@example(n=28, m=20, seed=825, epsilon=1e-3)  # 66,558 iterations
def test_plan_of_a_small_epsilon_is_the_optimum(n, m, seed, epsilon):
    """The optimum is the one plan with both marginals whose log plus cost / epsilon is a row's term plus a column's."""
    a, b, cost = problem(n, m, seed)
    # Of 12,000 drawn with 1e-3 one in 200 takes more than 60,000 iterations, the slowest 3,000,000.
    result = solve(a, b, cost, epsilon=epsilon, convergence_threshold=1e-9, max_iterations=20_000_000)
    assert result.converged
    plan = result.plan()
    assert np.abs(plan.sum(1) - a).sum() <= 1e-8
    assert np.abs(plan.sum(0) - b).sum() <= 1e-8
    terms = result.log_u[:, None] + result.log_v - cost / epsilon
    held = plan > 1e-200
    assert np.abs(terms[held] - np.log(plan[held])).max() <= 1e-9


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 70),
    seed=st.integers(0, 10_000),
    epsilon=st.sampled_from([1.0, 0.1, 0.03, 0.01]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_result_describes_its_own_plan(n, m, seed, epsilon, dtype):
    a, b, cost = problem(n, m, seed, dtype)
    result = solve(a, b, cost, epsilon=epsilon, convergence_threshold=1e-6, max_iterations=20_000)
    plan = result.plan().astype(np.float64)
    assert result.plan().dtype == dtype
    assert result.converged
    rough = 3e-6 if dtype == np.float32 else 1e-12
    assert abs(np.abs(plan.sum(1) - a).sum() - result.row_residual) <= rough
    assert abs(np.abs(plan.sum(0) - b).sum() - result.col_residual) <= rough
    assert max(result.row_residual, result.col_residual) == result.last_error <= 1e-6
    assert result.column_residual == result.col_residual
    assert result.transport_cost == pytest.approx((plan * cost).sum(), abs=rough)
    assert result.transported_mass == pytest.approx(plan.sum(), abs=rough)
    logs = np.log(np.where(plan > 0, plan, 1.0))
    assert result.entropy == pytest.approx(-(plan * (logs - 1.0)).sum(), abs=20 * rough)
    assert result.regularized_cost == pytest.approx(result.transport_cost - epsilon * result.entropy, abs=1e-9)
    assert abs(result.gap) <= 1e-5
    rebuilt = np.exp(result.log_u[:, None] + result.log_v[None] - cost.astype(np.float64) / epsilon)
    np.testing.assert_allclose(plan, rebuilt, atol=10 * rough)
    np.testing.assert_allclose(result.row_costs, (plan * cost).sum(1), atol=rough)


def test_optimal_potentials_satisfy_the_fixed_point():
    a, b, cost = problem(30, 20)
    result = solve(a, b, cost, epsilon=0.02, convergence_threshold=1e-12, max_iterations=10_000)
    from scipy.special import logsumexp

    np.testing.assert_allclose(
        result.log_u, np.log(a) - logsumexp(result.log_v[None] - cost / 0.02, axis=1), atol=1e-10
    )
    np.testing.assert_allclose(
        result.log_v, np.log(b) - logsumexp(result.log_u[:, None] - cost / 0.02, axis=0), atol=1e-8
    )


@pytest.mark.parametrize("epsilon", [1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiny_epsilon_is_finite_and_converges_to_the_exact_cost(epsilon, seed):
    from lattice_transport import emd

    rng = np.random.default_rng(seed)
    cost = rng.random((24, 24))
    result = solve(None, None, cost, epsilon=epsilon, convergence_threshold=1e-4, max_iterations=30_000)
    assert result.converged
    assert len(result.stages) > 3
    assert np.isfinite(result.plan()).all()
    exact = emd(None, None, cost).cost
    assert abs(result.transport_cost - exact) <= 2e-4 + epsilon * 2 * math.log(24)


def test_scaling_steps_need_no_gibbs_kernel():
    cost = np.array([[0.0, 1e4], [1e4, 0.0]])
    result = solve([0.3, 0.7], [0.3, 0.7], cost, epsilon=1.0, epsilon_schedule=None)
    assert result.converged
    np.testing.assert_allclose(result.plan(), [[0.3, 0], [0, 0.7]], atol=1e-6)


def test_far_columns_are_reached():
    """Columns whose every entry underflows beside the rows' best are summed from their own maxima."""
    rng = np.random.default_rng(5)
    cost = rng.random((20, 33))
    cost[:, 7] += 500.0
    cost[:, 30:] += 900.0
    for dtype in (np.float32, np.float64):
        result = solve(
            None,
            None,
            cost.astype(dtype),
            epsilon=0.5,
            precision="auto" if dtype == np.float64 else "float32",
            convergence_threshold=1e-4,
            max_iterations=3000,
            epsilon_schedule=None,
        )
        assert result.converged
        np.testing.assert_allclose(result.plan().sum(0), np.full(33, 1 / 33), atol=2e-4)


def test_zero_weights_have_exactly_zero_rows():
    result = solve([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], np.arange(9.0).reshape(3, 3) / 8)
    plan = result.plan()
    assert result.converged
    assert (plan[2] == 0).all()
    assert (plan[:, 0] == 0).all()
    assert not np.isnan(plan).any()
    assert result.log_u[2] == -math.inf
    assert plan.sum() == pytest.approx(1.0, abs=1e-5)
    blocks = list(result.plan_blocks(rows_per_block=1))
    assert sum(len(block) for _, block in blocks) == 3


def test_masses_from_float_division_are_feasible():
    a = np.full(5, np.float32(1) / np.float32(5))
    b = np.full(960, np.float32(1) / np.float32(960))
    result = solve(a, b, np.random.default_rng(0).random((5, 960)).astype(np.float32), epsilon=0.1)
    assert result.converged
    assert result.transported_mass == pytest.approx(1.0, abs=1e-5)


def test_mass_need_not_be_one():
    a, b, cost = problem(6, 7)
    one = solve(a, b, cost, convergence_threshold=1e-9)
    ten = solve(10 * a, 10 * b, cost, convergence_threshold=1e-8)
    np.testing.assert_allclose(ten.plan(), 10 * one.plan(), atol=1e-6)


def test_float32_goes_on_in_float64_where_its_rounding_stops_it():
    a, b, cost = problem(200, 200, dtype=np.float32)
    result = solve(a, b, cost, epsilon=0.021, convergence_threshold=2e-7, max_iterations=5000)
    assert result.converged
    assert result.last_error <= 2e-7


@pytest.mark.parametrize(("epsilon", "precision"), [(0.05, "float32"), (0.01, "float64")])
def test_precision_follows_epsilon(epsilon, precision):
    a, b, cost = problem(20, 20, dtype=np.float32)
    result = solve(a, b, cost, epsilon=epsilon)
    assert result.precision == precision
    assert result.plan().dtype == np.float32


def test_float32_plan_is_close_to_the_float64_plan():
    a, b, cost = problem(100, 80)
    exact = solve(a, b, cost, epsilon=0.05, convergence_threshold=1e-11, max_iterations=5000)
    narrow = solve(a, b, cost.astype(np.float32), epsilon=0.05, convergence_threshold=1e-6)
    assert narrow.precision == "float32"
    assert np.abs(narrow.plan() - exact.plan()).max() < 1e-6


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiles_and_matrix_agree(metric, dtype, monkeypatch):
    from scipy.spatial.distance import cdist

    from lattice_transport import costs

    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(131, 19)).astype(dtype) + 3, rng.normal(size=(77, 19)).astype(dtype) + 3
    clouds = PointClouds(x, y, metric)
    expected = cdist(x.astype(np.float64), y.astype(np.float64), metric)
    np.testing.assert_allclose(clouds.matrix(), expected, rtol=2e-6 if dtype == np.float32 else 1e-9, atol=1e-6)
    epsilon = 0.2 * float(expected.mean())
    settings = {
        "epsilon": epsilon,
        "convergence_threshold": 1e-6 if dtype == np.float32 else 1e-11,
        "max_iterations": 3000,
    }
    over_matrix = solve(None, None, clouds, **settings)
    monkeypatch.setattr(costs, "_MATRIX_BYTES", 0)
    over_tiles = solve(None, None, clouds, **settings)
    assert over_tiles._cost.tiled
    tolerance = 1e-5 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(over_tiles.plan(), over_matrix.plan(), atol=tolerance)
    assert over_tiles.transport_cost == pytest.approx(over_matrix.transport_cost, rel=10 * tolerance)


def test_distance_of_a_point_to_itself_is_zero():
    x = np.random.default_rng(0).normal(size=(40, 5)) + 100
    for metric in ("sqeuclidean", "euclidean", "cosine"):
        assert (np.diag(PointClouds(x, x, metric).matrix()) == 0).all()


def test_cosine_of_a_zero_vector_is_defined():
    matrix = PointClouds(np.zeros((1, 3)), np.ones((2, 3)), "cosine").matrix()
    np.testing.assert_allclose(matrix, [[1.0, 1.0]])


@pytest.mark.parametrize(
    ("a", "b", "cost", "error", "words"),
    [
        (None, None, np.zeros((0, 3)), EmptyProblemError, "shape"),
        (None, None, np.zeros((3, 0)), EmptyProblemError, "shape"),
        (None, None, np.zeros(3), InvalidInputError, "dimension"),
        (None, None, np.array([["a"]]), InvalidInputError, "real numbers"),
        (None, None, [[0, np.nan]], NonFiniteCostError, "from 0 to 1"),
        (None, None, [[0, 1], [np.inf, 1]], NonFiniteCostError, "from 1 to 0"),
        (None, None, [[0, 1], [-np.inf, 1]], NonFiniteCostError, "from 1 to 0"),
        (np.ones(100) / 100, None, np.zeros((101, 101)), DimensionMismatchError, "101"),
        (None, np.ones((3, 1)), np.zeros((3, 3)), DimensionMismatchError, "target"),
        ([0.5, -0.5], [0.5, 0.5], np.zeros((2, 2)), InvalidMarginalError, "-0.5"),
        ([0.5, 0.5], [0.5, np.nan], np.zeros((2, 2)), InvalidMarginalError, "nan"),
        ([0.5, np.inf], [0.5, 0.5], np.zeros((2, 2)), InvalidMarginalError, "inf"),
        ([0.0, 0.0], [0.5, 0.5], np.zeros((2, 2)), EmptyProblemError, "zero"),
        ([0.6, 0.6], [0.5, 0.5], np.zeros((2, 2)), MarginalMassMismatchError, "solve_unbalanced"),
        ([3.0], [2.0], np.zeros((1, 1)), MarginalMassMismatchError, "differ"),
    ],
)
def test_bad_input_has_an_error_of_its_own(a, b, cost, error, words):
    with pytest.raises(error, match=words):
        solve(a, b, cost)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, 10**400, "x"])
def test_bad_epsilon_is_refused(bad):
    with pytest.raises(InvalidEpsilonError, match="epsilon"):
        solve(None, None, np.zeros((2, 2)), epsilon=bad)
    with pytest.raises(InvalidEpsilonError, match="convergence_threshold"):
        solve(None, None, np.zeros((2, 2)), convergence_threshold=bad)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_iterations": 0},
        {"max_iterations": True},
        {"check_convergence_every": 0},
        {"precision": "float16"},
        {"relaxation": 2.0},
        {"relaxation": math.nan},
        {"epsilon_schedule": 3},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(InvalidInputError):
        SinkhornConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"start": 0.0},
        {"start": math.nan},
        {"start": 1.0, "factor": 0.0},
        {"start": 1.0, "factor": 1.0},
        {"start": 1.0, "factor": math.nan},
        {"start": 1.0, "iterations_per_stage": 0},
        {"start": 1.0, "stage_threshold": -1.0},
    ],
)
def test_bad_schedules_are_refused(settings):
    with pytest.raises(InvalidScheduleError):
        EpsilonSchedule(**settings)


def test_schedule_that_leads_nowhere_is_refused():
    with pytest.raises(InvalidScheduleError, match="above"):
        EpsilonSchedule(start=0.1).stages(0.1)
    with pytest.raises(InvalidScheduleError, match="stages"):
        EpsilonSchedule(start=1.0, factor=1 - 1e-9).stages(0.1)
    assert EpsilonSchedule(start=1.0, factor=0.5).stages(0.2) == [1.0, 0.5, 0.25]


def test_points_have_errors_of_their_own():
    with pytest.raises(NonFinitePointError, match="coordinate 1 of point 2 of y"):
        PointClouds(np.zeros((2, 2)), [[0, 0], [0, 0], [0, math.nan]])
    with pytest.raises(EmptyProblemError):
        PointClouds(np.zeros((0, 2)), np.zeros((2, 2)))
    with pytest.raises(DimensionMismatchError):
        PointClouds(np.zeros((1, 2)), np.zeros((1, 3)))
    with pytest.raises(InvalidInputError, match="metric"):
        PointClouds(np.zeros((1, 2)), np.zeros((1, 2)), "manhattan")


def test_unconverged_is_said_and_can_be_an_error():
    a, b, cost = problem(30, 30)
    result = solve(a, b, cost, epsilon=1e-4, convergence_threshold=1e-12, max_iterations=3, epsilon_schedule=None)
    assert not result.converged
    assert result.iterations == 3
    assert result.last_error > 1e-12
    plan = result.plan()
    assert np.abs(plan.sum(0) - b).sum() == pytest.approx(result.col_residual, rel=1e-9)
    with pytest.raises(NotConvergedError, match="3 iterations"):
        solve(a, b, cost, epsilon=1e-4, convergence_threshold=1e-12, max_iterations=3, error_on_non_convergence=True)


def test_float32_at_tiny_epsilon_reports_a_true_residual():
    cost = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    result = solve(None, None, cost, epsilon=1e-4, max_iterations=50)
    plan = result.plan()
    assert math.isfinite(result.regularized_cost)
    residual = np.abs(plan.sum(0) - 1 / 64).sum()
    assert result.converged == (max(residual, result.row_residual) <= 1.1e-5)


def test_observer_sees_progress_and_cancels():
    a, b, cost = problem(30, 30)
    seen = []
    solve(a, b, cost, epsilon=0.02, convergence_threshold=1e-9, observer=seen.append, check_convergence_every=5)
    assert [progress.iteration for progress in seen[:-1]] == list(range(5, 5 * len(seen), 5))
    assert seen[-1].converged
    assert seen[-1].last_error <= 1e-9
    calls = []

    def cancel(progress):
        calls.append(progress)
        return False

    with pytest.raises(CancelledError, match="5 iterations"):
        solve(a, b, cost, epsilon=0.02, convergence_threshold=1e-9, observer=cancel, check_convergence_every=5)
    assert len(calls) == 1


def test_warm_start_saves_iterations():
    a, b, cost = problem(60, 50)
    first = solve(a, b, cost, epsilon=0.03, convergence_threshold=1e-8)
    again = solve(a, b, cost, epsilon=0.03, convergence_threshold=1e-8, warm_start=first)
    assert again.iterations <= 3 < first.iterations
    near = solve(a, b, cost, epsilon=0.025, convergence_threshold=1e-8, warm_start=first)
    cold = solve(a, b, cost, epsilon=0.025, convergence_threshold=1e-8)
    assert near.iterations < cold.iterations
    np.testing.assert_allclose(near.plan(), cold.plan(), atol=1e-8)
    pair = solve(a, b, cost, epsilon=0.03, convergence_threshold=1e-8, warm_start=(first.log_u, first.log_v))
    assert pair.iterations <= 3
    with pytest.raises(DimensionMismatchError, match="warm start"):
        solve(a, b, cost, warm_start=(first.log_u[:3], first.log_v))


def test_over_relaxation_does_not_change_the_solution_and_saves_iterations():
    a, b, cost = problem(80, 80)
    settings = {"epsilon": 0.005, "convergence_threshold": 1e-9, "max_iterations": 100_000, "epsilon_schedule": None}
    plain = solve(a, b, cost, relaxation=1.0, **settings)
    relaxed = solve(a, b, cost, **settings)
    assert relaxed.converged
    assert plain.converged
    np.testing.assert_allclose(relaxed.plan(), plain.plan(), atol=1e-7)
    assert relaxed.iterations < 0.5 * plain.iterations


def test_workspace_gives_the_same_bits_and_serves_smaller_problems():
    workspace = SinkhornWorkspace(70, 90)
    for n, m, seed in ((70, 90, 0), (3, 90, 1), (40, 17, 2), (1, 1, 3)):
        a, b, cost = problem(n, m, seed)
        with_it = solve(a, b, cost, workspace=workspace)
        without = solve(a, b, cost)
        assert np.array_equal(with_it.log_u, without.log_u)
        assert np.array_equal(with_it.plan(), without.plan())
    assert workspace.nbytes < 1 << 20
    with pytest.raises(WorkspaceError, match="70 x 90"):
        solve(None, None, np.zeros((71, 3)), workspace=workspace)
    with pytest.raises(InvalidInputError):
        SinkhornWorkspace(0, 3)


def test_batch_equals_single_solves():
    problems = [problem(n, m, seed) for n, m, seed in ((10, 12, 0), (30, 8, 1), (5, 5, 2))]
    places = []
    results = solve_batch(problems, observer=lambda p: places.append((p.batch_index, p.batch_len)))
    for (a, b, cost), result in zip(problems, results, strict=True):
        assert np.array_equal(result.plan(), solve(a, b, cost).plan())
    assert {place[0] for place in places} == {0, 1, 2}
    assert {place[1] for place in places} == {3}
    assert solve_batch([]) == []


def test_iterations_allocate_nothing():
    import tracemalloc

    a, b, cost = problem(300, 300, dtype=np.float32)
    workspace = SinkhornWorkspace(300, 300, precision="float32")
    workspace._solver.bind_matrix(cost)
    workspace._solver.set_weights(a, b)
    workspace._solver.configure(0.02)
    workspace._solver.run(5, 1e-30, adapt=True)
    tracemalloc.start()
    workspace._solver.run(200, 1e-30, adapt=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert workspace._solver.iterations == 205
    assert peak < 1024
