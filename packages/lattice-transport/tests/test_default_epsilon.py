"""Epsilon where none is given: a twentieth of the median cost."""

import json
import math

import numpy as np
import pytest

from lattice_transport import (
    PointClouds,
    SinkhornConfig,
    barycenter,
    cost_matrix,
    free_support_barycenter,
    self_term,
    sinkhorn_divergence,
    solve,
    solve_batch,
    solve_unbalanced,
)
from lattice_transport.cli import main
from lattice_transport.costs import as_cost
from lattice_transport.epsilon import default_epsilon


def clouds(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return PointClouds(scale * rng.normal(size=(41, 16)), scale * (rng.normal(size=(31, 16)) + 0.5))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_every_function_takes_a_twentieth_of_the_median_cost(scale):
    pair = clouds(scale=scale)
    cost = pair.matrix()
    expected = pytest.approx(0.05 * np.median(cost), rel=1e-12)
    for epsilon in ({}, {"epsilon": None}, {"config": SinkhornConfig(max_iterations=2000)}):
        assert solve(None, None, cost, **epsilon).epsilon == expected
        assert solve_unbalanced(None, None, pair, tau_source=scale**2, **epsilon).epsilon == expected
        divergence = sinkhorn_divergence(None, None, pair, **epsilon)
        assert divergence.epsilon == divergence.source.epsilon == divergence.target.epsilon == expected
    assert solve_batch([(None, None, cost), (None, None, 2 * cost)])[1].epsilon == pytest.approx(0.1 * np.median(cost))
    both = barycenter([cost, 3 * cost])
    assert both.epsilon == pytest.approx(0.05 * np.median(np.concatenate([cost, 3 * cost])), rel=1e-9)
    moved = free_support_barycenter([pair.x, pair.y], np.asarray(pair.x)[:5], max_updates=1)
    start = np.concatenate([cost_matrix(np.asarray(pair.x)[:5], part).ravel() for part in (pair.x, pair.y)])
    assert moved.epsilon == pytest.approx(0.05 * np.median(start), rel=1e-9)


def test_number_stays_in_units_of_the_cost():
    assert solve(None, None, clouds(), epsilon=7.0).epsilon == 7.0
    assert barycenter([clouds().matrix()], epsilon=7.0).epsilon == 7.0


@pytest.mark.parametrize("kind", ["normal", "clusters", "pixels", "units"])
def test_default_converges(kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 16))
    y = rng.normal(size=(50, 16)) + 0.5
    if kind == "clusters":
        x[:30] += 20.0
        y[:20] += 20.0
    elif kind == "pixels":
        x, y = rng.integers(0, 255, (60, 2)).astype(float), rng.integers(0, 255, (50, 2)).astype(float)
    elif kind == "units":
        x, y = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, y))
    result = solve(None, None, PointClouds(x, y))
    assert result.converged
    assert sinkhorn_divergence(None, None, PointClouds(x, y)).converged


@pytest.mark.parametrize(
    ("cost", "scale"),
    [
        ([[0.0, 0.0, 0.0], [0.0, 4.0, 6.0]], 5.0),  # most are zero: of those that are not
        ([[0.0, 0.0]], 1.0),
        ([[-3.0, -5.0, 1.0]], 3.0),
        ([[1.0, 2.0]], 1.5),
        ([[2.0, 3.0, 4.0]], 3.0),
    ],
)
def test_median_that_is_no_scale_falls_back(cost, scale):
    assert default_epsilon(as_cost(cost)) == pytest.approx(0.05 * scale)
    assert solve(None, None, cost).converged


def test_points_without_mass_do_not_count():
    cost = np.array([[1.0, 2.0, 3.0], [1e9, 1e9, 1e9], [1e9, 1e9, 1e9]])
    assert solve([1, 0, 0], None, cost * 1.0, epsilon=None, min_marginal=1e-12).epsilon == pytest.approx(0.1)


def test_self_term_gives_its_epsilon_to_a_divergence():
    pair = clouds()
    term = self_term(pair.x)
    divergence = sinkhorn_divergence(None, None, pair, source_term=term)
    assert divergence.epsilon == term.result.epsilon


def test_large_costs_are_sampled_and_always_alike():
    rng = np.random.default_rng(2)
    cost = rng.random((1200, 1100))
    cost[::2] += 10.0  # a pattern that even steps would meet
    first = default_epsilon(as_cost(cost))
    assert first == default_epsilon(as_cost(cost.copy()))
    assert 0.05 < first / 0.05 < 10.5
    tall = rng.random((1_000_001, 1))
    assert default_epsilon(as_cost(tall)) == pytest.approx(0.025, rel=0.01)
    assert math.isfinite(default_epsilon(as_cost([[1e308, 1e308]])))


def test_command_line_takes_it_and_tells_it(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 16)), rng.normal(size=(200, 16)) + 0.5  # the README's
    names = [str(tmp_path / name) for name in ("monday.npy", "tuesday.npy")]
    np.save(names[0], x)
    np.save(names[1], y)
    assert main(["distance", *names, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["converged"]
    assert report["epsilon"] == pytest.approx(0.05 * np.median(cost_matrix(x, y)), rel=1e-9)
    assert main(["distance", *names]) == 0
    assert f"{report['epsilon']:.6g}" in capsys.readouterr().out
    target = str(tmp_path / "mean.npy")
    assert main(["barycenter", *names, "--points", "10", "--output", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] > 0.5
