"""What arrays are taken, and what those that are not are told."""

import numpy as np
import pytest
from scipy import sparse

from lattice_transport import (
    Gaussian,
    InvalidInputError,
    OnlineDriftDetector,
    PointClouds,
    VectorSet,
    barycenter,
    barycentric_projection,
    cost_matrix,
    detect_drift,
    emd,
    fit_gaussian,
    free_support_barycenter,
    normalize_weights,
    self_term,
    sinkhorn_divergence,
    sliced_wasserstein,
    solve,
    solve_batch,
    solve_unbalanced,
    wasserstein_1d,
)

POINTS = np.random.default_rng(0).normal(size=(9, 3))
WEIGHTS = np.full(9, 1 / 9)
COST = cost_matrix(POINTS, POINTS)
SOLVED = solve(None, None, COST, epsilon=1.0)

ENTRIES = {
    "solve cost": (COST, lambda x: solve(None, None, x)),
    "solve a": (WEIGHTS, lambda x: solve(x, None, COST)),
    "solve b": (WEIGHTS, lambda x: solve(None, x, COST)),
    "warm start": (SOLVED.log_u, lambda x: solve(None, None, COST, warm_start=(x, SOLVED.log_v))),
    "batch": (COST, lambda x: solve_batch([(None, None, x)])),
    "unbalanced": (COST, lambda x: solve_unbalanced(None, None, x)),
    "unbalanced a": (WEIGHTS, lambda x: solve_unbalanced(x, None, COST)),
    "clouds x": (POINTS, lambda x: PointClouds(x, POINTS)),
    "clouds y": (POINTS, lambda x: PointClouds(POINTS, x)),
    "cost matrix": (POINTS, lambda x: cost_matrix(x, POINTS)),
    "divergence": (COST, lambda x: sinkhorn_divergence(None, None, (x, COST, COST))),
    "divergence within": (COST, lambda x: sinkhorn_divergence(None, None, (COST, COST, x))),
    "divergence weights": (WEIGHTS, lambda x: sinkhorn_divergence(x, None, PointClouds(POINTS, POINTS))),
    "self term": (POINTS, lambda x: self_term(x)),
    "self term weights": (WEIGHTS, lambda x: self_term(POINTS, x)),
    "emd cost": (COST, lambda x: emd(None, None, x)),
    "emd weights": (WEIGHTS, lambda x: emd(None, x, COST)),
    "line": (POINTS[:, 0].copy(), lambda x: wasserstein_1d(x, POINTS[:, 1])),
    "line weights": (WEIGHTS, lambda x: wasserstein_1d(POINTS[:, 0], POINTS[:, 1], x)),
    "slices": (POINTS, lambda x: sliced_wasserstein(POINTS, x)),
    "gaussian": (POINTS, lambda x: fit_gaussian(x)),
    "mean": (POINTS[0], lambda x: Gaussian(x, np.eye(3))),
    "covariance": (np.eye(3), lambda x: Gaussian(np.zeros(3), x)),
    "weights": (WEIGHTS, lambda x: normalize_weights(x)),
    "barycenter": (COST, lambda x: barycenter([x])),
    "barycenter weights": (WEIGHTS, lambda x: barycenter([COST], [x])),
    "barycenter lambdas": (np.ones(1), lambda x: barycenter([COST], lambdas=x)),
    "barycenter support": (COST, lambda x: barycenter([COST], debiased=True, support_cost=x)),
    "free support": (POINTS, lambda x: free_support_barycenter([x], POINTS[:2], max_updates=1)),
    "free support start": (POINTS, lambda x: free_support_barycenter([POINTS], x, max_updates=1)),
    "projection": (POINTS, lambda x: barycentric_projection(SOLVED, x)),
    "drift reference": (POINTS, lambda x: detect_drift(x, POINTS, permutations=19)),
    "drift current": (POINTS, lambda x: detect_drift(POINTS, x, permutations=19)),
    "vector set": (POINTS, lambda x: VectorSet(x)),
    "vector set weights": (WEIGHTS, lambda x: VectorSet(POINTS, x)),
    "detector": (np.repeat(POINTS, 4, axis=0), lambda x: OnlineDriftDetector(16, reference=x)),
    "stream": (POINTS[0], lambda x: OnlineDriftDetector(16).observe(x)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_masked_arrays_are_refused_with_what_to_do(entry):
    array, call = ENTRIES[entry]
    masked = np.ma.masked_array(array, mask=np.zeros(array.shape, bool))
    masked.mask.flat[0] = True
    for given in (masked, list(masked)):
        with pytest.raises(InvalidInputError, match=r"masked array.*filled"):
            call(given)
    call(array)


@pytest.mark.parametrize("entry", ENTRIES)
def test_arrays_of_other_things_than_real_numbers_are_refused(entry):
    array, call = ENTRIES[entry]
    wrong = {
        "object": array.astype(object),
        "real part": array.astype(complex),
        "strings": array.astype(str),
        "bytes": array.astype("S"),
        "datetime": array.astype("datetime64[s]"),
    }
    for message, given in wrong.items():
        with pytest.raises(InvalidInputError, match=message):
            call(given)
    with pytest.raises(InvalidInputError, match="toarray"):
        call(sparse.csr_matrix(np.atleast_2d(array)))
    for given in ({}, "x", [10**400], [[1.0], [1.0, 2.0]], object()):
        with pytest.raises(InvalidInputError):
            call(given)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint64, bool, ">f8", np.longdouble])
def test_other_real_numbers_are_taken(dtype):
    cost = np.arange(6).reshape(2, 3).astype(dtype)
    result = solve(None, None, cost, epsilon=1.0)
    assert result.plan().dtype == (np.float32 if dtype is np.float16 else np.float64)
    np.testing.assert_allclose(result.plan(), solve(None, None, cost.astype(float), epsilon=1.0).plan(), atol=1e-5)
    assert emd(None, None, cost).cost == emd(None, None, cost.astype(float)).cost


def test_longer_floats_beyond_the_range_are_refused_without_a_warning():
    big = np.array([[np.longdouble("1e400"), 1.0]])
    if not np.isfinite(big).all():
        pytest.skip("long doubles are doubles here")
    with pytest.raises(InvalidInputError, match="finite"):
        solve(None, None, big)
    with pytest.raises(InvalidInputError, match="finite"):
        solve(None, big[0], [[1.0, 2.0]])
