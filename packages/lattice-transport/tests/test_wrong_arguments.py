"""Every public callable with values of wrong types and sizes: typed errors only, and no warnings of NumPy."""

import contextlib
import inspect
import math
import warnings

import numpy as np
import pytest

import lattice_transport
from lattice_transport import (
    EpsilonSchedule,
    Gaussian,
    InvalidInputError,
    OnlineDriftDetector,
    PointClouds,
    SinkhornConfig,
    SinkhornWorkspace,
    TransportError,
    VectorSet,
    free_support_barycenter,
    sinkhorn_divergence,
    solve,
    solve_unbalanced,
)
from lattice_transport.arrays import large_matrix

POINTS = np.random.default_rng(0).normal(size=(9, 3))
CLOUDS = PointClouds(POINTS, POINTS + 0.5)
SOLVED = solve(None, None, CLOUDS)
DETECTOR = OnlineDriftDetector(16)

CALLS = {
    "barycenter": {"costs": [CLOUDS]},
    "barycentric_projection": {"result": SOLVED, "y": POINTS},
    "cost_matrix": {"x": POINTS, "y": POINTS},
    "detect_drift": {"reference": POINTS, "current": POINTS, "permutations": 19},
    "divergence_gradient": {
        "divergence": lattice_transport.sinkhorn_divergence(None, None, CLOUDS),
        "clouds": CLOUDS,
    },
    "emd": {"a": None, "b": None, "cost": CLOUDS},
    "extract_sparse_plan": {"result": SOLVED},
    "fit_gaussian": {"points": POINTS},
    "free_support_barycenter": {"measures": [POINTS], "initial": POINTS[:2], "max_updates": 1},
    "gaussian_wasserstein": {"first": Gaussian([0.0], [[1.0]]), "second": Gaussian([0.0], [[1.0]])},
    "normalize_weights": {"weights": [1.0]},
    "self_term": {"points": POINTS},
    "sinkhorn_divergence": {"a": None, "b": None, "cost": CLOUDS},
    "sliced_wasserstein": {"x": POINTS, "y": POINTS},
    "solve": {"a": None, "b": None, "cost": CLOUDS},
    "solve_batch": {"problems": [(None, None, CLOUDS)]},
    "solve_unbalanced": {"a": None, "b": None, "cost": CLOUDS},
    "transport_gradient": {"result": SOLVED, "clouds": CLOUDS},
    "uniform_weights": {"count": 2},
    "wasserstein_1d": {"x": [0.0], "y": [1.0]},
    "weight_gradients": {"result": SOLVED},
    "EpsilonSchedule": {"start": 1.0},
    "Gaussian": {"mean": [0.0], "covariance": [[1.0]]},
    "OnlineDriftDetector": {"window_size": 16},
    "PointClouds": {"x": POINTS, "y": POINTS},
    "SinkhornConfig": {},
    "SinkhornWorkspace": {"rows": 9, "columns": 9},
    "VectorSet": {"vectors": POINTS},
}
METHODS = {
    "observe": (DETECTOR.observe, {"vector": POINTS[0]}),
    "plan_blocks": (lambda rows_per_block: list(SOLVED.plan_blocks(rows_per_block)), {"rows_per_block": 2}),
    "stages": (EpsilonSchedule(1.0).stages, {"target": 0.1}),
    "subset": (VectorSet(POINTS).subset, {"kept": [0]}),
    "restore": (OnlineDriftDetector.restore, {}),
    "save": (DETECTOR.save, {}),
}
WRONG = [
    None,
    True,
    0,
    -1,
    3,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    1e-308,
    10**400,
    "x",
    "",
    b"x",
    object(),
    {},
    [],
    (),
    (None, None),
    np.array(3.0),
    np.array([]),
    np.zeros((2, 2, 2)),
    np.full((9, 3), 1e200),
    np.full((9, 9), 1.7e308),
    np.full((9, 3), 3e38, np.float32),
    np.full(9, 1e308),
    np.full(9, 5e-324),
    np.array([None] * 9),
    [[1.0], [1.0, 2.0]],
    int,
]
NOT_CHECKED = {"name"}


