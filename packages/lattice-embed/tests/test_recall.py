"""How many of the true nearest neighbours each tier finds, on vectors of real sentences."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import NativeEmbeddingService
from lattice_embed import vectors as ops

STSB = Path(__file__).parents[4] / "shared" / "data" / "text" / "stsb" / "stsb-en-test.csv"
SENTENCES = 800
QUERIES = 200

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not STSB.exists(), reason=f"{STSB} is not here; its licence does not let us ship it"),
]


@pytest.fixture(scope="module")
def sentence_vectors(minilm: NativeEmbeddingService) -> Any:
    with STSB.open(encoding="utf-8", newline="") as file:
        texts = dict.fromkeys(text for row in csv.reader(file) for text in row[:2])
    return minilm.encode(list(texts)[:SENTENCES])


def recall(vectors: Any, found: Any) -> float:
    """Recall@10 of each query's neighbours but itself."""
    truth = ops.search(vectors[:QUERIES], vectors, 11).indices
    hits = 0
    for query, (true, seen) in enumerate(zip(truth, found, strict=True)):
        hits += len({*true[true != query][:10]} & {*seen[seen != query][:10]})
    return hits / (10 * QUERIES)


@pytest.mark.parametrize(
    ("tier", "rescored", "least"),
    [
        ("bfloat16", False, 0.995),
        ("int8", False, 0.99),
        ("int4", False, 0.92),
        ("int4", True, 0.999),
        ("binary", True, 0.95),
    ],
)
def test_true_neighbours_are_found(sentence_vectors: Any, tier: Any, rescored: bool, least: float) -> None:
    matrix: ops.StoredMatrix = ops.quantize(sentence_vectors, tier)
    found = ops.search(sentence_vectors[:QUERIES], matrix, 11, rescore=sentence_vectors if rescored else None)
    assert recall(sentence_vectors, found.indices) >= least


def test_calibrated_int8_finds_them_too(sentence_vectors: Any) -> None:
    calibration = ops.Int8Calibration.fit(sentence_vectors[::3])
    matrix = ops.quantize(sentence_vectors, "int8", calibration=calibration)
    assert recall(sentence_vectors, ops.search(sentence_vectors[:QUERIES], matrix, 11).indices) >= 0.98


def test_quantized_queries_lose_little_more(sentence_vectors: Any) -> None:
    matrix = ops.quantize(sentence_vectors, "int8")
    found = ops.search(matrix.take(slice(0, QUERIES)), matrix, 11)
    assert recall(sentence_vectors, found.indices) >= 0.985
