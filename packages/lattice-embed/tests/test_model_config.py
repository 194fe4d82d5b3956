"""ModelConfig refuses dimensions that a model was not trained for (INV-2, INV-3)."""

import dataclasses
import pickle

import numpy as np
import pytest

from lattice_embed import MIN_MRL_OUTPUT_DIM, EmbeddingModel, ModelConfig, ModelConfigError, ModelDescription

QWEN = EmbeddingModel.QWEN3_EMBEDDING_0_6B


def test_dimensions_are_native_unless_asked_otherwise() -> None:
    assert ModelConfig(EmbeddingModel.BGE_SMALL_EN_V1_5).dimensions == 384
    assert ModelConfig(QWEN).dimensions == 1024
    assert ModelConfig(QWEN, 256).dimensions == 256


@pytest.mark.parametrize("dimension", [MIN_MRL_OUTPUT_DIM, 33, 1023, 1024, np.int64(64)])
def test_dimension_within_the_trained_range_is_accepted(dimension: int) -> None:
    config = ModelConfig(QWEN, dimension)
    assert config.dimensions == dimension
    assert type(config.output_dim) is int


@pytest.mark.parametrize("dimension", [0, -1, MIN_MRL_OUTPUT_DIM - 1, 1025])
def test_dimension_outside_the_trained_range_is_refused(dimension: int) -> None:
    with pytest.raises(ModelConfigError, match=r"outside \[32, 1024\]"):
        ModelConfig(QWEN, dimension)


@pytest.mark.parametrize("dimension", [64.0, "64", True, float("nan")])
def test_dimension_that_is_no_integer_is_refused(dimension: object) -> None:
    with pytest.raises(ModelConfigError, match="output_dim is"):
        ModelConfig(QWEN, dimension)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [model for model in EmbeddingModel if not model.supports_output_dim])
def test_model_not_trained_for_shorter_vectors_refuses_any(model: EmbeddingModel) -> None:
    for dimension in (64, model.native_dimensions):
        with pytest.raises(ModelConfigError, match="not trained for shorter vectors"):
            ModelConfig(model, dimension)


def test_only_qwen3_was_trained_for_shorter_vectors() -> None:
    assert {model.name for model in EmbeddingModel if model.supports_output_dim} == {
        "QWEN3_EMBEDDING_0_6B",
        "QWEN3_EMBEDDING_4B",
    }


def test_name_instead_of_a_model_is_refused() -> None:
    with pytest.raises(ModelConfigError, match=r"EmbeddingModel\.parse"):
        ModelConfig("bge-small-en-v1.5")  # type: ignore[arg-type]


def test_config_is_a_value() -> None:
    config = ModelConfig(QWEN, 64)
    assert config == ModelConfig(QWEN, 64)
    assert config != ModelConfig(QWEN)
    assert len({config, ModelConfig(QWEN, 64), ModelConfig(QWEN, 65)}) == 2
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.output_dim = 32  # type: ignore[misc]


def test_model_of_your_own_has_a_config() -> None:
    mine = ModelDescription(slug="mine", model_id="me/mine", native_dimensions=8, max_tokens=16, pooling="mean")
    assert ModelConfig(mine).dimensions == 8


def test_try_new_is_the_constructor_by_another_name() -> None:
    assert ModelConfig.try_new(EmbeddingModel.QWEN3_EMBEDDING_0_6B, 64) == ModelConfig(
        EmbeddingModel.QWEN3_EMBEDDING_0_6B, 64
    )
    assert ModelConfig.try_new(EmbeddingModel.ALL_MINILM_L6_V2).dimensions == 384
    for model, dimension in [
        (EmbeddingModel.ALL_MINILM_L6_V2, 64),
        (EmbeddingModel.QWEN3_EMBEDDING_0_6B, 31),
        (EmbeddingModel.QWEN3_EMBEDDING_0_6B, 1025),
        (EmbeddingModel.QWEN3_EMBEDDING_0_6B, True),
    ]:
        with pytest.raises(ModelConfigError):
            ModelConfig.try_new(model, dimension)


def test_validate_finds_a_configuration_altered_by_force() -> None:
    config = ModelConfig(EmbeddingModel.QWEN3_EMBEDDING_0_6B, 64)
    config.validate()
    object.__setattr__(config, "output_dim", 4096)
    with pytest.raises(ModelConfigError, match="4096 is outside"):
        config.validate()