def test_every_public_callable_is_walked():
    plain = {
        name
        for name in lattice_transport.__all__
        if callable(getattr(lattice_transport, name)) and not name.endswith(("Error", "Result"))
    }
    made_by_us = {
        "DivergenceGradient",
        "DriftItems",
        "DriftObservation",
        "DriftReport",
        "DriftSummary",
        "DriftVerdict",
        "SelfTerm",
        "SinkhornProgress",
        "SinkhornStage",
        "SparsePlan",
        "Verdict",
    }
    assert plain - made_by_us == set(CALLS)


@pytest.mark.parametrize("name", [*CALLS, *METHODS])
def test_wrong_values_have_typed_errors_and_no_warnings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, usual = METHODS[name] if name in METHODS else (getattr(lattice_transport, name), CALLS[name])
    for parameter in inspect.signature(function).parameters:
        if parameter in NOT_CHECKED:
            continue
        for value in WRONG:
            if parameter == "observer" and value is int:
                continue  # what a caller's function raises is the caller's
            if name == "restore" and isinstance(value, str) and value:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                message = ""
                try:
                    function(**{**usual, parameter: value})
                except TransportError as error:
                    message = str(error)
                except Exception as error:
                    raise AssertionError(f"{name}({parameter}={value!r}): {error!r}") from error
                assert "\n" not in message
                assert len(message) < 500


@pytest.mark.parametrize("scale", [1e60, 1e150, 1e200, 1e308, 1e-160, 1e-308])
def test_costs_of_any_size_leak_no_warnings(scale):
    points = POINTS / np.abs(POINTS).max() * scale
    calls = [
        lambda: lattice_transport.emd(None, None, np.abs(points @ np.ones(3))[:, None] * np.ones(9)),
        lambda: solve(None, None, np.abs(points)),
        lambda: solve(None, None, np.abs(points), precision="float32"),
        lambda: solve(np.full(9, 1e9), np.full(3, 3e9), np.abs(points)),
        lambda: lattice_transport.solve_unbalanced(None, None, np.abs(points)),
        lambda: lattice_transport.barycenter([np.abs(points)]),
        lambda: lattice_transport.sinkhorn_divergence(None, None, PointClouds(points, -points)),
        lambda: lattice_transport.cost_matrix(points, points, "euclidean"),
        lambda: lattice_transport.cost_matrix(points, points, "cosine"),
        lambda: lattice_transport.detect_drift(points, -points, permutations=19),
        lambda: lattice_transport.wasserstein_1d(points[:, 0], points[:, 1], p=3),
        lambda: lattice_transport.sliced_wasserstein(points, -points),
        lambda: lattice_transport.gaussian_wasserstein(*[lattice_transport.fit_gaussian(points)] * 2),
        lambda: lattice_transport.free_support_barycenter([points], points[:2], max_updates=1),
        lambda: OnlineDriftDetector(16, reference=np.concatenate([points] * 4), permutations=99).observe(points[0]),
    ]
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with contextlib.suppress(TransportError):
                call()


def test_messages_show_the_value_but_not_a_page_of_it():
    with pytest.raises(InvalidInputError, match=r"\.\.\. \(int\)"):
        SinkhornConfig(max_iterations=10**400)
    with pytest.raises(InvalidInputError, match="a int"):
        SinkhornConfig(max_iterations=10**6000)
    with pytest.raises(InvalidInputError):
        EpsilonSchedule(start=True)
    with pytest.raises(InvalidInputError):
        SinkhornWorkspace(1 << 50, 1 << 50)
    with pytest.raises(InvalidInputError):
        VectorSet(POINTS, ids=5)


def test_integers_of_numpy_are_integers():
    assert SinkhornConfig(max_iterations=np.int64(5)).max_iterations == 5
    assert solve(None, None, CLOUDS, max_iterations=np.int32(700)).iterations <= 700


