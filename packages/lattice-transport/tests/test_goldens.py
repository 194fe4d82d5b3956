"""Our results beside POT's, from a committed file: see tools/goldens/transport_goldens.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from lattice_transport import barycenter, emd, solve, solve_unbalanced

with np.load(Path(__file__).parent / "data" / "pot_goldens.npz") as _file:
    GOLDENS = {name: _file[name] for name in _file.files}
ABOUT = json.loads(GOLDENS["about"].tobytes())
CASES = {f"{case['index']}-{case['epsilon']:g}": case for case in ABOUT["cases"]}


def parts(case, *names):
    return (GOLDENS[f"{case['index']}_{name}"] for name in names)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_balanced_plan(case):
    a, b, cost, plan = parts(case, "a", "b", "cost", "balanced")
    result = solve(a, b, cost, epsilon=case["epsilon"], convergence_threshold=1e-10, max_iterations=50_000)
    assert result.converged
    assert np.abs(result.plan() - plan).max() <= 1e-6
    assert abs(result.transport_cost - (plan * cost).sum()) <= 1e-6


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exact_cost(case):
    a, b, cost, value = parts(case, "a", "b", "cost", "exact")
    assert emd(a, b, cost).cost == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES.values() if "unbalanced" in case["kinds"]])
def test_unbalanced_plan(case):
    a, b, cost, plan = parts(case, "a", "b", "cost", "unbalanced")
    result = solve_unbalanced(
        1.5 * a,
        b,
        cost,
        epsilon=case["epsilon"],
        tau_source=0.5,
        tau_target=0.8,
        convergence_threshold=1e-14,
        max_iterations=20_000,
    )
    assert np.abs(result.plan() - plan).max() <= 1e-6


def test_barycentre():
    measures, cost = GOLDENS["barycenter_measures"], GOLDENS["barycenter_cost"]
    result = barycenter(
        [cost, cost], measures, lambdas=[0.4, 0.6], epsilon=0.005, convergence_threshold=1e-9, max_iterations=10_000
    )
    assert result.converged
    assert np.abs(result.weights - GOLDENS["barycenter"]).max() <= 1e-6
