"""The float64 vocabulary and the bounded exponentials of the shared headers, on every instruction set of this CPU."""

import mpmath
import numpy as np
import pytest

from lattice_transport import _transport

ISAS = _transport.available_isas()


@pytest.fixture(params=ISAS)
def isa(request):
    yield _transport.select_isa(request.param)
    _transport.select_isa()


def ulps(got, x, function):
    """The largest error in units of the last place of the true value."""
    worst = 0.0
    with mpmath.workdps(40):
        for value, argument in zip(got, x, strict=True):
            true = function(mpmath.mpf(float(argument)))
            spacing = float(np.spacing(np.abs(value.dtype.type(float(true)))))
            worst = max(worst, float(abs(mpmath.mpf(float(value)) - true) / mpmath.mpf(spacing)))
    return worst


def drawn(low, high, dtype, count=2000):
    return np.random.default_rng(0).uniform(low, high, count).astype(dtype)


@pytest.mark.parametrize(
    ("function", "true", "x"),
    [
        ("exp", mpmath.exp, drawn(-708, 709, np.float64)),
        ("exp", mpmath.exp, drawn(-1, 1, np.float64)),
        ("exp", mpmath.exp, drawn(-745, -708, np.float64, 500)),
        ("log", mpmath.log, drawn(0.5, 2.0, np.float64)),
        ("log", mpmath.log, 1.0 + drawn(-1e-4, 1e-4, np.float64, 500)),
        ("log", mpmath.log, 2.0 ** drawn(-1074, 1023, np.float64)),
        ("exp2", lambda t: mpmath.power(2, t), drawn(-1021, 1000, np.float64)),
        ("exp2", lambda t: mpmath.power(2, t), drawn(-125, 126, np.float32)),
        ("exp2", lambda t: mpmath.power(2, t), drawn(-1, 1, np.float32)),
    ],
)
def test_functions_are_within_two_ulp(isa, function, true, x):
    x = x[x != 0]
    assert ulps(_transport.elementwise(function, x), x, true) <= 2.0


def test_limits_are_those_of_the_functions(isa):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 800.0, -800.0])
    np.testing.assert_array_equal(_transport.elementwise("exp", x), [np.inf, 0, np.nan, 1, 1, np.inf, 0])
    x = np.array([np.inf, 0.0, -1.0, np.nan, 1.0, 5e-324])
    got = _transport.elementwise("log", x)
    np.testing.assert_array_equal(got[:5], [np.inf, -np.inf, np.nan, np.nan, 0.0])
    assert got[5] == pytest.approx(-744.4400719213812, abs=1e-12)


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, 2.0**-126), (np.float64, 2.0**-1022)])
def test_bounded_power_stops_at_the_least_normal_number(isa, dtype, least):
    x = np.array([-1e5, -1080.0 if dtype == np.float64 else -140.0, np.nan], dtype)
    got = _transport.elementwise("exp2", x)
    assert got[0] == got[1] == dtype(least)
    assert np.isnan(got[2])


def test_levels_with_fused_multiply_add_agree_bit_for_bit():
    fused = [name for name in ISAS if name != "baseline"]
    for dtype in (np.float32, np.float64):
        x = drawn(-100, 100, dtype)
        for function in ("exp", "log", "exp2"):
            results = []
            for name in fused:
                _transport.select_isa(name)
                results.append(_transport.elementwise(function, x))
            for other in results[1:]:
                np.testing.assert_array_equal(results[0], other)
    _transport.select_isa()


def test_unknown_level_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="no instruction set"):
        _transport.select_isa("sse9")
    monkeypatch.setenv("LATTICE_ISA", "nope")
    with pytest.raises(ValueError, match="LATTICE_ISA"):
        _transport.select_isa()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000, 100_003])
def test_extremes_find_the_first_value_that_is_not_finite(isa, dtype, size):
    values = np.random.default_rng(0).normal(size=size).astype(dtype)
    least, most, bad = _transport.extremes(values)
    assert bad == -1
    if size:
        assert (least, most) == (values.min(), values.max())
        for value in (np.nan, np.inf, -np.inf):
            damaged = values.copy()
            damaged[size // 2 :] = value
            assert _transport.extremes(damaged)[2] == size // 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(300, 290), (64, 1000), (1, 5), (7, 1)])
def test_results_do_not_depend_on_the_number_of_threads(dtype, shape):
    from lattice_transport import PointClouds, costs, solve

    before = _transport.get_num_threads()
    random = np.random.default_rng(0)
    cost = random.random(shape).astype(dtype)
    x, y = random.random((shape[0], 9)).astype(dtype), random.random((shape[1], 9)).astype(dtype)
    limit = costs._MATRIX_BYTES
    results = []
    try:
        for threads in (1, 2, 3, 8):
            _transport.set_num_threads(threads)
            costs._MATRIX_BYTES = 0
            over_tiles = solve(None, None, PointClouds(x, y), epsilon=0.1)
            costs._MATRIX_BYTES = limit
            results.append((solve(None, None, cost, epsilon=0.1).plan(), over_tiles.plan(), over_tiles.transport_cost))
    finally:
        costs._MATRIX_BYTES = limit
        _transport.set_num_threads(before)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])
        assert results[0][2] == other[2]


def test_every_level_solves_alike(isa):
    from lattice_transport import solve

    cost = np.random.default_rng(0).random((70, 50))
    result = solve(None, None, cost, epsilon=0.02, convergence_threshold=1e-10)
    _transport.select_isa()
    best = solve(None, None, cost, epsilon=0.02, convergence_threshold=1e-10)
    np.testing.assert_allclose(result.plan(), best.plan(), atol=1e-11)
