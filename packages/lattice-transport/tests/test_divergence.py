import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_transport import (
    DimensionMismatchError,
    InvalidEpsilonError,
    PointClouds,
    SinkhornConfig,
    self_term,
    sinkhorn_divergence,
    solve,
)

EXACT = SinkhornConfig(epsilon=0.1, convergence_threshold=1e-11, max_iterations=20_000)


def clouds(seed, n=20, m=15, shift=0.3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=(m, 3)) + shift


def weights(seed, n):
    drawn = np.random.default_rng(seed).random(n) + 0.05
    return drawn / drawn.sum()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 25),
    m=st.integers(1, 25),
    epsilon=st.sampled_from([3.0, 0.5]),
    metric=st.sampled_from(["sqeuclidean", "euclidean", "cosine"]),
)
def test_divergence_is_symmetric_zero_on_itself_and_not_negative(seed, n, m, epsilon, metric):
    x, y = clouds(seed, n, m)
    a, b = weights(seed, n), weights(seed + 1, m)
    config = SinkhornConfig(epsilon=epsilon, convergence_threshold=1e-10, max_iterations=4000)
    forward = sinkhorn_divergence(a, b, PointClouds(x, y, metric), config=config)
    backward = sinkhorn_divergence(b, a, PointClouds(y, x, metric), config=config)
    itself = sinkhorn_divergence(a, a, PointClouds(x, x, metric), config=config)
    # points far apart for epsilon may take longer: the value is then as good as the residuals say
    for result in (forward, backward, itself):
        assert result.converged or result.cross.last_error < 1e-4
    allowed = 1e-8 if forward.converged and backward.converged and itself.converged else 1e-4
    assert forward.value == pytest.approx(backward.value, abs=allowed)
    assert forward.raw_value >= -allowed
    assert abs(itself.raw_value) <= allowed
    assert float(forward) == forward.value


def test_divergence_agrees_with_the_sum_of_plain_solves():
    x, y = clouds(3)
    divergence = sinkhorn_divergence(None, None, PointClouds(x, y), config=EXACT)
    plain = [solve(None, None, PointClouds(p, q), config=EXACT) for p, q in ((x, y), (x, x), (y, y))]
    expected = plain[0].regularized_cost - 0.5 * (plain[1].regularized_cost + plain[2].regularized_cost)
    assert divergence.value == pytest.approx(expected, abs=1e-6)
    # the plain entropic cost of a set with itself is biased; that is what the divergence removes
    assert plain[1].transport_cost > 0.001
    assert divergence.source.iterations < 60


def test_biased_cost_of_a_set_with_itself_is_removed():
    x = np.linspace(0, 1, 6)[:, None]
    biased = solve(None, None, PointClouds(x, x), config=EXACT)
    assert biased.transport_cost > 0.01
    assert sinkhorn_divergence(None, None, PointClouds(x, x), config=EXACT).value < 1e-9


def test_a_shift_is_measured_for_what_it_is():
    x, _ = clouds(0, 200)
    shifted = x + np.array([2.0, 0.0, 0.0])
    divergence = sinkhorn_divergence(None, None, PointClouds(x, shifted), epsilon=0.5)
    assert math.sqrt(divergence.value) == pytest.approx(2.0, rel=1e-3)


def test_cached_self_terms_give_the_same_value():
    x, y = clouds(1)
    a, b = weights(0, 20), weights(1, 15)
    source, target = self_term(x, a, config=EXACT), self_term(y, b, config=EXACT)
    whole = sinkhorn_divergence(a, b, PointClouds(x, y), config=EXACT)
    cached = sinkhorn_divergence(a, b, PointClouds(x, y), config=EXACT, source_term=source, target_term=target)
    half = sinkhorn_divergence(a, b, PointClouds(x, y), config=EXACT, source_term=source)
    assert cached.raw_value == whole.raw_value == half.raw_value
    with pytest.raises(DimensionMismatchError, match="epsilon"):
        sinkhorn_divergence(a, b, PointClouds(x, y), epsilon=0.2, source_term=source)
    with pytest.raises(DimensionMismatchError, match="self term"):
        sinkhorn_divergence(a, b, PointClouds(x, y), config=EXACT, source_term=target)


