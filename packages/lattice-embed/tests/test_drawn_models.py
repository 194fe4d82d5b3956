"""The service on directories of every architecture that is built: what users of their own models get."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_embed import NativeEmbeddingService, UnsupportedModelError

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "architectures"
CASES: dict[str, Any] = json.loads((DATA / "cases.json").read_text())["cases"]
ENCODERS = [name for name, case in CASES.items() if "texts" in case]


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with np.load(DATA / "outputs.npz") as stored:
        want, lengths = stored[f"{name}/output"], stored[f"{name}/lengths"]
    with NativeEmbeddingService(write_directory(tmp_path, case)) as service:
        unit = any(module["type"].endswith("Normalize") for module in case["files"]["modules.json"][-1:])
        result = service.embed(case["texts"], normalize=unit)
        assert service.model_config().dimensions == want.shape[1]
    scale = np.maximum(np.linalg.norm(want, axis=1, keepdims=True), 1)
    assert (np.abs(result.vectors - want) / scale).max() <= 1e-6
    assert result.token_counts.tolist() == lengths.tolist()


def test_a_cross_encoder_is_no_model_of_embeddings(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, CASES["cross-encoder-bert"])
    with pytest.raises(Exception, match="load_cross_encoder"):
        NativeEmbeddingService(directory).load()


def test_a_module_that_is_not_built_is_an_error_not_silence(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, CASES["dense-tanh"])
    path = directory / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"activation_function": "my_code.Scale"}))
    with pytest.raises(UnsupportedModelError, match=r"my_code\.Scale"):
        NativeEmbeddingService(directory).load()


def test_a_cached_model_is_used_without_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a socket was opened")

    snapshot = tmp_path / "models--org--name" / "snapshots" / ("a" * 40)
    write_directory(snapshot, CASES["multilingual-e5-base"])
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("a" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for variable in ("LATTICE_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    with NativeEmbeddingService("org/name") as service:
        assert service.embed_one("the cat").shape == (128,)
