"""Masked, sparse, complex and object arrays are refused wherever vectors come in; other real numbers are converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lattice_embed import (
    DriftBaseline,
    DriftTolerance,
    EmbeddingResult,
    InvalidInputError,
    Role,
)
from lattice_embed import vectors as ops
from lattice_embed.integrations.sentence_transformers import SentenceEncoder
from lattice_embed.stores import NumpyVectorStore, SqliteVectorStore, StoredDocument, VectorSpace

DIMS = 4
MATRIX = np.random.default_rng(7).standard_normal((5, DIMS)).astype(np.float32)
INT8 = ops.Int8Matrix.quantize(MATRIX)
INT4 = ops.Int4Matrix.quantize(MATRIX)
ENCODER = SimpleNamespace(similarity_fn_name="cosine")
SPACE = VectorSpace(model="m", fingerprint="f" * 32, dimensions=DIMS)


def baseline_of(vectors: Any) -> DriftBaseline:
    return DriftBaseline(
        model="m",
        texts=tuple("abcde"),
        vectors=vectors,
        fingerprint="f",
        numerics_version=1,
        role=Role.GENERIC,
        tolerance=DriftTolerance(),
    )


def similarity(a: Any, b: Any) -> Any:
    encoder: Any = SentenceEncoder.__new__(SentenceEncoder)
    encoder.similarity_fn_name = "cosine"
    return encoder.similarity(a, b)


def similarity_pairwise(a: Any, b: Any) -> Any:
    encoder: Any = SentenceEncoder.__new__(SentenceEncoder)
    encoder.similarity_fn_name = "cosine"
    return encoder.similarity_pairwise(a, b)


MATRICES: dict[str, Callable[[Any], Any]] = {
    "one_vs_many": lambda m: ops.one_vs_many(MATRIX[0], m),
    "one_vs_many of int8 rows": lambda m: ops.many_vs_many(m, INT8),
    "many_vs_many, first": lambda m: ops.many_vs_many(m, MATRIX),
    "many_vs_many, second": lambda m: ops.many_vs_many(MATRIX, m),
    "batch_cosine_similarity, first": lambda m: ops.batch_cosine_similarity(m, MATRIX),
    "batch_cosine_similarity, second": lambda m: ops.batch_cosine_similarity(MATRIX, m),
    "batch_cosine_similarity of pairs": lambda m: ops.batch_cosine_similarity([(row, row) for row in m]),
    "top_k": lambda m: ops.top_k(MATRIX[0], m, 2),
    "top_k, rescore": lambda m: ops.top_k(MATRIX[0], INT8, 1, rescore=m, oversample=1),
    "search, queries": lambda m: ops.search(m, MATRIX, 2),
    "search, queries for int4 rows": lambda m: ops.search(m, INT4, 2),
    "search, rows": lambda m: ops.search(MATRIX, m, 2),
    "search, rescore": lambda m: ops.search(MATRIX[:1], INT8, 1, rescore=m, oversample=1),
    "search, queries with rescore": lambda m: ops.search(m, INT8, 1, rescore=MATRIX),
    "normalize": lambda m: ops.normalize(m),
    "quantize to int8": lambda m: ops.quantize(m, "int8"),
    "quantize to int4": lambda m: ops.Int4Matrix.quantize(m),
    "quantize to bits": lambda m: ops.quantize(m, "binary"),
    "quantize to bfloat16": lambda m: ops.BFloat16Matrix.quantize(m),
    "quantize to float16": lambda m: ops.Float16Matrix.quantize(m),
    "Int8Calibration.fit": lambda m: ops.Int8Calibration.fit(m),
    "EmbeddingResult": lambda m: EmbeddingResult(m),
    "StoredDocument": lambda m: StoredDocument.embedded("d", "text", m, fingerprint="f", spans=[(0, 1)] * 5),
    "DriftBaseline": baseline_of,
    "SentenceEncoder.similarity": lambda m: similarity(m, MATRIX),
    "SentenceEncoder.similarity_pairwise": lambda m: similarity_pairwise(MATRIX, m),
}
VECTORS: dict[str, Callable[[Any], Any]] = {
    "dot_product": lambda v: ops.dot_product(v, MATRIX[0]),
    "cosine_similarity": lambda v: ops.cosine_similarity(MATRIX[0], v),
    "cosine_similarity with int8": lambda v: ops.cosine_similarity(v, INT8[0]),
    "euclidean_distance": lambda v: ops.euclidean_distance(v, v),
    "squared_euclidean_distance": lambda v: ops.squared_euclidean_distance(v, v),
    "manhattan_distance": lambda v: ops.manhattan_distance(v, v),
    "one_vs_many": lambda v: ops.one_vs_many(v, MATRIX),
    "one_vs_many of int8 rows": lambda v: ops.one_vs_many(v, INT8),
    "top_k": lambda v: ops.top_k(v, MATRIX, 2),
    "normalize": lambda v: ops.normalize(v),
    "QuantizedVector": lambda v: ops.QuantizedVector.quantize(v),
    "Int4Vector": lambda v: ops.Int4Vector.quantize(v),
    "BinaryVector": lambda v: ops.BinaryVector.quantize(v),
    "Int8Calibration": lambda v: ops.Int8Calibration(np.ones(DIMS), v),
    "StoredDocument": lambda v: StoredDocument.embedded("d", "text", v, fingerprint="f"),
}


def masked(values: Any) -> np.ma.MaskedArray[Any, Any]:
    mask = np.zeros(np.shape(values), bool)
    mask[-1] = True
    return np.ma.masked_array(values, mask=mask)


def wrong_forms(values: np.ndarray[Any, Any]) -> dict[str, tuple[Any, str]]:
    return {
        "masked": (masked(values), "masked"),
        "masked float64": (masked(values.astype(np.float64)), "masked"),
        "a list with masked rows": (list(masked(values)), "masked"),
        "sparse": (sparse.csr_matrix(np.atleast_2d(values)), "sparse"),
        "a sparse array": (sparse.coo_array(np.atleast_2d(values)), "sparse"),
        "complex": (values.astype(np.complex64), "complex64"),
        "objects": (values.astype(object), "objects"),
        "texts": (values.astype(str), "<U"),
        "None": (None, "None|NoneType"),
        "too large": (np.full(values.shape, 1e300), "1e\\+300.*float32"),
        "10**400": ([10**400] * 4, "objects|float32|cannot be read|too large"),
        "dates": (np.zeros(values.shape, "datetime64[s]"), "datetime64"),
    }


@pytest.mark.parametrize("form", wrong_forms(MATRIX))
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_that_is_not_plain_is_refused(name: str, form: str) -> None:
    if name == "batch_cosine_similarity of pairs" and form in ("None", "sparse", "a sparse array", "10**400"):
        return  # cannot be cut into pairs by the test
    if form == "None" and ("rescore" in name or name == "batch_cosine_similarity, second"):
        return  # there it stands for none
    values, message = wrong_forms(MATRIX)[form]
    with pytest.raises(InvalidInputError, match=message):
        MATRICES[name](values)


@pytest.mark.parametrize("form", wrong_forms(MATRIX[0]))
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_that_is_not_plain_is_refused(name: str, form: str) -> None:
    values, message = wrong_forms(MATRIX[0])[form]
    with pytest.raises(InvalidInputError, match=message):
        VECTORS[name](values)


@pytest.mark.parametrize(
    "name", ["one_vs_many", "top_k", "search, rows", "normalize", "EmbeddingResult", "DriftBaseline"]
)
def test_a_single_number_is_no_matrix(name: str) -> None:
    for number in (1.5, np.float32(1.5), np.array(2)):
        with pytest.raises(InvalidInputError, match=r"shape|dimensions"):
            MATRICES[name](number)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.longdouble])
def test_other_real_dtypes_give_what_their_float32_values_give(name: str, dtype: Any) -> None:
    values = (MATRIX * 100).astype(dtype)
    expected, found = MATRICES[name](values.astype(np.float32)), MATRICES[name](values)
    assert repr(expected) == repr(found)


@pytest.mark.parametrize("name", MATRICES)
def test_a_mask_that_hides_nothing_and_a_memory_map_are_plain(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", MATRIX)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    expected = repr(MATRICES[name](MATRIX))
    assert repr(MATRICES[name](np.ma.masked_array(MATRIX, mask=False))) == expected
    assert repr(MATRICES[name](mapped)) == expected


def test_a_masked_row_is_never_a_hit() -> None:
    with pytest.raises(InvalidInputError, match=r"the matrix has 4 masked values.*compress_rows.*filled"):
        ops.search(MATRIX[-1:], masked(MATRIX), 1)


def test_signalling_numbers_stay_what_they_are() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e-300], np.float64)
    assert np.isnan(ops.dot_product(values, values))
    assert EmbeddingResult([[np.inf, 1.0]]).vectors[0, 0] == np.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.Int8Matrix(masked(INT8.data), INT8.scales),
        lambda: ops.Int8Matrix(INT8.data, masked(INT8.scales)),
        lambda: ops.Int8Matrix(INT8.data, INT8.scales, masked(INT8.norms)),
        lambda: ops.Int4Matrix(masked(INT4.data), DIMS, INT4.scales, INT4.max_abs),
        lambda: ops.BinaryMatrix(masked(ops.quantize(MATRIX, "binary").data), DIMS),
        lambda: ops.Float16Matrix(masked(ops.quantize(MATRIX, "float16").data)),
        lambda: INT8.take(masked([0, 1])),
        lambda: ops.normalize(MATRIX, out=masked(MATRIX)),
        lambda: ops.normalize(masked(MATRIX), in_place=True),
        lambda: ops.dot_product_i8_raw(masked(INT8.data[0]), INT8.data[0]),
        lambda: ops.cosine_similarity_i8(INT8.data[0], masked(INT8.data[0])),
        lambda: ops.hamming_distance_binary(masked(INT4.data[0]), INT4.data[0]),
        lambda: EmbeddingResult(MATRIX, token_counts=masked([1] * 5)),
        lambda: EmbeddingResult(MATRIX, truncated=masked([True] * 5)),
    ],
)
def test_masked_parts_of_other_arguments_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match="masked"):
        make()


@pytest.mark.parametrize("kind", [NumpyVectorStore, SqliteVectorStore])
def test_a_masked_query_of_a_store_is_refused(kind: Any, tmp_path: Path) -> None:
    with kind.create(tmp_path / "store", SPACE) as store:
        store.put([StoredDocument.embedded("d", "text", MATRIX[0], fingerprint=SPACE.fingerprint)])
        with pytest.raises(InvalidInputError, match="the query has 1 masked"):
            store.query(masked(MATRIX[0]))
        with pytest.raises(InvalidInputError, match="objects"):
            store.query(MATRIX[0].astype(object))


@pytest.mark.parametrize("rows", [[5], [-6], [True], [0.5], "a", [[0]], None])
def test_rows_that_are_not_there_are_refused(rows: Any) -> None:
    for matrix in (INT8, INT4, ops.quantize(MATRIX, "binary"), ops.quantize(MATRIX, "bfloat16")):
        with pytest.raises(InvalidInputError, match=r"rows|mask"):
            matrix.take(rows)


@pytest.mark.parametrize("counts", [[2**40], [-2], [0.5], ["1"]])
def test_token_counts_that_are_none_are_refused(counts: Any) -> None:
    with pytest.raises(InvalidInputError, match="token_counts"):
        EmbeddingResult(MATRIX[:1], token_counts=counts)