def test_matrices_may_be_given():
    x, y = clouds(2)
    matrices = tuple(PointClouds(p, q).matrix() for p, q in ((x, y), (x, x), (y, y)))
    by_matrix = sinkhorn_divergence(None, None, matrices, config=EXACT)
    assert by_matrix.value == pytest.approx(
        sinkhorn_divergence(None, None, PointClouds(x, y), config=EXACT).value, abs=1e-12
    )
    with pytest.raises(DimensionMismatchError, match="within the source"):
        sinkhorn_divergence(None, None, (matrices[0], matrices[2], matrices[1]), config=EXACT)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.sampled_from([0.3, 1.0, 10.0]), epsilon=st.sampled_from([1.0, 0.2]))
def test_unbalanced_divergence_is_symmetric_zero_on_itself_and_not_negative(seed, tau, epsilon):
    x, y = clouds(seed, 12, 9)
    a, b = weights(seed, 12), 1.7 * weights(seed + 1, 9)
    config = SinkhornConfig(epsilon=epsilon, convergence_threshold=1e-13, max_iterations=20_000)
    forward = sinkhorn_divergence(a, b, PointClouds(x, y), config=config, tau=tau)
    backward = sinkhorn_divergence(b, a, PointClouds(y, x), config=config, tau=tau)
    itself = sinkhorn_divergence(a, a, PointClouds(x, x), config=config, tau=tau)
    assert forward.value == pytest.approx(backward.value, abs=1e-8)
    assert forward.raw_value > 0
    assert abs(itself.raw_value) <= 1e-8


@pytest.mark.parametrize(("source", "target"), [(2.0, 1.0), (0.5, 3.0), (1.0, 1.0)])
def test_unbalanced_divergence_of_two_masses_at_one_point_has_its_closed_form(source, target):
    """Each term is a minimum over one mass p; the product measure of the entropic term has mass a b.

    The minimum of epsilon KL(p | a b) + tau KL(p | a) + tau KL(p | b) lies at ln p = ln(a b) (epsilon + tau) / (epsilon
    + 2 tau).
    """
    tau, epsilon = 1.0, 1.0

    def term(a, b):
        p = (a * b) ** ((epsilon + tau) / (epsilon + 2 * tau))

        def kl(reference):
            return p * math.log(p / reference) - p + reference

        return epsilon * kl(a * b) + tau * kl(a) + tau * kl(b)

    expected = term(source, target) - 0.5 * (term(source, source) + term(target, target))
    expected += 0.5 * epsilon * (source - target) ** 2
    config = SinkhornConfig(epsilon=epsilon, convergence_threshold=1e-14, max_iterations=20_000)
    point = PointClouds([[0.0]], [[0.0]])
    divergence = sinkhorn_divergence([source], [target], point, config=config, tau=tau)
    assert divergence.raw_value == pytest.approx(expected, abs=1e-10)
    if source == 2.0:
        assert expected == pytest.approx(0.5175600, abs=1e-7)


def test_bad_tau_is_refused():
    x, y = clouds(0)
    with pytest.raises(InvalidEpsilonError, match="tau"):
        sinkhorn_divergence(None, None, PointClouds(x, y), tau=-1.0)


def test_divergence_in_float32_is_close():
    x, y = clouds(4, 100, 80)
    wide = sinkhorn_divergence(None, None, PointClouds(x, y), epsilon=1.0)
    narrow = sinkhorn_divergence(None, None, PointClouds(x.astype(np.float32), y.astype(np.float32)), epsilon=1.0)
    assert narrow.cross.precision == "float32"
    assert narrow.value == pytest.approx(wide.value, abs=2e-5)
