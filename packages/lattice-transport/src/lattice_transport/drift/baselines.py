"""Other two-sample tests on the same points and permutations, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_transport.drift.report import TestResult
from lattice_transport.drift.statistic import permutation_p_value

__all__ = ["classifier_test", "mmd_test"]

_Array = npt.NDArray[Any]
_Float64 = npt.NDArray[np.float64]


def mmd_test(squared_distances: _Float64, labels: _Float64) -> TestResult:
    """Maximum mean discrepancy with a Gaussian kernel of median bandwidth (Gretton et al. 2012).

    Args:
        squared_distances: (N, N) of the pooled sample.
        labels: (1 + permutations, N) of +1 (first set) and -1: the first row is how the sample really falls.

    The statistic is the squared discrepancy, biased form (at least 0).
    """
    off_diagonal = squared_distances[np.triu_indices(len(squared_distances), 1)]
    median = float(np.median(off_diagonal)) if off_diagonal.size else 1.0
    kernel = np.exp(-squared_distances / (median if median > 0.0 else 1.0))
    first = labels > 0
    weights = np.where(first, 1.0 / first.sum(1, keepdims=True), -1.0 / (~first).sum(1, keepdims=True))
    values = np.einsum("pi,pi->p", weights @ kernel, weights)
    return TestResult("mmd", float(values[0]), permutation_p_value(float(values[0]), values[1:]))


def classifier_test(points: _Float64, labels: _Float64) -> TestResult:
    """Classifier two-sample test with a linear ridge classifier, leave-one-out.

    See Lopez-Paz and Oquab 2017.

    Args:
        points: (N, dimension), the pooled sample.
        labels: as for :func:`mmd_test`.

    The statistic is the balanced leave-one-out accuracy. The hat matrix does not depend on the labels, so one
    factorisation serves every permutation.
    """
    centred = points - points.mean(axis=0)
    gram = centred @ centred.T
    count = len(gram)
    ridge = max(float(np.trace(gram)) / count, np.finfo(float).tiny)
    # ridge regression on centred points with a free intercept: H = 1 1'/N + G (G + ridge)^-1 on the centred part
    hat = np.linalg.solve(gram + ridge * np.eye(count), gram).T + 1.0 / count
    leverage = np.diag(hat).copy()
    # scores of balanced classes: each label weighs the inverse of its class
    predicted = (labels @ hat.T - labels * leverage) / np.maximum(1.0 - leverage, 1e-9)
    cut = labels.mean(axis=1, keepdims=True)
    # leaving a point out moves the mean label as well
    cut = (cut * count - labels) / max(count - 1, 1)
    right = np.sign(predicted - cut) == np.sign(labels)
    first = labels > 0
    accuracy = 0.5 * ((right & first).sum(1) / first.sum(1) + (right & ~first).sum(1) / (~first).sum(1))
    return TestResult("classifier", float(accuracy[0]), permutation_p_value(float(accuracy[0]), accuracy[1:]))
