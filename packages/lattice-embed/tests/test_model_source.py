"""What a caller may write for a model."""

from pathlib import Path

import pytest

from lattice_embed import EmbeddingModel, InvalidInputError, UnknownModelError
from lattice_embed.model_source import default_model, resolve_model


def test_member_slug_and_hub_id_are_the_same_model() -> None:
    member = EmbeddingModel.ALL_MINILM_L6_V2
    for name in (member, member.slug, member.model_id, "minilm"):
        source = resolve_model(name)
        assert source.model is member
        assert source.location == "sentence-transformers/all-MiniLM-L6-v2"
        assert source.name == "all-minilm-l6-v2"


def test_directory_is_remembered_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("my-model", "./my-model", Path("my-model"), tmp_path / "my-model"):
        source = resolve_model(name)
        assert source.location == str(tmp_path.resolve() / "my-model")
        assert source.name == "my-model"
        assert source.model is None


def test_hub_id_outside_the_catalogue_is_passed_on() -> None:
    source = resolve_model("sentence-transformers/all-mpnet-base-v2")
    assert source.location == "sentence-transformers/all-mpnet-base-v2"
    assert source.model is None


@pytest.mark.parametrize(
    "name",
    [
        "no-such-model",
        "./missing/dir",
        "/missing/dir",
        "a/b/c",
        "~/missing-model-folder",
        "~nobody-here/model",
        "x" * 5_000,
        "a\0b",
    ],
)
def test_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownModelError):
        resolve_model(name)


def test_path_is_never_taken_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModelError, match="no directory"):
        resolve_model(Path("owner/name"))


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(InvalidInputError, match="pass the directory"):
        resolve_model(file)


@pytest.mark.parametrize("model", [3, None, ["minilm"], b"minilm", "", "  "])
def test_thing_that_is_no_name_is_refused(model: object) -> None:
    with pytest.raises(InvalidInputError):
        resolve_model(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, EmbeddingModel.BGE_SMALL_EN_V1_5), ("  ", EmbeddingModel.BGE_SMALL_EN_V1_5), ("minilm", "minilm")],
)
def test_default_comes_from_the_environment(
    value: str | None, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("LATTICE_EMBED_MODEL", raising=False)
    else:
        monkeypatch.setenv("LATTICE_EMBED_MODEL", value)
    assert default_model() == expected
