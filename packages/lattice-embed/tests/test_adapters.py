"""Texts embedded with an adapter: its content is part of where the vectors come from."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from lattice_embed import InvalidInputError, NativeEmbeddingService
from lattice_embed.errors import UnsupportedModelError
from lattice_embed.opened_encoder import OpenedEncoder
from lattice_inference import LoraAdapter
from lattice_inference import errors as inference_errors
from lattice_inference.lora import LoraSite, save_peft_safetensors

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
QUERY = "encoder.layer.0.attention.self.query"
TEXTS = ["a text", "another one"]


def write_adapter(directory, seed, module=QUERY, shape=(384, 384), **parts):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((4, shape[1]), np.float32), 0.1 * rng.standard_normal((shape[0], 4), np.float32)
    save_peft_safetensors(LoraAdapter({module: LoraSite(a, b, 1.0, **parts)}), directory)
    return directory


@pytest.mark.slow
def test_vectors_with_an_adapter_have_its_content_in_their_provenance(minilm, tmp_path, monkeypatch):
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    paths = [write_adapter(tmp_path / name, seed) for name, seed in (("a", 1), ("again", 1), ("b", 2))]
    plain = minilm.embed(TEXTS)
    results = []
    for path in paths:
        with NativeEmbeddingService(MINILM, adapter=path, cache=tmp_path / "cache") as service:
            results.append(service.embed(TEXTS))
            assert pickle.loads(pickle.dumps(service)).recipe()[1]["adapter"] == str(path)
            assert (service.embed(TEXTS).vectors == results[-1].vectors).all()
    first, again, other = results
    assert first.fingerprint == again.fingerprint
    assert (first.vectors == again.vectors).all()
    assert len({plain.fingerprint, first.fingerprint, other.fingerprint}) == 3
    assert np.abs(first.vectors - plain.vectors).max() > 1e-3 < np.abs(first.vectors - other.vectors).max()


@pytest.mark.parametrize("adapter", [None, "a"])
def test_vectors_of_a_gpu_are_in_the_space_of_the_cpus_with_an_adapter_too(adapter):
    def weights_on(device):
        fingerprint = f"weights{device}"
        encoder = SimpleNamespace(
            space="weights",
            fingerprint=fingerprint,
            fingerprint_with=lambda name: f"{fingerprint}:lora{name}",
            pooling="mean",
        )
        config = SimpleNamespace(description=SimpleNamespace(slug="m"), dimensions=2)
        return OpenedEncoder(encoder, config, {}, "float32", adapter=adapter).provenance("", True).weights

    assert weights_on("@wgpu:a GPU") == weights_on("") == ("weights" if adapter is None else "weights:loraa")


@pytest.mark.slow
def test_adapters_that_do_not_fit_are_refused_when_the_model_is_loaded(minilm, tmp_path, monkeypatch):
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    wrong = {
        "narrow": (write_adapter(tmp_path / "narrow", 1, shape=(384, 8)), inference_errors.InvalidInputError),
        "dora": (write_adapter(tmp_path / "dora", 1, magnitude=np.ones(384, np.float32)), UnsupportedModelError),
        "none": (tmp_path / "none", inference_errors.ModelNotFoundError),
    }
    for path, error in wrong.values():
        with NativeEmbeddingService(MINILM, adapter=path) as service, pytest.raises(error):
            service.embed(TEXTS)
    for value in (3, "", b"path"):
        with pytest.raises(InvalidInputError, match="adapter"):
            NativeEmbeddingService(MINILM, adapter=value)
