"""The catalogue's facts and the names it understands."""

import json
import pickle
from pathlib import Path

import pytest

from lattice_embed import EmbeddingModel, ModelDescription, Role, UnknownModelError

DATA = Path(__file__).parent / "data"
FACTS = json.loads((DATA / "catalogue.json").read_text())
NAMES = json.loads((DATA / "model_names.json").read_text())


def test_ten_models_are_known_and_no_more() -> None:
    assert [model.name for model in EmbeddingModel] == [facts["member"] for facts in FACTS]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts["slug"])
def test_facts_are_those_of_the_model_cards(facts: dict[str, object]) -> None:
    model = EmbeddingModel[str(facts["member"])]
    for name, value in facts.items():
        if name != "member":
            assert getattr(model, name) == value, name
            assert getattr(model.description, name) == value, name
    assert model.value == facts["slug"]
    assert model.license


@pytest.mark.parametrize(("name", "slug"), NAMES)
def test_names_are_understood_in_any_usual_spelling(name: str, slug: str | None) -> None:
    if slug is None:
        with pytest.raises(UnknownModelError, match=r"known are bge-small-en-v1\.5"):
            EmbeddingModel.parse(name)
    else:
        assert EmbeddingModel.parse(name).slug == slug


def test_misspelt_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownModelError, match="did you mean all-minilm-l6-v2"):
        EmbeddingModel.parse("all-minilm-l6-v3")


def test_default_is_bge_small() -> None:
    assert EmbeddingModel.default() is EmbeddingModel.BGE_SMALL_EN_V1_5


def test_every_member_is_found_by_slug_and_hub_id() -> None:
    for model in EmbeddingModel:
        assert EmbeddingModel.parse(model.slug) is model
        assert EmbeddingModel.parse(model.model_id) is model
        assert EmbeddingModel(model.slug) is model
        assert pickle.loads(pickle.dumps(model)) is model


def test_prompt_follows_the_role() -> None:
    description = EmbeddingModel.MULTILINGUAL_E5_SMALL.description
    assert description.prompt(Role.QUERY) == "query: "
    assert description.prompt(Role.PASSAGE) == "passage: "
    assert description.prompt(Role.GENERIC) == ""


def test_description_of_a_model_of_your_own() -> None:
    mine = ModelDescription(slug="mine", model_id="me/mine", native_dimensions=8, max_tokens=16, pooling="mean")
    assert mine.prompt(Role.QUERY) == ""
    assert not mine.supports_output_dim


def test_instructions_are_the_prompts_or_none() -> None:
    for model in EmbeddingModel:
        assert (model.query_instruction() or "") == model.query_prompt
        assert (model.document_instruction() or "") == model.passage_prompt
    assert EmbeddingModel.ALL_MINILM_L6_V2.query_instruction() is None
    assert EmbeddingModel.MULTILINGUAL_E5_SMALL.document_instruction() == "passage: "
    assert EmbeddingModel.QWEN3_EMBEDDING_0_6B.document_instruction() is None
