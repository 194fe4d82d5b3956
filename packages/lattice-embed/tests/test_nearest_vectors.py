"""The nearest of stored vectors: their order, and exact scores of candidates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import DimensionMismatchError, InvalidInputError
from lattice_embed import vectors as ops
from lattice_embed.vectors import QuantizationTier, _vectors

Levels = Callable[[], Iterator[str]]
TIERS = ["bfloat16", "float16", "int8", "int4", "binary"]
LONG = [("int8", 17003, 384), ("int4", 35009, 391), ("int8", 60001, 233)]
if os.environ.get("LATTICE_TEST_EMULATED") == "1":
    LONG = LONG[:1]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("k", [1, 10, 700])
def test_nearest_rows_are_the_head_of_a_stable_sort(tier: Any, k: int, on_each_isa: Levels) -> None:
    matrix: Any = ops.quantize(draw(600, 24), tier)  # few bits: many equal scores
    queries = draw(3, 24, seed=1)
    for _ in on_each_isa():
        for metric in matrix.metrics:
            found = ops.search(queries, matrix, k, metric=metric)
            for query, indices, values in zip(queries, *found, strict=True):
                scores = ops.one_vs_many(query, matrix, metric=metric)
                order = np.argsort(-scores if metric in {"cosine", "dot"} else scores, kind="stable")[:k]
                assert indices.tolist() == order.tolist()
                assert values.tobytes() == scores[order].tobytes()
                single = ops.top_k(query, matrix, k, metric=metric)
                assert single.indices.tolist() == order.tolist()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = _vectors.get_num_threads()
    _vectors.set_num_threads(1)
    yield
    _vectors.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "count", "dims"), LONG)
def test_rows_of_a_long_matrix_score_as_a_few_do(
    tier: Any, count: int, dims: int, on_each_isa: Levels, one_thread: None
) -> None:
    """From some six megabytes on a task is several scans, and rows are fetched ahead from one megabyte on."""
    matrix: Any = ops.quantize(draw(count, dims), tier)
    few = [matrix.take(slice(first, first + 2000)) for first in range(0, count, 2000)]
    for query in (draw(dims, seed=1), matrix[17]):
        for _ in on_each_isa():
            for metric in matrix.metrics:
                scores = np.concatenate([ops.one_vs_many(query, part, metric=metric) for part in few])
                assert ops.one_vs_many(query, matrix, metric=metric).tobytes() == scores.tobytes()
                order = np.argsort(-scores if metric in {"cosine", "dot"} else scores, kind="stable")[:50]
                best = ops.top_k(query, matrix, 50, metric=metric)
                assert best.indices.tolist() == order.tolist()
                assert best.scores.tobytes() == scores[order].tobytes()


def test_more_rows_than_any_matrix_has_are_all_of_them() -> None:
    rows, query = draw(9, 16), draw(16, seed=1)
    for matrix in (rows, *(ops.quantize(rows, QuantizationTier(tier)) for tier in TIERS)):
        best = ops.top_k(query, matrix, 10**30)
        assert sorted(best.indices.tolist()) == list(range(9))
        assert (best.indices.dtype, best.scores.dtype, best.scores.shape) == (np.int64, np.float32, (9,))
        assert ops.search(query[None], matrix, 10**30).indices.tolist() == [best.indices.tolist()]


@pytest.mark.parametrize("tier", TIERS)
def test_rescoring_gives_exact_scores_of_the_candidates_and_of_no_other_row(tier: Any) -> None:
    rows, query = draw(2000, 64), draw(64, seed=1)
    matrix = ops.quantize(rows, tier)
    for oversample in (1, 3):
        candidates = np.sort(ops.top_k(query, matrix, 5 * oversample).indices)
        exact = np.full_like(rows, 100 * query)  # what is no candidate would come first, were it looked at
        exact[candidates] = rows[candidates]
        expected = ops.top_k(query, rows[candidates], 5)
        for rescore in (exact, exact.tolist()):
            found = ops.top_k(query, matrix, 5, rescore=rescore, oversample=oversample)
            assert found.indices.tolist() == candidates[expected.indices].tolist()
            assert found.scores.tobytes() == expected.scores.tobytes()
        several = ops.search(np.stack([query, query]), matrix, 5, rescore=exact, oversample=oversample)
        assert several.indices.tolist() == [candidates[expected.indices].tolist()] * 2


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_has_the_candidates_that_it_is_said_to_have(tier: Any) -> None:
    rows, query = draw(500, 32), draw(32, seed=1)
    matrix = ops.quantize(rows, tier)
    times = {"bfloat16": 2, "float16": 2, "int8": 2, "int4": 4, "binary": 16}[tier]
    last = ops.top_k(query, matrix, 3 * times + 1).indices
    for row, found in ((last[-2], True), (last[-1], False)):
        exact = rows.copy()
        exact[row] = 100 * query
        assert (ops.top_k(query, matrix, 3, rescore=exact).indices[0] == row) == found


def test_candidates_are_chosen_by_the_metric_that_was_asked_for() -> None:
    rows = np.array([[1, 0, 0, 0]] * 50 + [[9, 9, 0, 0]], np.float32)  # the last is far by its angle
    for tier in ("int8", "int4", "bfloat16"):
        found = ops.top_k(rows[0], ops.quantize(rows, tier), 1, metric="dot", rescore=rows)
        assert found.indices.tolist() == [50]


def test_a_metric_that_bits_do_not_have_is_that_of_the_second_step() -> None:
    rows, query = draw(500, 64), draw(64, seed=1)
    matrix = ops.quantize(rows, "binary")
    assert "euclidean" not in matrix.metrics
    candidates = np.sort(ops.top_k(query, matrix, 20).indices)
    found = ops.top_k(query, matrix, 5, metric="euclidean", rescore=rows, oversample=4)
    expected = ops.top_k(query, rows[candidates], 5, metric="euclidean")
    assert found.indices.tolist() == candidates[expected.indices].tolist()
    assert found.scores.tobytes() == expected.scores.tobytes()


def test_equal_scores_go_by_the_lower_row_after_rescoring_too() -> None:
    rows = np.array([[0.5, 0.5, 0.5, 0.5], [0.5, 0.9, 0.1, 0.3]], np.float32)
    query, matrix = np.eye(1, 4, dtype=np.float32)[0], ops.quantize(rows, "int8")
    assert ops.top_k(query, matrix, 2, metric="dot").indices.tolist() == [1, 0]  # by what rounding made of the rows
    found = ops.top_k(query, matrix, 2, metric="dot", rescore=rows)
    assert found.indices.tolist() == [0, 1]
    assert found.scores.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("metric", ["dot", "cosine", "euclidean"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_that_are_nan_rank_last(metric: Any, sign: float, on_each_isa: Levels) -> None:
    rows = draw(12, 8)
    rows[[0, 5, 11]] = np.copysign(np.float32(np.nan), np.float32(sign))
    for _ in on_each_isa():
        best = ops.top_k(rows[3], rows, 12, metric=metric)
        assert best.indices[-3:].tolist() == [0, 5, 11]
        assert np.isnan(best.scores[-3:]).all()
        assert not np.isnan(ops.top_k(rows[3], rows, 9, metric=metric).scores).any()
        assert ops.search(rows[3:4], rows, 12, metric=metric).indices[0].tolist() == best.indices.tolist()


def test_rescoring_reads_only_candidates_of_a_file(tmp_path: Path) -> None:
    rows = draw(300, 16)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    found = ops.top_k(rows[7], ops.quantize(rows, "int4"), 3, rescore=mapped)
    assert found.indices[0] == 7


def test_wrong_rescoring_is_refused() -> None:
    rows, query = draw(20, 8), draw(8)
    matrix = ops.quantize(rows, "int8")
    with pytest.raises(InvalidInputError, match="holds 19 vectors for a matrix of 20"):
        ops.top_k(query, matrix, 2, rescore=rows[:19])
    with pytest.raises(DimensionMismatchError):
        ops.top_k(query, matrix, 2, rescore=rows[:, :4].copy())
    with pytest.raises(InvalidInputError, match="must be a matrix"):
        ops.top_k(query, matrix, 2, rescore=query)
    with pytest.raises(InvalidInputError, match="only with rescore"):
        ops.top_k(query, matrix, 2, oversample=3)
    with pytest.raises(InvalidInputError, match="only with rescore"):
        ops.search([query], matrix, 2, oversample=3)
    with pytest.raises(InvalidInputError, match="oversample is 0"):
        ops.top_k(query, matrix, 2, rescore=rows, oversample=0)
