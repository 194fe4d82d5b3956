"""EmbeddingKey: bytes that two spaces never share."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_embed import (
    DistanceMetric,
    EmbeddingKey,
    EmbeddingModel,
    InvalidInputError,
    ModelConfig,
    ModelDescription,
    VectorDType,
    VectorNorm,
)

texts = st.text(max_size=12)
keys = st.builds(
    EmbeddingKey,
    texts,
    texts,
    st.integers(1, 2**32 - 1),
    st.sampled_from(DistanceMetric),
    st.sampled_from(VectorDType),
    st.sampled_from(VectorNorm),
)


def test_canonical_bytes_are_laid_out_as_documented() -> None:
    key = EmbeddingKey("modèle", "v1", 384, DistanceMetric.DOT, VectorDType.INT8, VectorNorm.UNIT)
    assert key.canonical_bytes == b"\0\0\0\x07mod\xc3\xa8le" + b"\0\0\0\x02v1" + b"\0\0\x01\x80" + b"\x02\x03\x01"


def test_numbers_are_those_of_the_reference() -> None:
    assert [int(value) for value in DistanceMetric] == [1, 2, 3]
    assert [int(value) for value in VectorDType] == [1, 2, 3]
    assert [value.itemsize for value in VectorDType] == [4, 2, 1]
    assert [int(value) for value in VectorNorm] == [0, 1]
    key = EmbeddingKey("m", "", 1)
    assert (key.metric, key.dtype, key.norm) == (DistanceMetric.COSINE, VectorDType.FLOAT32, VectorNorm.NONE)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(keys, keys)
def test_keys_are_equal_where_their_bytes_are(first: EmbeddingKey, second: EmbeddingKey) -> None:
    assert (first == second) == (first.canonical_bytes == second.canonical_bytes)


def test_fields_do_not_run_together() -> None:
    spellings = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    assert len({EmbeddingKey(model, revision, 5).canonical_bytes for model, revision in spellings}) == 4


@pytest.mark.parametrize(
    "fields",
    [
        (5, "", 1),
        ("m", None, 1),
        ("m", "", 0),
        ("m", "", 2**32),
        ("m", "", 1.5),
        ("m", "", True),
        ("m", "", 1, 1),
        ("m", "", 1, DistanceMetric.DOT, "int8"),
    ],
)
def test_a_field_of_another_kind_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInputError):
        EmbeddingKey(*fields)  # type: ignore[arg-type]


def test_a_configuration_names_its_space() -> None:
    key = ModelConfig(EmbeddingModel.ALL_MINILM_L6_V2).to_embedding_key()
    assert key == EmbeddingKey("all-minilm-l6-v2", "v2", 384, norm=VectorNorm.UNIT)
    other = ModelConfig(EmbeddingModel.ALL_MINILM_L6_V2).to_embedding_key(revision="abc", dtype=VectorDType.INT8)
    assert (other.revision, other.dtype) == ("abc", VectorDType.INT8)
    mine = ModelDescription(slug="mine", model_id="me/mine", native_dimensions=3, max_tokens=9, pooling=None)
    assert ModelConfig(mine).to_embedding_key().dims == 3


def test_models_and_dimensions_of_the_catalogue_have_keys_of_their_own() -> None:
    configs = [ModelConfig(model) for model in EmbeddingModel]
    configs += [ModelConfig(EmbeddingModel.QWEN3_EMBEDDING_0_6B, size) for size in (32, 256, 512)]
    keys = [config.to_embedding_key().canonical_bytes for config in configs]
    assert all(first != second for first, second in itertools.combinations(keys, 2))
