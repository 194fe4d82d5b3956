"""Vector operations: values against SciPy in float64, the same bits everywhere, edges and wrong input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

from lattice_embed import DimensionMismatchError, InvalidInputError
from lattice_embed import vectors as ops
from lattice_embed.vectors import _vectors

PAIRS: dict[ops.Metric, Callable[..., float]] = {
    "dot": ops.dot_product,
    "cosine": ops.cosine_similarity,
    "euclidean": ops.euclidean_distance,
    "sqeuclidean": ops.squared_euclidean_distance,
    "manhattan": ops.manhattan_distance,
}
METRICS = list(PAIRS)
# around every block and accumulator of the kernels, and the sizes of real models
WIDTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 128, 129, 384, 768, 1000, 1024, 1536]
Levels = Callable[[], Iterator[str]]


def reference(a: np.ndarray, b: np.ndarray, metric: ops.Metric) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    if metric == "dot":
        return np.asarray(a @ b.T)
    if metric == "cosine":
        return np.asarray(1 - cdist(a, b, "cosine"))
    return np.asarray(cdist(a, b, "cityblock" if metric == "manhattan" else metric))


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("width", WIDTHS)
def test_scores_are_those_of_scipy(metric: ops.Metric, width: int, on_each_isa: Levels) -> None:
    a, b = draw(5, width), draw(7, width, seed=1)
    expected = reference(a, b, metric)
    scale = (np.abs(a) @ np.abs(b).T if metric == "dot" else np.maximum(expected, 1)).max()
    for isa in on_each_isa():
        pairs = [[PAIRS[metric](x, y) for y in b] for x in a]
        many = ops.many_vs_many(a, b, metric=metric)
        rows = [ops.one_vs_many(x, b, metric=metric) for x in a]
        for scores in (pairs, many, rows):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6 * scale, err_msg=isa)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("rows", "columns", "width"), [(31, 203, 389), (300, 140, 130)])
def test_products_of_many_rows_are_those_of_scipy(
    metric: ops.Metric, rows: int, columns: int, width: int, on_each_isa: Levels
) -> None:
    a, b = draw(rows, width), draw(columns, width, seed=1)
    expected = reference(a, b, metric)
    scale = (np.abs(a) @ np.abs(b).T if metric == "dot" else np.maximum(expected, 1)).max()
    for isa in on_each_isa():
        scores = ops.many_vs_many(a, b, metric=metric)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6 * scale, err_msg=isa)


@pytest.mark.parametrize("metric", METRICS)
def test_one_vs_many_has_the_bits_of_the_pairs(metric: ops.Metric, on_each_isa: Levels) -> None:
    for width in WIDTHS:
        query, rows = draw(width), draw(9, width, seed=1)
        for _ in on_each_isa():
            pairs = np.array([PAIRS[metric](query, row) for row in rows], np.float32)
            assert ops.one_vs_many(query, rows, metric=metric).tobytes() == pairs.tobytes()


def test_row_pairs_have_the_bits_of_the_pairs(on_each_isa: Levels) -> None:
    a, b = draw(9, 100), draw(9, 100, seed=1)
    for _ in on_each_isa():
        pairs = np.array([ops.cosine_similarity(x, y) for x, y in zip(a, b, strict=True)], np.float32)
        assert ops.batch_cosine_similarity(a, b).tobytes() == pairs.tobytes()
        assert ops.batch_cosine_similarity(list(zip(a, b, strict=True))).tobytes() == pairs.tobytes()


@pytest.mark.parametrize("metric", METRICS)
def test_instruction_sets_with_fma_agree_bit_for_bit(metric: ops.Metric, on_each_isa: Levels) -> None:
    for width in WIDTHS:
        a, b = draw(6, width), draw(7, width, seed=1)
        seen = {
            isa: b"".join(ops.one_vs_many(row, b, metric=metric).tobytes() for row in a)
            + ops.many_vs_many(a, b, metric=metric).tobytes()
            + ops.normalize(a).tobytes()
            for isa in on_each_isa()
        }
        seen.pop("baseline")  # no fused multiply-add there
        assert len(set(seen.values())) <= 1


def test_result_does_not_depend_on_where_the_data_lies() -> None:
    room = np.zeros(400, np.float32)
    b = draw(384, seed=1)
    seen = set()
    for offset in range(16):
        room[offset : offset + 384] = draw(384)
        seen.add(tuple(pair(room[offset : offset + 384], b) for pair in PAIRS.values()))
    assert len(seen) == 1


# Edges


def test_cosine_stays_within_its_range_and_is_exact_for_equal_vectors(on_each_isa: Levels) -> None:
    for _ in on_each_isa():
        for width in (1, 3, 384):
            for seed in range(50):
                vector = draw(width, seed=seed)
                for other in (vector, vector * 3, -vector):
                    score = ops.cosine_similarity(vector, other)
                    assert -1 <= score <= 1
                    assert abs(score) == pytest.approx(1, abs=2e-7)
                matrix = np.stack([vector, vector * 7])
                assert np.abs(ops.many_vs_many(matrix, -matrix)).max() <= 1


def test_zero_vector_has_similarity_zero_to_anything() -> None:
    zero, other = np.zeros(40, np.float32), draw(40)
    assert ops.cosine_similarity(zero, other) == 0.0
    assert ops.cosine_similarity(other, zero) == 0.0
    assert ops.cosine_similarity(zero, zero) == 0.0
    matrix = np.stack([zero, other])
    assert ops.many_vs_many(matrix, matrix)[0].tolist() == [0, 0]
    assert ops.one_vs_many(zero, matrix).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-12, 1e12, 1e18, 3e37])
def test_very_small_and_very_large_vectors_keep_their_angle_and_distance(scale: float, on_each_isa: Levels) -> None:
    a, b = draw(65) / 8, draw(65, seed=1) / 8
    small, other = (a * np.float32(scale)).astype(np.float32), (b * np.float32(scale)).astype(np.float32)
    distance = float(np.linalg.norm(small.astype(float) - other.astype(float)))
    for _ in on_each_isa():
        assert ops.cosine_similarity(small, other) == pytest.approx(ops.cosine_similarity(a, b), abs=1e-6)
        assert ops.many_vs_many([small], [other])[0, 0] == pytest.approx(ops.cosine_similarity(a, b), abs=1e-6)
        assert ops.euclidean_distance(small, other) == pytest.approx(distance, rel=1e-6)
        assert ops.many_vs_many([small], [other], metric="euclidean")[0, 0] == pytest.approx(distance, rel=1e-6)
        assert np.linalg.norm(ops.normalize(small).astype(float)) == pytest.approx(1, abs=1e-6)


def test_close_vectors_do_not_lose_their_distance() -> None:
    a = draw(384)
    b = a.copy()
    b[7] += np.float32(1e-3)
    expected = float(abs(b[7].astype(float) - a[7].astype(float)))
    assert ops.euclidean_distance(a, b) == pytest.approx(expected, rel=1e-6)
    assert ops.many_vs_many([a], [b], metric="euclidean")[0, 0] == pytest.approx(expected, rel=1e-6)
    assert ops.euclidean_distance(a, a) == 0.0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("place", [0, 20, 64, 99])
def test_not_a_number_comes_out_where_it_went_in(metric: ops.Metric, place: int, on_each_isa: Levels) -> None:
    rows = draw(5, 100)
    rows[2, place] = np.nan
    query = draw(100, seed=1)
    for _ in on_each_isa():
        expected = [False, False, True, False, False]
        assert np.isnan(ops.one_vs_many(query, rows, metric=metric)).tolist() == expected
        assert np.isnan(ops.many_vs_many(rows, [query, query], metric=metric)[:, 1]).tolist() == expected
        assert np.isnan(PAIRS[metric](rows[2], query))
        assert np.isnan(PAIRS[metric](np.zeros(100, np.float32), rows[2]))
    assert np.isnan(ops.normalize(rows)).any(axis=1).tolist() == [False, False, True, False, False]


def test_vectors_without_components() -> None:
    for pair in PAIRS.values():
        assert pair([], []) == 0.0
    assert ops.many_vs_many(np.empty((2, 0)), np.empty((3, 0))).tolist() == [[0] * 3] * 2


def test_matrices_without_rows() -> None:
    empty, rows = np.empty((0, 4), np.float32), draw(3, 4)
    assert ops.one_vs_many(rows[0], empty).shape == (0,)
    assert ops.many_vs_many(empty, rows).shape == (0, 3)
    assert ops.many_vs_many(rows, empty).shape == (3, 0)
    assert ops.normalize(empty).shape == (0, 4)
    assert ops.batch_cosine_similarity([]).shape == (0,)
    assert ops.top_k(rows[0], empty, 3).indices.shape == (0,)


# What is taken


@pytest.mark.parametrize(
    "convert",
    [
        list,
        lambda vector: vector.astype(np.float64),
        lambda vector: vector.astype(">f4"),
        lambda vector: np.repeat(vector, 2)[::2],
        lambda vector: np.frombuffer(b"x" + vector.tobytes(), np.uint8)[1:].view(np.float32),
        lambda vector: memoryview(vector),
    ],
    ids=["list", "float64", "big-endian", "strided", "unaligned", "memoryview"],
)
def test_other_kinds_of_vectors_give_the_same_bits(convert: Callable[[np.ndarray], object]) -> None:
    a, b = draw(70), draw(70, seed=1)
    for metric, pair in PAIRS.items():
        assert pair(convert(a), convert(b)) == pair(a, b)
        assert pair(a, convert(b)) == pair(a, b)
        assert np.array_equal(ops.one_vs_many(convert(a), [b], metric=metric), [pair(a, b)])  # type: ignore[arg-type]


def test_integers_are_numbers_too() -> None:
    assert ops.dot_product([1, 2, 3], np.array([4, 5, 6])) == 32.0
    assert ops.manhattan_distance([True, False], [0, 0]) == 1.0


@pytest.mark.parametrize("wrong", ["text", None, [["a"]], [1j, 2j], 3.0, [[1.0, 2.0]], [[1], [2, 3]], object()])
def test_things_that_are_no_vector_are_refused(wrong: object) -> None:
    for pair in PAIRS.values():
        with pytest.raises(InvalidInputError):
            pair(wrong, [1.0, 2.0])
        with pytest.raises(InvalidInputError):
            pair([1.0, 2.0], wrong)
    with pytest.raises(InvalidInputError):
        ops.one_vs_many(wrong, [[1.0, 2.0]])  # type: ignore[arg-type]


def test_different_lengths_are_refused_with_both_numbers() -> None:
    calls: list[Callable[[], object]] = [
        *(lambda pair=pair: pair(draw(3), draw(4)) for pair in PAIRS.values()),
        lambda: ops.one_vs_many(draw(3), draw(2, 4)),
        lambda: ops.many_vs_many(draw(2, 3), draw(2, 4)),
        lambda: ops.top_k(draw(3), draw(2, 4), 1),
        lambda: ops.batch_cosine_similarity(draw(2, 3), draw(2, 4)),
        lambda: ops.batch_cosine_similarity([(draw(3), draw(4))]),
    ]
    for call in calls:
        with pytest.raises(DimensionMismatchError, match="3 and of 4") as caught:
            call()
        assert (caught.value.expected, caught.value.actual) == (3, 4)


def test_wrong_shapes_and_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="2 rows cannot be paired with 3"):
        ops.batch_cosine_similarity(draw(2, 4), draw(3, 4))
    with pytest.raises(InvalidInputError, match="pair 1 does not hold two"):
        ops.batch_cosine_similarity([(draw(2), draw(2)), (draw(2),)])
    with pytest.raises(InvalidInputError, match="pairs is a int"):
        ops.batch_cosine_similarity(3)
    with pytest.raises(InvalidInputError, match="one vector a row"):
        ops.many_vs_many(draw(4), draw(3, 4))
    with pytest.raises(InvalidInputError, match="'cosine', 'dot'"):
        ops.one_vs_many(draw(4), draw(3, 4), metric="hamming")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="metric"):
        ops.one_vs_many(draw(4), draw(3, 4), metric=["dot"])  # type: ignore[arg-type]


def test_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no instruction set named"):
        _vectors.select_isa("avx9")
    assert _vectors.isa_name() in _vectors.available_isas()


# Normalizing


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_get_length_one(width: int, on_each_isa: Levels) -> None:
    rows = draw(4, width)
    expected = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    for _ in on_each_isa():
        np.testing.assert_allclose(ops.normalize(rows), expected, atol=2e-7)
        assert np.array_equal(ops.normalize(rows[1]), ops.normalize(rows)[1])


def test_zeros_stay_zeros() -> None:
    rows = np.zeros((3, 20), np.float32)
    rows[1] = 2
    assert ops.normalize(rows)[0].tolist() == [0.0] * 20
    assert ops.normalize(rows)[1] == pytest.approx(1 / np.sqrt(20))


def test_target_may_be_new_given_or_the_vectors_themselves() -> None:
    rows = draw(4, 33)
    kept = rows.copy()
    fresh = ops.normalize(rows)
    assert np.array_equal(rows, kept)
    out = np.empty_like(rows)
    assert ops.normalize(rows, out=out) is out
    assert np.array_equal(out, fresh)
    assert ops.normalize(rows.tolist(), out=out) is out
    assert ops.normalize(rows, in_place=True) is rows
    assert np.array_equal(rows, fresh)
    vector = kept[2].copy()
    assert ops.normalize(vector, out=vector) is vector
    assert np.array_equal(vector, fresh[2])


def test_overlapping_target_is_filled_as_if_it_were_apart() -> None:
    room = draw(5 * 33)
    rows, shifted = room[:132].reshape(4, 33), room[16:148].reshape(4, 33)
    expected = ops.normalize(rows.copy())
    assert np.array_equal(ops.normalize(rows, out=shifted), expected)


def test_target_that_cannot_be_written_is_refused() -> None:
    rows = draw(4, 8)
    locked = rows.copy()
    locked.flags.writeable = False
    for out in (np.empty((4, 8)), np.empty((3, 8), np.float32), np.empty((8, 4), np.float32).T, locked, [[0.0]]):
        with pytest.raises(InvalidInputError, match="the target must be"):
            ops.normalize(rows, out=out)  # type: ignore[arg-type]
    for vectors in (rows.astype(np.float64), rows[:, ::2], locked):
        with pytest.raises(InvalidInputError, match="the target must be"):
            ops.normalize(vectors, in_place=True)
    with pytest.raises(InvalidInputError, match="needs a float32 array, not a list"):
        ops.normalize([1.0, 2.0], in_place=True)
    with pytest.raises(InvalidInputError, match="contradict"):
        ops.normalize(rows, out=rows, in_place=True)
    for shape in ((), (2, 2, 2)):
        with pytest.raises(InvalidInputError, match="shape"):
            ops.normalize(np.zeros(shape, np.float32))


# Nearest rows


@pytest.mark.slow
@given(
    scores=hnp.arrays(
        np.float32, st.integers(1, 60), elements=st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0, float("nan")])
    ),
    k=st.integers(1, 70),
    metric=st.sampled_from(["dot", "manhattan"]),
)
@settings(deadline=None, max_examples=300)
def test_top_k_is_the_head_of_a_stable_sort(scores: np.ndarray, k: int, metric: ops.Metric) -> None:
    # one column: the score of a row is its number, or its distance from zero
    query = np.array([1.0 if metric == "dot" else 0.0], np.float32)
    indices, values = ops.top_k(query, scores[:, None], k, metric=metric)
    ranked = ops.one_vs_many(query, scores[:, None], metric=metric)
    keys = np.where(np.isnan(ranked), np.inf, -ranked if metric == "dot" else ranked)
    expected = np.argsort(keys, kind="stable")[:k]
    assert indices.tolist() == expected.tolist()
    assert values.tobytes() == ranked[expected].tobytes()


def test_top_k_of_a_long_list() -> None:
    query, rows = draw(32), draw(20_000, 32, seed=1)
    for metric in METRICS:
        scores = ops.one_vs_many(query, rows, metric=metric)
        best = np.argsort(-scores if metric in {"dot", "cosine"} else scores, kind="stable")
        found = ops.top_k(query, rows, 50, metric=metric)
        assert found.indices.tolist() == best[:50].tolist()
        assert found.indices.dtype == np.int64
        assert found.scores.dtype == np.float32


@pytest.mark.parametrize("k", [0, -1, 1.5, None, "3"])
def test_number_of_nearest_rows_must_be_positive(k: object) -> None:
    with pytest.raises(InvalidInputError, match="k is"):
        ops.top_k(draw(4), draw(3, 4), k)  # type: ignore[arg-type]


def test_threads_may_work_on_the_same_arrays() -> None:
    query, rows = draw(384), draw(4_000, 384, seed=1)
    expected = ops.one_vs_many(query, rows).tobytes()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            if ops.one_vs_many(query, rows).tobytes() != expected:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_no_number_of_threads_is_refused() -> None:
    before = _vectors.get_num_threads()
    wrong: list[object] = [0, -1, 257, 1.5, "x", True, np.True_, None, [1], 10**400, 10**5000]
    for value in wrong:
        with pytest.raises(InvalidInputError, match=r"^threads is .*; it must be an integer from 1 to 256$"):
            _vectors.set_num_threads(value)  # type: ignore[arg-type]
    assert _vectors.get_num_threads() == before