@pytest.mark.parametrize("flag", ["yes", 2, 0.5, math.nan, None, [], np.array([True, False])])
def test_what_is_neither_true_nor_false_is_no_flag(flag):
    for call in (
        lambda: SinkhornConfig(error_on_non_convergence=flag),
        lambda: SinkhornWorkspace(3, 3, clouds=flag),
        lambda: lattice_transport.emd(None, None, CLOUDS, error_on_non_convergence=flag),
        lambda: lattice_transport.barycenter([CLOUDS], debiased=flag),
        lambda: lattice_transport.barycenter([CLOUDS], error_on_non_convergence=flag),
        lambda: lattice_transport.detect_drift(POINTS, POINTS, permutations=19, baselines=flag),
    ):
        with pytest.raises(InvalidInputError, match="must be True or False"):
            call()


def test_flags_of_numpy_and_ones_and_zeros_are_taken():
    for flag in (np.True_, 1, np.int64(1)):
        assert SinkhornWorkspace(3, 3, clouds=flag).clouds is True
    assert SinkhornWorkspace(3, 3, clouds=0).clouds is False


@pytest.mark.parametrize("kept", [[9], [-10], [0.5], [True, False], [[0]], 0, None, [2**63], "x"])
def test_positions_that_a_set_lacks_are_refused(kept):
    with pytest.raises(InvalidInputError, match="positions"):
        VectorSet(POINTS).subset(kept)


def test_a_subset_keeps_ids_and_weights():
    part = VectorSet(POINTS, np.arange(1.0, 10.0), ids=list("abcdefghi")).subset(np.array([7, -9]))
    assert part.ids == ["h", "a"]
    assert np.array_equal(part.array, POINTS[[7, 0]])
    assert np.allclose(part.weights, [8 / 9, 1 / 9])


def test_more_rows_a_block_than_there_are_make_one_block():
    ((first, block),) = SOLVED.plan_blocks(2**50)
    assert first == 0
    assert np.array_equal(block, SOLVED.plan())


@pytest.mark.parametrize("permutations", [100_001, 10**20, 2**63])
def test_permutations_have_a_bound(permutations):
    with pytest.raises(InvalidInputError, match=r"from 1 to 100000"):
        lattice_transport.detect_drift(POINTS, POINTS, permutations=permutations)


def test_permutations_of_large_samples_have_a_lower_bound():
    points = np.zeros((1000, 1))
    with pytest.raises(InvalidInputError, match="at most 17,179, or give a smaller max_samples"):
        lattice_transport.detect_drift(points, points, permutations=17_180)


def test_a_rate_that_no_permutations_resolve_is_refused():
    with pytest.raises(InvalidInputError, match="cannot resolve"):
        lattice_transport.detect_drift(POINTS, POINTS, false_alarm_rate=5e-324)


def test_a_matrix_without_memory_is_a_typed_error():
    with pytest.raises(MemoryError, match=r"1,099,511,627,776 x 1,099,511,627,776.*fewer vectors") as raised:
        large_matrix("a cost matrix", 2**40, 2**40)
    assert isinstance(raised.value, TransportError)


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda **options: solve(None, None, np.eye(3), **options), {"epsilon": 0.1}),
        (lambda **options: solve(None, None, np.eye(3), **options), {"epsilon_schedule": None, "max_iterations": 500}),
        (lambda **options: solve_unbalanced(None, None, np.eye(3), **options), {"precision": "auto"}),
        (
            lambda **options: sinkhorn_divergence(None, None, PointClouds(np.eye(3), np.eye(3)), **options),
            {"epsilon": 1},
        ),
        (lambda **options: free_support_barycenter([np.eye(3)], np.eye(3), **options), {"epsilon": 1}),
    ],
)
def test_a_config_beside_its_settings_is_refused(call, given):
    config = SinkhornConfig(epsilon=0.5)
    with pytest.raises(InvalidInputError, match=rf"got config and .*{next(iter(given))}.*or give no config"):
        call(config=config, **given)
    call(config=config, **({"epsilon": None} if "epsilon" in given else {}))
    call(**given)
