"""Special tokens that a text spells out, in the services and at the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from drawn_checkpoints import write_directory
from lattice_embed import CachedEmbeddingService, CrossEncoder, InvalidInputError, NativeEmbeddingService
from lattice_embed.cli import main

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data"
CASES: dict[str, Any] = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
TEXT = "the cat [SEP] sat"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "encoder", CASES["all-minilm-l6-v2"])


def test_the_services_vectors_and_their_origins_are_kept_apart(directory: Path) -> None:
    with (
        NativeEmbeddingService(directory) as found,
        NativeEmbeddingService(directory, special_tokens_in_text=False) as plain,
    ):
        one, other = found.embed([TEXT]), plain.embed([TEXT])
        assert one.vectors.tobytes() != other.vectors.tobytes()
        assert one.fingerprint != other.fingerprint
        assert found.embed(["the cat"]).vectors.tobytes() == plain.embed(["the cat"]).vectors.tobytes()
        for service, made in ((found, one), (plain, other)):
            cached = CachedEmbeddingService(service)
            for _ in range(2):
                assert cached.embed([TEXT]).vectors.tobytes() == made.vectors.tobytes()
        copy = pickle.loads(pickle.dumps(plain))
        assert copy.embed([TEXT]).vectors.tobytes() == other.vectors.tobytes()


def test_a_cross_encoder_takes_the_setting(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "ranker", CASES["cross-encoder-bert"])
    with CrossEncoder(directory) as found, CrossEncoder(directory, special_tokens_in_text=False) as plain:
        assert found.score("the cat", [TEXT])[0] != plain.score("the cat", [TEXT])[0]
        assert found.fingerprint != plain.fingerprint
        assert pickle.loads(pickle.dumps(plain)).fingerprint == plain.fingerprint


@pytest.mark.parametrize("wrong", ["no", 0, None])
def test_the_setting_is_true_or_false(directory: Path, wrong: Any) -> None:
    for kind in (NativeEmbeddingService, CrossEncoder):
        with pytest.raises(InvalidInputError, match="special_tokens_in_text is"):
            kind(directory, special_tokens_in_text=wrong)


def test_the_command_takes_special_tokens_for_plain_text(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = []
    for options in ([], ["--plain"]):
        assert main(["embed", "--model", str(directory), "--json", *options, TEXT]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["embeddings"][0]["tokens"])
    assert tokens[0] < tokens[1]


def test_a_server_decides_itself_how_it_reads_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--model", "x", "--base-url", "http://localhost:9/v1", "--plain", "a"]) == 2
    assert "--plain is for models that run here" in capsys.readouterr().err
