"""Vectors of two embedding spaces are never compared without a word."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    CachedEmbeddingService,
    DimensionMismatchError,
    EmbeddingModel,
    EmbeddingResult,
    InvalidInputError,
    NativeEmbeddingService,
    Role,
    SpaceMismatchError,
    VectorProvenance,
)
from lattice_embed import vectors as ops
from lattice_embed.integrations.sentence_transformers import SentenceEncoder
from lattice_embed.stores import StoredDocument

ROWS = np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)
TIERS = ("bfloat16", "float16", "int8", "int4", "binary")


def result(
    model: str = "one", *, prompt: str = "", rows: np.ndarray[Any, Any] = ROWS, **fields: Any
) -> EmbeddingResult:
    made = VectorProvenance(model=model, weights=model, dimensions=rows.shape[1], prompt=prompt, **fields)
    return EmbeddingResult(rows, provenance=made, model=model, prompt=prompt)


def labelled(fingerprint: str, **fields: Any) -> EmbeddingResult:
    return EmbeddingResult(ROWS, fingerprint=fingerprint, **fields)


def sentence_encoder() -> Any:
    encoder: Any = SentenceEncoder.__new__(SentenceEncoder)
    encoder.similarity_fn_name = "cosine"
    return encoder


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "search": lambda a, b: ops.search(a, b, 2),
    "search, rescored": lambda a, b: ops.search(a, ops.quantize(ROWS, "int8"), 2, rescore=b),
    "search of candidates": lambda a, b: ops.search(ROWS, ops.quantize(a, "binary"), 2, rescore=b),
    "top_k, rescored": lambda a, b: ops.top_k(ROWS[0], ops.quantize(a, "int4"), 2, rescore=b),
    "many_vs_many": lambda a, b: ops.many_vs_many(a, b),
    "batch_cosine_similarity": lambda a, b: ops.batch_cosine_similarity(a, b),
    "SentenceEncoder.similarity": lambda a, b: sentence_encoder().similarity(a, b),
    "SentenceEncoder.similarity_pairwise": lambda a, b: sentence_encoder().similarity_pairwise(a, b),
}
STORED: dict[str, Callable[[Any, Any], Any]] = {
    "search": lambda a, b: ops.search(a, b, 2),
    "many_vs_many": lambda a, b: ops.many_vs_many(a, b),
    "many_vs_many of a result": lambda a, b: ops.many_vs_many(result("one"), b),
    "many_vs_many against a result": lambda a, b: ops.many_vs_many(a, result("two")),
    "some rows": lambda a, b: ops.search(a.take([0]), b.take(slice(1)), 1),
    "unpickled": lambda a, b: ops.search(pickle.loads(pickle.dumps(a)), pickle.loads(pickle.dumps(b)), 1),
    "one_vs_many": lambda a, b: ops.one_vs_many(a[0], b),
    "top_k": lambda a, b: ops.top_k(a[0], b, 1),
    "cosine_similarity": lambda a, b: ops.cosine_similarity(a[0], b[0]),
    "batch_cosine_similarity": lambda a, b: ops.batch_cosine_similarity([(a[0], b[0])]),
}


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
def test_results_of_two_models_are_not_compared(compare: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(SpaceMismatchError, match=r"not comparable \(weights 'one' and 'two'\)") as caught:
        compare(result("one"), result("two"))
    assert (caught.value.expected, caught.value.actual) == (result("one").fingerprint, result("two").fingerprint)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    with pytest.raises(SpaceMismatchError):
        compare(labelled("a" * 32), labelled("b" * 32))
    with pytest.raises(SpaceMismatchError, match="model 'm' and 'n'"):
        compare(labelled("a", model="m", prompt="query: "), labelled("b", model="n"))


@pytest.mark.parametrize("compare", STORED.values(), ids=STORED)
@pytest.mark.parametrize("tier", TIERS)
def test_quantized_results_of_two_models_are_not_compared(compare: Callable[[Any, Any], Any], tier: Any) -> None:
    first, second = (ops.quantize(result(model), tier) for model in ("one", "two"))
    if tier in ("bfloat16", "float16") and compare in list(STORED.values())[-4:]:
        return  # a row of these is a plain array
    with pytest.raises(SpaceMismatchError, match="weights"):
        compare(first, second)
    compare(ops.quantize(result("two"), tier), second) if compare is STORED["search"] else None


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
def test_one_space_and_what_is_unknown_compare_as_their_arrays_do(compare: Callable[[Any, Any], Any]) -> None:
    expected = repr(compare(ROWS, ROWS))
    assert repr(compare(result(prompt="query: "), result(prompt="passage: "))) == expected
    assert repr(compare(result(), ROWS)) == expected
    assert repr(compare(result(), EmbeddingResult(ROWS))) == expected
    assert repr(compare(labelled("a"), labelled("a"))) == expected
    assert repr(compare(labelled("a", prompt="query: ", model="m"), labelled("b", model="m"))) == expected


@pytest.mark.parametrize("changed", [{"pooling": "cls"}, {"precision": "int8"}, {"numerics_version": 9}])
def test_each_field_of_a_space_keeps_vectors_apart(changed: dict[str, Any]) -> None:
    with pytest.raises(SpaceMismatchError, match=next(iter(changed))):
        ops.search(result(), result(**changed), 1)


def test_other_dimensions_of_two_models_are_two_spaces_first() -> None:
    with pytest.raises(SpaceMismatchError):
        ops.search(result("one"), result("two", rows=ROWS[:, :4]), 1)
    with pytest.raises(DimensionMismatchError):
        ops.search(ROWS, ROWS[:, :4], 1)


def test_results_of_services_say_their_space(loader: Any) -> None:
    mini, small = (NativeEmbeddingService(name) for name in (EmbeddingModel.ALL_MINILM_L6_V2, "bge-small-en-v1.5"))
    queries, passages = small.embed(["a"], role=Role.QUERY), small.embed(["a", "b"], role=Role.PASSAGE)
    assert ops.search(queries, passages, 1).indices.shape == (1, 1)
    cached = CachedEmbeddingService(small).embed(["a"], role=Role.QUERY)
    assert ops.search(cached, passages, 1).indices.shape == (1, 1)
    for one in (queries, cached):
        with pytest.raises(SpaceMismatchError, match="weights"):
            ops.search(mini.embed(["a"]), one, 1)


def test_a_comparison_of_one_service_reads_no_file(loader: Any) -> None:
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2) as service:
        queries, passages = service.embed(["a"]), service.embed(["b"], role=Role.QUERY)
        loaded: Any = service._loaded
        ops.search(queries, passages, 1)
        assert loaded._provenances == {}


def test_a_document_is_not_given_anothers_fingerprint() -> None:
    made = result()
    document = StoredDocument.embedded("d", "text", made, fingerprint=made.fingerprint, spans=[(0, 1)] * 3)
    assert document.fingerprint == made.fingerprint
    with pytest.raises(SpaceMismatchError):
        StoredDocument.embedded("d", "text", made, fingerprint="f" * 32, spans=[(0, 1)] * 3)


def test_the_error_is_one_that_a_caller_of_the_stores_knows() -> None:
    with pytest.raises(InvalidInputError):
        ops.search(result("one"), result("two"), 1)


def test_the_origin_is_no_part_of_equality() -> None:
    assert ops.quantize(result(), "int8") == ops.quantize(ROWS, "int8")
