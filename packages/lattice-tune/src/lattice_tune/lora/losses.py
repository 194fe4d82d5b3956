"""Losses of vectors and logits, with their gradients, in float64.

Each returns the mean loss of its rows and the gradient of that mean. Formulas: multiple negatives ranking [Henderson et
al. 2017], CoSENT [Su 2022], and the textbook's cross-entropies; sentence-transformers has the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "Float64Array",
    "binary_cross_entropy",
    "cosent_loss",
    "cosine_loss",
    "cross_entropy",
    "ranking_loss",
    "rank_correlation",
    "triplet_loss",
    "unit_rows",
    "unit_rows_gradient",
]

Float64Array = npt.NDArray[np.float64]


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Float64Array, Float64Array]:
    """Return the rows scaled to length 1, and their lengths, (n, 1). A row of zeros stays."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    return wide / np.where(lengths > 0, lengths, 1.0), lengths


def unit_rows_gradient(units: Float64Array, lengths: Float64Array, d_units: Float64Array) -> Float64Array:
    """Return the gradient by the rows that :func:`unit_rows` was given."""
    along = (units * d_units).sum(axis=1, keepdims=True)
    return np.where(lengths > 0, (d_units - units * along) / np.where(lengths > 0, lengths, 1.0), 0.0)


def ranking_loss(
    anchors: npt.NDArray[np.floating],
    candidates: npt.NDArray[np.floating],
    scale: float,
    ignored: npt.NDArray[np.bool_] | None = None,
) -> tuple[float, Float64Array, Float64Array, float]:
    """Return loss, gradients by anchors and candidates, and the share of right anchors.

    An anchor is right if it ranks its own candidate first. Candidate i belongs to anchor i. All others are its negatives,
    but those that ``ignored``, (n, m), leaves out.
    """
    a, a_lengths = unit_rows(anchors)
    c, c_lengths = unit_rows(candidates)
    logits = scale * (a @ c.T)
    if ignored is not None:
        logits = np.where(ignored, -np.inf, logits)
    loss, d_logits, right = cross_entropy(logits, np.arange(len(a)))
    d_logits *= scale
    return (
        loss,
        unit_rows_gradient(a, a_lengths, d_logits @ c),
        unit_rows_gradient(c, c_lengths, d_logits.T @ a),
        right,
    )


def cosent_loss(
    first: npt.NDArray[np.floating], second: npt.NDArray[np.floating], scores: npt.NDArray[np.floating], scale: float
) -> tuple[float, Float64Array, Float64Array, Float64Array]:
    """Return loss, gradients by both, and the cosines.

    The loss is log(1 + sum exp(scale (cos_j - cos_i))) over all i that are scored above j.
    """
    a, a_lengths = unit_rows(first)
    b, b_lengths = unit_rows(second)
    cosines = (a * b).sum(axis=1)
    above = scores[:, None] > scores[None, :]
    terms = np.where(above, scale * (cosines[None, :] - cosines[:, None]), -np.inf)
    top = max(0.0, float(terms.max(initial=-np.inf)))
    shares = np.exp(terms - top)
    total = float(np.exp(-top) + shares.sum())
    shares *= scale / total
    d_cosines = shares.sum(axis=0) - shares.sum(axis=1)
    d_a, d_b = _through_cosines(a, b, a_lengths, b_lengths, d_cosines)
    return top + float(np.log(total)), d_a, d_b, cosines


def cosine_loss(
    first: npt.NDArray[np.floating], second: npt.NDArray[np.floating], scores: npt.NDArray[np.floating]
) -> tuple[float, Float64Array, Float64Array, Float64Array]:
    """Return the mean squared error of the cosines, gradients by both, and the cosines."""
    a, a_lengths = unit_rows(first)
    b, b_lengths = unit_rows(second)
    cosines = (a * b).sum(axis=1)
    off = cosines - scores
    d_a, d_b = _through_cosines(a, b, a_lengths, b_lengths, 2.0 * off / len(off))
    return float(np.square(off).mean()), d_a, d_b, cosines


def triplet_loss(
    anchors: npt.NDArray[np.floating],
    positives: npt.NDArray[np.floating],
    negatives: npt.NDArray[np.floating],
    margin: float,
) -> tuple[float, Float64Array, Float64Array, Float64Array, float]:
    """Return loss, three gradients, and the share of anchors that are nearer to their positive.

    The loss is max(0, margin + cos(anchor, negative) - cos(anchor, positive)).
    """
    a, a_lengths = unit_rows(anchors)
    p, p_lengths = unit_rows(positives)
    n, n_lengths = unit_rows(negatives)
    gaps = (a * n).sum(axis=1) - (a * p).sum(axis=1)
    terms = margin + gaps
    slope = np.where(terms > 0, 1.0 / len(terms), 0.0)[:, None]
    return (
        float(np.maximum(terms, 0.0).mean()),
        unit_rows_gradient(a, a_lengths, slope * (n - p)),
        unit_rows_gradient(p, p_lengths, -slope * a),
        unit_rows_gradient(n, n_lengths, slope * a),
        float((gaps < 0).mean()),
    )


def cross_entropy(logits: Float64Array, classes: npt.NDArray[np.integer]) -> tuple[float, Float64Array, float]:
    """Return loss, gradient by the logits, and the share of right rows."""
    rows = np.arange(len(logits))
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted)
    totals = shares.sum(axis=1, keepdims=True)
    loss = float((np.log(totals[:, 0]) - shifted[rows, classes]).mean())
    right = float((logits.argmax(axis=1) == classes).mean())
    gradient = shares / totals
    gradient[rows, classes] -= 1.0
    return loss, gradient / len(logits), right


def binary_cross_entropy(
    logits: Float64Array, targets: npt.NDArray[np.floating]
) -> tuple[float, Float64Array, Float64Array]:
    """Return loss, gradient by the logits, and the probabilities; targets are from 0 to 1."""
    losses = np.maximum(logits, 0.0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))
    shares = np.where(logits >= 0, 1.0, np.exp(np.minimum(logits, 0.0))) / (1.0 + np.exp(-np.abs(logits)))
    return float(losses.mean()), (shares - targets) / logits.size, shares


def rank_correlation(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> float | None:
    """Return Spearman's rank correlation; None if one of them is constant."""
    a, b = (_ranks(values.astype(np.float64)) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    length = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / length if length > 0 else None


def _ranks(values: Float64Array) -> Float64Array:
    """Return ranks; equal values have the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[places]


def _through_cosines(
    a: Float64Array, b: Float64Array, a_lengths: Float64Array, b_lengths: Float64Array, d_cosines: Float64Array
) -> tuple[Float64Array, Float64Array]:
    slope = d_cosines[:, None]
    return unit_rows_gradient(a, a_lengths, slope * b), unit_rows_gradient(b, b_lengths, slope * a)
