"""VectorProvenance: what a stored vector carries, and what a comparison checks."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from lattice_embed import EmbeddingModel, InvalidInputError, NativeEmbeddingService, ProvenanceMismatchError, Role
from lattice_embed import VectorProvenance as Provenance

BASE = Provenance(
    model="mine",
    weights="abc:mean:256:float32:n1",
    pooling="mean",
    prompt="query: ",
    dimensions=384,
    precision="float32",
    normalized=True,
    numerics_version=1,
)
OTHER = {
    "weights": "xyz:mean:256:float32:n1",
    "pooling": "cls",
    "prompt": "passage: ",
    "dimensions": 256,
    "precision": "bfloat16",
    "normalized": False,
    "numerics_version": 2,
}


def test_every_field_but_the_label_changes_the_fingerprint() -> None:
    assert set(OTHER) | {"model"} == {field.name for field in fields(Provenance)}
    prints = {BASE.fingerprint, *(replace(BASE, **{name: value}).fingerprint for name, value in OTHER.items())}  # type: ignore[arg-type]
    assert len(prints) == len(OTHER) + 1
    assert replace(BASE, model="the same weights elsewhere").fingerprint == BASE.fingerprint
    assert len(BASE.fingerprint) == len(BASE.space) == 32


def test_without_a_digest_of_the_weights_the_name_tells_models_apart() -> None:
    first, second = (Provenance(model=name, dimensions=3) for name in ("a", "b"))
    assert first.fingerprint != second.fingerprint
    assert (
        Provenance(model="b", dimensions=3, weights="a").fingerprint != Provenance(model="a", dimensions=3).fingerprint
    )


def test_a_query_may_be_compared_with_a_passage_and_with_nothing_of_another_space() -> None:
    BASE.check_comparable(replace(BASE, prompt="passage: "))
    for name, value in OTHER.items():
        if name != "prompt":
            with pytest.raises(ProvenanceMismatchError, match=name) as caught:
                BASE.check_comparable(replace(BASE, **{name: value}))  # type: ignore[arg-type]
            assert caught.value.fields == {name: (getattr(BASE, name), value)}
    with pytest.raises(ProvenanceMismatchError, match="weights"):
        BASE.check_comparable(replace(BASE, weights=""))
    with pytest.raises(ProvenanceMismatchError, match="model 'a' and 'b'"):
        Provenance(model="a", dimensions=3).check_comparable(Provenance(model="b", dimensions=3))


def test_the_error_crosses_processes() -> None:
    error = ProvenanceMismatchError(fields={"dimensions": (3, 4)})
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.fields) == (str(error), error.fields)


def test_json_gives_the_same_provenance_back() -> None:
    assert Provenance.from_json(BASE.to_json()) == BASE
    assert pickle.loads(pickle.dumps(BASE)) == BASE
    stored = json.loads(BASE.to_json())
    assert (stored["space"], stored["fingerprint"]) == (BASE.space, BASE.fingerprint)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"dimensions": "384"},
        {"dimensions": True},
        {"normalized": 1},
        {"model": None},
        {"pooling": "cls"},
        {"fingerprint": "0" * 32},
    ],
)
def test_json_that_was_edited_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Provenance.from_json(json.dumps(json.loads(BASE.to_json()) | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 60_000, " " * 70_000])
def test_what_is_no_provenance_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Provenance.from_json(text)


def test_every_result_says_where_its_vectors_come_from(service: NativeEmbeddingService) -> None:
    result = service.embed(["a"])
    assert result.provenance == Provenance(
        model="all-minilm-l6-v2",
        weights="fake:sentence-transformers/all-MiniLM-L6-v2",
        pooling="mean",
        dimensions=384,
        numerics_version=1,
    )
    assert result.fingerprint == result.provenance.fingerprint
    assert service.provenance() == result.provenance
    assert service.embed(["a"], normalize=False).provenance == replace(result.provenance, normalized=False)
    assert pickle.loads(pickle.dumps(result)).provenance == result.provenance


def test_roles_lie_in_one_space_and_precisions_do_not(loader: Any) -> None:
    bge = NativeEmbeddingService(EmbeddingModel.BGE_SMALL_EN_V1_5)
    query, passage = (bge.provenance(role=role) for role in (Role.QUERY, Role.PASSAGE))
    assert query.prompt == EmbeddingModel.BGE_SMALL_EN_V1_5.query_prompt
    assert query.fingerprint != passage.fingerprint
    query.check_comparable(passage)
    rounded = NativeEmbeddingService(EmbeddingModel.BGE_SMALL_EN_V1_5, precision="bfloat16").provenance()
    with pytest.raises(ProvenanceMismatchError, match="precision 'float32' and 'bfloat16'"):
        passage.check_comparable(rounded)
