"""A GGUF file as the service's model: the vectors of the directory that it was written from."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from lattice_embed import NativeEmbeddingService
from lattice_embed.errors import InvalidInputError, UnknownModelError
from lattice_embed.model_source import resolve_model
from lattice_inference.checkpoint.gguf_writer import write_gguf
from lattice_inference.errors import CheckpointError
from lattice_inference.files.hub import find_model
from lattice_inference.quantize import export_bert_gguf

TEXTS = ["A man is eating food.", "", "Ünïcödé 日本 😀"]


@pytest.mark.slow
@pytest.mark.model
def test_vectors_are_those_of_the_directory(minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    path = export_bert_gguf(find_model("minilm", offline=True).directory, tmp_path / "minilm.gguf", "F32").path
    expected = minilm.embed(TEXTS)
    for name in (path, str(path)):
        with NativeEmbeddingService(name) as service:
            result = service.embed(TEXTS)
            assert result.vectors.tobytes() == expected.vectors.tobytes()
            assert result.model == "minilm.gguf"
            assert result.fingerprint != expected.fingerprint
    copy = pickle.loads(pickle.dumps(NativeEmbeddingService(path)))
    assert np.array_equal(copy.embed_one(TEXTS[0]), expected.vectors[0])
    assert copy.embed(TEXTS).fingerprint == result.fingerprint


def test_what_a_name_means(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {"general.architecture": "llama"}, [])
    source = resolve_model(str(tmp_path / "x.gguf"))
    assert (source.name, source.location) == ("x.gguf", str((tmp_path / "x.gguf").resolve()))
    with pytest.raises(UnknownModelError):
        resolve_model(str(tmp_path / "absent.gguf"))
    (tmp_path / "x.txt").touch()
    with pytest.raises(InvalidInputError, match="or a GGUF file"):
        resolve_model(tmp_path / "x.txt")


def test_a_file_that_is_no_model_fails_when_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    service = NativeEmbeddingService(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="too few for a GGUF file"):
        service.embed(["a"])


@pytest.mark.parametrize("name", ["sha256-0123456789abcdef", "MODEL.GGUF", "model"])
def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_gguf(path, {"general.architecture": "bert"}, [])
    assert resolve_model(str(path)).location == str(path.resolve())
    link = tmp_path / "snapshot.gguf"
    link.symlink_to(path)  # as in the Hugging Face cache
    assert resolve_model(link).name in ("snapshot.gguf", name)


def test_a_file_of_another_kind_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(InvalidInputError, match=r"pytorch_model\.bin is a file, a zip archive"):
        resolve_model(path)
