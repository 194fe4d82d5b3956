"""Vectors stored as halves, int8, int4 and bits: bytes, values, scores, refusals."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lattice_embed import DimensionMismatchError, InvalidInputError, TierMismatchError
from lattice_embed import vectors as ops
from lattice_embed.vectors import QuantizationTier, _vectors

Levels = Callable[[], Iterator[str]]
TIERS = ["bfloat16", "float16", "int8", "int4", "binary"]
INTEGER_TIERS = ["int8", "int4"]
# around every step and padding of the kernels, and the sizes of real models
WIDTHS = [1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 384, 513, 768, 1000, 1024, 2049, 2050]
PAIRS: dict[ops.Metric, Callable[..., float]] = {
    "dot": ops.dot_product,
    "cosine": ops.cosine_similarity,
    "euclidean": ops.euclidean_distance,
    "sqeuclidean": ops.squared_euclidean_distance,
}
PACKING = json.loads((Path(__file__).parent / "data" / "quantized_packing.json").read_text(encoding="utf-8"))


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def round_away(values: np.ndarray) -> np.ndarray:
    wide = values.astype(np.float64)
    return np.floor(np.abs(wide) + 0.5) * np.sign(wide)


def every_body(on_each_isa: Levels) -> Iterator[str]:
    """Each instruction set, with and without the bodies for single instructions beyond it."""
    for isa in on_each_isa():
        yield isa
        _vectors.select_isa(isa, extensions=False)
        yield f"{isa} alone"


# Bytes


@pytest.mark.parametrize("case", PACKING, ids=[case["what"] for case in PACKING])
def test_bytes_are_those_of_the_format(case: dict[str, Any], on_each_isa: Levels) -> None:
    vector = np.array([case["vector"]], np.float32)
    for _ in on_each_isa():
        assert ops.quantize(vector, "int8").data[0].tolist() == case["int8"]
        assert [f"{byte:02x}" for byte in ops.quantize(vector, "int4").data[0]] == case["int4"]
        assert [f"{byte:02x}" for byte in ops.quantize(vector, "binary").data[0]] == case["binary"]


@pytest.mark.slow
@given(
    rows=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 70)),
        elements=st.floats(-(2.0**99), 2.0**99, width=32) | st.sampled_from([0.0, -0.0, 0.5, 1.5, -2.5, 127.0]),
    )
)
@settings(deadline=None, max_examples=200)
def test_bytes_of_any_vector_follow_the_formulas(rows: np.ndarray) -> None:
    largest = np.abs(rows).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        int8_scale = np.where(largest > 1e-10, np.float32(127) / largest, np.float32(1)).astype(np.float32)
        int4_scale = np.where(largest > 1e-10, np.float32(15) / (np.float32(2) * largest), 1).astype(np.float32)
    int8 = np.clip(round_away(rows * int8_scale[:, None]), -127, 127)
    int4 = np.clip(round_away((rows + largest[:, None]) * int4_scale[:, None]), 0, 15)
    for isa in _vectors.available_isas():
        _vectors.select_isa(isa)
        eight, four, bits = (ops.quantize(rows, tier) for tier in ("int8", "int4", "binary"))
        assert eight.scales is not None
        assert eight.scales.tobytes() == int8_scale.tobytes()
        assert eight.data.tolist() == int8.tolist()
        assert four.scales.tobytes() == int4_scale.tobytes()
        assert four.max_abs.tobytes() == largest.tobytes()
        assert four.codes.tolist() == int4.tolist()
        assert np.array_equal(bits.data, np.packbits(rows >= 0, axis=1))
    _vectors.select_isa()


def test_stored_values_are_within_the_bound_of_their_tier() -> None:
    rows = draw(20, 100)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    for tier, bound in (("int8", largest / 254), ("int4", largest / 15), ("bfloat16", largest / 256)):
        stored = ops.quantize(rows, QuantizationTier(tier)).dequantize()
        assert (np.abs(stored - rows) <= bound * 1.0001).all()
    assert ops.quantize(rows, "float16").dequantize().tolist() == rows.astype(np.float16).astype(np.float32).tolist()
    assert np.array_equal(ops.quantize(rows, "binary").dequantize(), np.where(rows >= 0, 1, -1))


def test_bfloat16_rounds_to_nearest_even() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF]], np.uint32)
    assert ops.quantize(bits.view(np.float32), "bfloat16").data.tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x3F80]]


def test_threshold_of_bits_is_the_callers() -> None:
    stored = ops.BinaryMatrix.quantize([[0.1, 0.5, 0.9]], threshold=0.5)
    assert stored.data.tolist() == [[0b01100000]]
    assert ops.one_vs_many([0.1, 0.5, 0.9], stored, metric="hamming").tolist() == [0.0]


# Scores


def expected_scores(matrix: ops.StoredMatrix, query: np.ndarray, metric: str, length: float) -> np.ndarray:
    rows, vector = matrix.dequantize().astype(np.float64), query.astype(np.float64)
    if metric == "dot":
        return rows @ vector
    if metric == "cosine":
        lengths = getattr(matrix, "norms", None)
        lengths = np.linalg.norm(rows, axis=1) if lengths is None else lengths.astype(np.float64)
        return np.clip(rows @ vector / (lengths * length), -1, 1)
    squared = ((rows - vector) ** 2).sum(axis=1)
    return squared if metric == "sqeuclidean" else np.sqrt(squared)


@pytest.mark.parametrize("tier", ["int8", "int4", "binary"])
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_quantized_rows_begin_on_a_cache_line(tier: Any, count: int) -> None:
    rows = np.random.default_rng(0).standard_normal((count, 384)).astype(np.float32)
    data = ops.quantize(rows, tier).data
    assert data.flags.c_contiguous
    assert len(data) == count
    assert data.ctypes.data % 64 == 0 or count == 0


@pytest.mark.parametrize("tier", INTEGER_TIERS)
@pytest.mark.parametrize("width", WIDTHS)
def test_quantized_query_scores_exactly_as_stored(tier: Any, width: int, on_each_isa: Levels) -> None:
    matrix: Any = ops.quantize(draw(9, width), tier)
    query = matrix[4]
    for metric in matrix.metrics:
        expected = expected_scores(matrix, query.dequantize(), metric, query.norm)
        seen = set()
        for body in every_body(on_each_isa):
            scores = ops.one_vs_many(query, matrix, metric=metric)
            scale = max(1.0, float(np.abs(expected).max()), width)
            atol = scale * (3e-4 if metric == "euclidean" else 1e-6)
            np.testing.assert_allclose(scores, expected, rtol=2e-6, atol=atol, err_msg=body)
            seen.add(scores.tobytes())
        assert len(seen) == 1  # integers and doubles: the baseline agrees too


@pytest.mark.parametrize("tier", INTEGER_TIERS)
@pytest.mark.parametrize("width", WIDTHS)
def test_float_query_is_rounded_far_finer_than_the_rows(tier: Any, width: int, on_each_isa: Levels) -> None:
    matrix: Any = ops.quantize(draw(7, width, seed=1), tier)
    query = draw(width)
    most = 127 if tier == "int4" else min(32767, (2**31 - 1) // (128 * width))
    rounding = float(np.abs(query).max()) / most / 2  # of each of the query's components
    bound = rounding * np.abs(matrix.dequantize()).sum(axis=1).max() + 1e-5 * width
    expected = expected_scores(matrix, query, "dot", 1.0)
    seen = set()
    for body in every_body(on_each_isa):
        scores = ops.one_vs_many(query, matrix, metric="dot")
        np.testing.assert_allclose(scores, expected, atol=bound, err_msg=body)
        seen.add(scores.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("tier", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", WIDTHS)
def test_half_rows_score_with_the_bits_of_their_float_copies(tier: Any, width: int, on_each_isa: Levels) -> None:
    matrix: Any = ops.quantize(draw(5, width, seed=1), tier)
    query = draw(width)
    for _ in on_each_isa():
        for metric in matrix.metrics:
            stored = ops.one_vs_many(query, matrix, metric=metric)
            assert stored.tobytes() == ops.one_vs_many(query, matrix.dequantize(), metric=metric).tobytes()


@pytest.mark.parametrize("tier", ["bfloat16", "float16"])
def test_every_half_is_widened_exactly(tier: Any, on_each_isa: Levels) -> None:
    kind = ops.Float16Matrix if tier == "float16" else ops.BFloat16Matrix
    patterns = np.arange(65536, dtype=np.uint16)[:, None]
    matrix = kind(patterns)
    expected = matrix.dequantize()[:, 0]
    one = np.ones(1, np.float32)
    for isa in on_each_isa():
        scores = ops.one_vs_many(one, matrix, metric="dot")
        assert np.array_equal(scores, expected, equal_nan=True), isa


@pytest.mark.parametrize("width", [*WIDTHS, 3000, 65536])
def test_differing_bits_are_counted(width: int, on_each_isa: Levels) -> None:
    rows = draw(11, width)
    matrix = ops.quantize(rows, "binary")
    expected = ((rows >= 0) != (rows[3] >= 0)).sum(axis=1)
    for body in every_body(on_each_isa):
        assert ops.one_vs_many(matrix[3], matrix, metric="hamming").tolist() == expected.tolist(), body
        cosines = ops.one_vs_many(rows[3], matrix)
        np.testing.assert_allclose(cosines, 1 - 2 * expected / width, atol=1e-7)
        assert ops.hamming_distance_binary(matrix.data[3], matrix.data[5]) == expected[5], body
        assert ops.hamming_distance_binary(matrix[3], matrix[5]) == expected[5]


@pytest.mark.parametrize("width", WIDTHS)
def test_integer_pairs_are_exact(width: int, on_each_isa: Levels) -> None:
    random = np.random.default_rng(width)
    a, b = random.integers(-128, 128, (2, width), dtype=np.int8)
    for vectors in ((a, b), (np.full(width, -128, np.int8), np.full(width, -128, np.int8))):
        wide = [vector.astype(np.int64) for vector in vectors]
        dot = int(wide[0] @ wide[1])
        for body in every_body(on_each_isa):
            assert ops.dot_product_i8_raw(*vectors) == dot, body
            lengths = np.linalg.norm(wide[0]) * np.linalg.norm(wide[1])
            cosine = dot / lengths if lengths else 0.0
            assert ops.cosine_similarity_i8(*vectors) == pytest.approx(cosine, abs=1e-12), body


@pytest.mark.parametrize("tier", ["int8", "int4", "binary"])
def test_one_vs_many_has_the_bits_of_stored_pairs(tier: Any) -> None:
    matrix: Any = ops.quantize(draw(9, 100), tier)
    for metric, pair in PAIRS.items():
        if metric in matrix.metrics:
            pairs = np.array([pair(matrix[2], row) for row in matrix], np.float32)
            assert ops.one_vs_many(matrix[2], matrix, metric=metric).tobytes() == pairs.tobytes()
            query = draw(100, seed=1)
            pairs = np.array([pair(query, row) for row in matrix], np.float32)
            assert ops.one_vs_many(query, matrix, metric=metric).tobytes() == pairs.tobytes()
            assert pair(matrix[0], query) == pair(query, matrix[0])
    if tier == "int8":
        assert ops.dot_product_i8(matrix[0], matrix[1]) == ops.dot_product(matrix[0], matrix[1])
        assert ops.cosine_similarity_i8(matrix[0], matrix[1]) == ops.cosine_similarity(matrix[0], matrix[1])
    if tier == "int4":
        assert ops.dot_product_int4(matrix[0], matrix[1]) == ops.dot_product(matrix[0], matrix[1])


@pytest.mark.parametrize("tier", TIERS)
def test_many_vs_many_is_one_vs_many_of_each_row(tier: Any) -> None:
    queries, rows = draw(5, 70), draw(600, 70, seed=1)
    matrix: Any = ops.quantize(rows, tier)
    for metric in matrix.metrics:
        scores = ops.many_vs_many(queries, matrix, metric=metric)
        assert scores.shape == (5, 600)
        for query, row in zip(queries, scores, strict=True):
            assert row.tobytes() == ops.one_vs_many(query, matrix, metric=metric).tobytes()
    assert np.array_equal(ops.many_vs_many(matrix, queries), ops.many_vs_many(queries, matrix).T)
    assert ops.many_vs_many(matrix.take([0, 1]), matrix).shape == (2, 600)


def test_vector_equal_to_itself_has_distance_zero() -> None:
    for tier in INTEGER_TIERS:
        matrix: Any = ops.quantize(draw(3, 384), QuantizationTier(tier))
        assert ops.squared_euclidean_distance(matrix[1], matrix[1]) == pytest.approx(0, abs=1e-9)


def test_zero_vector_has_similarity_zero_to_anything() -> None:
    for tier in INTEGER_TIERS:
        matrix = ops.quantize(np.stack([np.zeros(20, np.float32), draw(20)]), QuantizationTier(tier))
        assert ops.one_vs_many(draw(20, seed=1), matrix)[0] == 0.0
        assert ops.one_vs_many(np.zeros(20), matrix).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e15])
def test_angle_does_not_depend_on_length(scale: float) -> None:
    rows, query = draw(6, 50), draw(50, seed=1)
    for tier in INTEGER_TIERS:
        plain = ops.one_vs_many(query, ops.quantize(rows, QuantizationTier(tier)))
        scaled = ops.one_vs_many(
            query * np.float32(scale), ops.quantize(rows * np.float32(scale), QuantizationTier(tier))
        )
        np.testing.assert_allclose(scaled, plain, atol=1e-3 if tier == "int8" else 0.02)


# Calibration


def test_calibration_follows_each_dimension() -> None:
    rows = draw(500, 40) * np.linspace(0.01, 10, 40).astype(np.float32) + np.float32(3)
    calibration = ops.Int8Calibration.fit(rows)
    matrix = ops.quantize(rows, "int8", calibration=calibration)
    assert matrix.scales is None
    assert (np.abs(matrix.dequantize() - rows) <= calibration.steps / 2 * 1.01).all()
    query = draw(40, seed=1)
    for metric in matrix.metrics:
        expected = expected_scores(matrix, query, metric, float(np.linalg.norm(query)))
        scores = ops.one_vs_many(query, matrix, metric=metric)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=2e-3 * max(1.0, np.abs(expected).max()))
    pair = ops.dot_product(matrix[0], matrix[1])
    assert pair == pytest.approx(float(matrix[0].dequantize() @ matrix[1].dequantize()), rel=1e-3)


def test_values_outside_the_calibration_are_clipped() -> None:
    calibration = ops.Int8Calibration.fit([[0.0, 5.0], [1.0, 5.0]])
    matrix = ops.quantize([[9.0, 5.0], [-9.0, 5.0]], "int8", calibration=calibration)
    np.testing.assert_allclose(matrix.dequantize(), [[1.0, 5.0], [0.0, 5.0]], atol=1e-6)


def test_quantile_of_a_calibration_leaves_outliers_out() -> None:
    rows = draw(1000, 3)
    rows[0] = 100
    assert (ops.Int8Calibration.fit(rows, quantile=0.99).steps < ops.Int8Calibration.fit(rows).steps / 10).all()
    for wrong in (0, -1, 1.1, float("nan")):
        with pytest.raises(InvalidInputError, match="quantile"):
            ops.Int8Calibration.fit(rows, quantile=wrong)
    for sample in (np.empty((0, 3)), [[np.nan, 1.0]]):
        with pytest.raises(InvalidInputError):
            ops.Int8Calibration.fit(sample)
    with pytest.raises(InvalidInputError, match="above zero"):
        ops.Int8Calibration(np.zeros(3, np.float32), np.zeros(3, np.float32))
    with pytest.raises(DimensionMismatchError):
        ops.quantize(draw(2, 4), "int8", calibration=ops.Int8Calibration.fit(rows))
    with pytest.raises(InvalidInputError, match="is for int8"):
        ops.quantize(rows, QuantizationTier.INT4, calibration=ops.Int8Calibration.fit(rows))


# What is taken


@pytest.mark.parametrize("tier", TIERS)
def test_not_a_number_is_refused_by_row(tier: Any) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        rows = draw(5, 33)
        rows[3, 20] = bad
        with pytest.raises(InvalidInputError, match="row 3 holds NaN or infinity"):
            ops.quantize(rows, tier)
        matrix: Any = ops.quantize(draw(5, 33), tier)
        if tier in {"int8", "int4", "binary"}:
            with pytest.raises(InvalidInputError, match="query 0 holds NaN"):
                ops.top_k(rows[3], matrix, 1)
        elif bad != bad:
            assert np.isnan(ops.one_vs_many(rows[3], matrix)).all()


@pytest.mark.parametrize("tier", TIERS)
def test_matrices_without_rows_or_columns(tier: Any) -> None:
    empty: Any = ops.quantize(np.empty((0, 8), np.float32), tier)
    assert len(empty) == 0
    assert ops.one_vs_many(draw(8), empty).shape == (0,)
    assert ops.top_k(draw(8), empty, 3).indices.shape == (0,)
    assert ops.search(draw(2, 8), empty, 3).indices.shape == (2, 0)
    assert ops.search(np.empty((0, 8)), ops.quantize(draw(3, 8), tier), 2).indices.shape == (0, 2)
    assert ops.one_vs_many([], ops.quantize(np.empty((2, 0), np.float32), tier), metric="cosine").shape == (2,)


@pytest.mark.parametrize("tier", TIERS)
def test_matrix_is_a_value(tier: Any) -> None:
    rows = draw(6, 21)
    matrix: Any = ops.quantize(rows, tier)
    ops.one_vs_many(rows[0], matrix)
    again = pickle.loads(pickle.dumps(matrix))
    assert again == matrix
    assert ops.one_vs_many(rows[0], again).tobytes() == ops.one_vs_many(rows[0], matrix).tobytes()
    assert matrix != ops.quantize(rows + 1, tier)
    assert matrix != rows.tolist()
    assert copy.deepcopy(matrix) == matrix
    assert matrix.shape == (6, 21)
    assert matrix.take([1, 3]) == ops.quantize(rows[[1, 3]], tier)
    assert matrix.take(slice(0, 2)) == ops.quantize(rows[:2], tier)
    assert matrix.take(np.arange(6) > 3) == ops.quantize(rows[4:], tier)
    assert len(list(matrix)) == 6
    assert matrix.storage_bytes == 6 * matrix.tier.storage_bytes(21)
    assert matrix.nbytes >= matrix.storage_bytes
    assert "6 vectors of 21 dimensions" in repr(matrix)
    for several in (slice(0, 2), [0, 1], 1.0, None):
        with pytest.raises(InvalidInputError, match=r"take\(\) several"):
            matrix[several]
    with pytest.raises(IndexError):
        matrix[6]
    if tier in {"int8", "int4", "binary"}:
        vector = matrix[-1]
        assert pickle.loads(pickle.dumps(vector)) == vector
        assert vector == type(vector).quantize(rows[5])
        assert vector.tier is matrix.tier
        assert (len(vector), vector.dims) == (21, 21)
        assert np.array_equal(vector.dequantize(), matrix.dequantize()[5])
        assert np.array_equal(vector.data, matrix.data[5])
        with pytest.raises(TypeError):
            hash(vector)
    if tier in INTEGER_TIERS:
        assert matrix[2].scale == matrix.scales[2]
        assert matrix[2].norm == pytest.approx(np.linalg.norm(rows[2]), rel=1e-6)


def test_tier_can_be_changed_down_and_up() -> None:
    rows = draw(4, 16)
    eight = ops.quantize(rows, "int8")
    four = ops.quantize(eight, "int4")
    assert four == ops.quantize(eight.dequantize(), "int4")
    assert ops.quantize(four, "int8") == ops.quantize(four.dequantize(), "int8")
    assert ops.quantize(rows[0], "int8").shape == (1, 16)


def test_tiers_of_the_reference() -> None:
    tiers = [QuantizationTier.from_age_seconds(age) for age in (0, 3599, 3600, 86_399, 86_400, 604_799, 604_800, 1e12)]
    full, eight, four, bits = (QuantizationTier(name) for name in ("full", "int8", "int4", "binary"))
    assert tiers == [full, full, eight, eight, four, four, bits, bits]
    assert [tier.storage_bytes(385) for tier in (full, eight, four, bits)] == [1540, 385, 193, 49]
    assert [tier.bytes_per_dim for tier in (full, eight, four, bits)] == [4, 1, 0.5, 0.125]
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidInputError, match="age"):
            QuantizationTier.from_age_seconds(wrong)
    with pytest.raises(InvalidInputError, match="dims"):
        full.storage_bytes(-1)


def test_tiers_are_not_mixed_by_mistake() -> None:
    eight, four = ops.quantize(draw(3, 8), "int8"), ops.quantize(draw(3, 8), "int4")
    calls: list[Callable[[], object]] = [
        lambda: ops.one_vs_many(eight[0], four),
        lambda: ops.dot_product(eight[0], four[0]),
        lambda: ops.top_k(eight[0], four, 1),
        lambda: ops.search(eight, four, 1),
        lambda: ops.many_vs_many(eight, four),
    ]
    for call in calls:
        with pytest.raises(TierMismatchError, match="int8 and int4") as caught:
            call()
        assert (caught.value.expected, caught.value.actual) == ("int8", "int4")
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert ops.one_vs_many(eight[0], draw(3, 8)).shape == (3,)
    assert ops.search(eight, draw(3, 8), 2).indices.shape == (3, 2)


@pytest.mark.parametrize("tier", ["int8", "int4", "binary"])
def test_different_lengths_are_refused(tier: Any) -> None:
    matrix, other = ops.quantize(draw(3, 8), tier), ops.quantize(draw(3, 9), tier)
    for call in (
        lambda: ops.one_vs_many(draw(9), matrix),
        lambda: ops.cosine_similarity(matrix[0], other[0]),
        lambda: ops.search(draw(2, 9), matrix, 1),
        lambda: ops.top_k(other[0], matrix, 1),
    ):
        with pytest.raises(DimensionMismatchError):
            call()


def test_metrics_that_a_tier_lacks_are_named() -> None:
    eight, bits = ops.quantize(draw(3, 8), "int8"), ops.quantize(draw(3, 8), "binary")
    with pytest.raises(InvalidInputError, match="'cosine', 'dot', 'euclidean', 'sqeuclidean'"):
        ops.one_vs_many(draw(8), eight, metric="manhattan")
    with pytest.raises(InvalidInputError, match="binary vectors it must be one of 'cosine', 'hamming'"):
        ops.top_k(draw(8), bits, 1, metric="dot")
    with pytest.raises(InvalidInputError, match="binary vectors"):
        ops.dot_product(bits[0], bits[1])
    with pytest.raises(InvalidInputError, match="float vectors"):
        ops.one_vs_many(draw(8), draw(3, 8), metric="hamming")


def test_arrays_of_another_kind_are_refused_by_the_integer_pairs() -> None:
    a = np.ones(8, np.int8)
    for wrong in (a.astype(np.float32), a[::2], [1] * 8, a.reshape(2, 4), None):
        with pytest.raises(InvalidInputError, match="int8"):
            ops.dot_product_i8_raw(a, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="int8"):
            ops.cosine_similarity_i8(wrong, a)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="uint8"):
            ops.hamming_distance_binary(a.view(np.uint8), wrong)  # type: ignore[arg-type]
    with pytest.raises(DimensionMismatchError):
        ops.dot_product_i8_raw(a, a[:4])
    with pytest.raises(DimensionMismatchError):
        ops.hamming_distance_binary(a.view(np.uint8), a[:4].view(np.uint8))
    with pytest.raises(InvalidInputError, match="65,537"):
        ops.dot_product_i8_raw(np.ones(65537, np.int8), np.ones(65537, np.int8))
    with pytest.raises(InvalidInputError, match="65,537"):
        ops.quantize(np.ones((1, 65537), np.float32), "int8")
    with pytest.raises(InvalidInputError, match="QuantizedVector"):
        ops.dot_product_i8(a, a)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="Int4Vector"):
        ops.dot_product_int4(a, a)  # type: ignore[arg-type]


def test_parts_that_make_no_matrix_are_refused() -> None:
    eight, ones = np.ones((2, 3), np.int8), np.ones(2, np.float32)
    bad: list[Callable[[], object]] = [
        lambda: ops.Int8Matrix(eight.astype(np.int16), ones),  # type: ignore[arg-type]
        lambda: ops.Int8Matrix(np.full((2, 3), -128, np.int8), ones),
        lambda: ops.Int8Matrix(eight, [1.0]),
        lambda: ops.Int8Matrix(eight, [1.0, np.nan]),
        lambda: ops.Int8Matrix(eight, [1.0, 0.0]),
        lambda: ops.Int8Matrix(eight, None),
        lambda: ops.Int8Matrix(eight, ones, [-1.0, 1.0]),
        lambda: ops.Int4Matrix(np.ones((2, 3), np.uint8), 5, ones, ones),  # the unused nibble is not zero
        lambda: ops.Int4Matrix(np.ones((2, 3), np.uint8), 8, ones, ones),
        lambda: ops.BinaryMatrix(np.ones((2, 1), np.uint8), 7),
        lambda: ops.BinaryMatrix(np.ones((2, 1), np.uint8), 9),
        lambda: ops.BinaryMatrix(np.ones((2, 1), np.uint8), 8, threshold=float("nan")),
        lambda: ops.BFloat16Matrix(np.ones((2, 1), np.uint8)),  # type: ignore[arg-type]
        lambda: ops.quantize([[1.0]], "int2"),  # type: ignore[call-overload]
        lambda: ops.quantize([[1.0]], QuantizationTier.FULL),
        lambda: ops.quantize([[1e6]], "float16"),
        lambda: ops.quantize([[3.4e38]], "bfloat16"),
        lambda: ops.quantize("text", "int8"),
        lambda: ops.quantize(np.zeros((2, 2, 2)), "int8"),
    ]
    for make in bad:
        with pytest.raises(InvalidInputError):
            make()


def test_matrix_made_of_parts_is_the_one_that_gave_them() -> None:
    rows = draw(4, 11)
    eight, four, bits = (ops.quantize(rows, tier) for tier in ("int8", "int4", "binary"))
    assert ops.Int8Matrix(eight.data, eight.scales, eight.norms) == eight
    assert ops.Int4Matrix(four.data, 11, four.scales, four.max_abs, four.norms) == four
    assert ops.BinaryMatrix(bits.data, 11) == bits
    stored = ops.Int8Matrix(eight.data, eight.scales)  # lengths of the stored vectors
    np.testing.assert_allclose(stored.norms, np.linalg.norm(eight.dequantize(), axis=1), rtol=1e-6)


@pytest.mark.parametrize("tier", ["int8", "int4"])
def test_a_subnormal_vector_is_compared_without_a_warning(tier: str) -> None:
    tiny = np.array([[1e-40, 0.0], [3.0, 4.0]], np.float32)
    scores = ops.one_vs_many(tiny[1], ops.quantize(tiny, tier), metric="cosine")
    assert np.isfinite(scores).all()
    assert scores[1] == pytest.approx(1.0, abs=0.05)
