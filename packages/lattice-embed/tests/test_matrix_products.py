"""All rows of one matrix against all rows of another: every way of cutting them into tiles, panels and blocks gives the same
bits, and rows that need double precision get it wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

from lattice_embed import vectors as ops

Levels = Callable[[], Iterator[str]]
METRICS: list[ops.Metric] = ["dot", "cosine", "euclidean", "sqeuclidean", "manhattan"]
# rows: around one tile, two and several of every instruction set; columns: around panels, pairs of them and groups
SHAPES = [(1, 64), (5, 70), (6, 64), (7, 128), (11, 95), (12, 96), (13, 97), (23, 129), (25, 144), (37, 300), (300, 65)]
WIDTHS = [1, 3, 6, 100, 255, 256, 259, 384, 770]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", SHAPES)
def test_score_depends_on_its_two_rows_only(metric: ops.Metric, shape: tuple[int, int], on_each_isa: Levels) -> None:
    """A row against a column in a product of two rows by three has the bits that it has in the whole."""
    rng = np.random.default_rng(shape)
    for width in rng.choice(WIDTHS, 3, replace=False).tolist():
        a, b = draw(shape[0], width), draw(shape[1], width, seed=1)
        for _ in on_each_isa():
            whole = ops.many_vs_many(a, b, metric=metric)
            for _ in range(12):
                rows, columns = rng.integers(0, shape[0], 2), rng.integers(0, shape[1], 3)
                part = ops.many_vs_many(a[rows], b[columns], metric=metric)
                assert part.tobytes() == whole[np.ix_(rows, columns)].tobytes()
            assert ops.many_vs_many(b, a, metric=metric).T.tobytes() == whole.tobytes()


def test_rows_that_single_precision_cannot_measure_lie_anywhere(on_each_isa: Levels) -> None:
    """Zero, tiny, huge and not a number: beside each other and beside common rows, in tiles and at their ends."""
    a, b = draw(29, 100) / 8, draw(150, 100, seed=1) / 8
    common = 1 - cdist(a.astype(np.float64), b.astype(np.float64), "cosine")
    a[3] = b[17] = b[149] = 0
    a[12] *= np.float32(1e-30)
    b[70] *= np.float32(1e-25)
    a[28] *= np.float32(1e25)
    a[20, 99] = b[33, 0] = np.nan
    common[3] = common[:, 17] = common[:, 149] = 0
    common[20] = common[:, 33] = np.nan
    for _ in on_each_isa():
        np.testing.assert_allclose(ops.many_vs_many(a, b), common, rtol=0, atol=1e-6)
        np.testing.assert_allclose(ops.many_vs_many(b, a), common.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("queries", [2, 63, 64, 130, 257])
def test_nearest_rows_of_many_queries_are_those_of_the_product(metric: ops.Metric, queries: int) -> None:
    rows, wanted = draw(2_500, 40), draw(queries, 40, seed=1)
    scores = ops.many_vs_many(wanted, rows, metric=metric)
    best = np.argsort(-scores if metric in {"dot", "cosine"} else scores, axis=1, kind="stable")[:, :5]
    found = ops.search(wanted, rows, 5, metric=metric)
    assert np.array_equal(found.indices, best)
    assert found.scores.tobytes() == np.take_along_axis(scores, best, 1).tobytes()
