"""Losses and their gradients against PyTorch and central differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lattice_tune.lora.head import HeadMatrices, head_logits, through_head
from lattice_tune.lora.losses import (
    binary_cross_entropy,
    cosent_loss,
    cosine_loss,
    cross_entropy,
    rank_correlation,
    ranking_loss,
    triplet_loss,
)

GOLDENS = Path(__file__).parents[1] / "data" / "lora" / "torch.npz"


@pytest.fixture(scope="module")
def torch_results() -> dict[str, np.ndarray]:
    with np.load(GOLDENS) as archive:
        return {name: archive[name] for name in archive.files}


def check(results: dict[str, np.ndarray], name: str, loss: float, *gradients: np.ndarray) -> None:
    assert loss == pytest.approx(float(results[name]), rel=1e-12)
    for place, gradient in enumerate(gradients):
        np.testing.assert_allclose(gradient, results[f"{name}_d{place}"], rtol=1e-10, atol=1e-13)


def test_losses_and_gradients_are_those_of_pytorch(torch_results: dict[str, np.ndarray]) -> None:
    a, b, c, scores = (torch_results[name] for name in ("a", "b", "c", "scores"))
    loss, d_a, d_rest, _ = ranking_loss(a, np.concatenate([b, c]), 20.0)
    check(torch_results, "ranking", loss, d_a, d_rest[:6], d_rest[6:])
    check(torch_results, "cosent", *cosent_loss(a, b, scores, 20.0)[:3])
    check(torch_results, "cosine", *cosine_loss(a, b, scores)[:3])
    check(torch_results, "triplet", *triplet_loss(a, b, c, 0.5)[:4])
    check(torch_results, "ce", *cross_entropy(torch_results["logits"], torch_results["classes"])[:2])
    loss, d_column, _ = binary_cross_entropy(torch_results["logits"][:, 0], scores)
    whole = np.zeros((6, 4))
    whole[:, 0] = d_column
    check(torch_results, "bce", loss, whole)


def slope(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Return the gradient by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-6
        found[place] = (function(at + step) - function(at - step)) / 2e-6
    return found


def test_a_head_passes_its_gradient_to_the_vectors_and_to_itself() -> None:
    random = np.random.RandomState(0)
    vectors, classes = random.standard_normal((5, 4)), np.array([0, 2, 1, 2, 0])
    weight, bias = random.standard_normal((3, 4)), random.standard_normal(3)

    def loss(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> float:
        return cross_entropy(head_logits(HeadMatrices(w, b), x, 3.0), classes)[0]

    head = HeadMatrices(weight, bias)
    d_logits = cross_entropy(head_logits(head, vectors, 3.0), classes)[1]
    d_vectors, d_head = through_head(head, vectors, 3.0, d_logits)
    np.testing.assert_allclose(d_vectors, slope(lambda x: loss(x, weight, bias), vectors), atol=1e-8)
    np.testing.assert_allclose(d_head.weight, slope(lambda w: loss(vectors, w, bias), weight), atol=1e-8)
    np.testing.assert_allclose(d_head.bias, slope(lambda b: loss(vectors, weight, b), bias), atol=1e-8)


def test_ignored_candidates_are_no_negatives() -> None:
    random = np.random.RandomState(0)
    a, c = random.standard_normal((3, 4)), random.standard_normal((3, 4))
    c[2] = c[0]
    ignored = np.zeros((3, 3), np.bool_)
    ignored[0, 2] = ignored[2, 0] = True
    loss, d_a, d_c, _ = ranking_loss(a, c, 5.0, ignored)
    np.testing.assert_allclose(d_a, slope(lambda x: ranking_loss(x, c, 5.0, ignored)[0], a), atol=1e-8)
    np.testing.assert_allclose(d_c, slope(lambda x: ranking_loss(a, x, 5.0, ignored)[0], c), atol=1e-8)
    assert loss < ranking_loss(a, c, 5.0)[0]


def test_rows_of_zeros_and_huge_logits_have_finite_losses() -> None:
    zeros = np.zeros((2, 3))
    for loss, *rest in (
        cosine_loss(zeros, zeros, np.array([1.0, 0.0])),
        cosent_loss(zeros, zeros, np.array([1.0, 0.0]), 20.0),
        binary_cross_entropy(np.array([1e4, -1e4]), np.array([0.0, 1.0])),
        cross_entropy(np.array([[1e4, -1e4]]), np.array([1])),
    ):
        assert np.isfinite(loss)
        assert all(np.isfinite(part).all() for part in rest)


def test_scores_that_are_all_equal_teach_cosent_nothing() -> None:
    random = np.random.RandomState(0)
    loss, d_a, d_b, _ = cosent_loss(random.standard_normal((3, 4)), random.standard_normal((3, 4)), np.ones(3), 20.0)
    assert loss == 0.0
    assert not d_a.any()
    assert not d_b.any()


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.0, 0.1, 0.2, 0.3])) == pytest.approx(1.0)
    # two equal values share their ranks: Pearson's correlation of (1, 2.5, 2.5, 4) and (1, 2, 3, 4)
    expected = np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1]
    assert rank_correlation(np.array([0.0, 5.0, 5.0, 7.0]), np.arange(4.0)) == pytest.approx(expected)
    assert rank_correlation(np.ones(4), np.arange(4.0)) is None
