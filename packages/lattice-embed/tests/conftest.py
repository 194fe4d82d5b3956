"""Fixtures: an encoder that stands in for lattice_inference's where no real model is needed, and the real model."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blake3
import numpy as np
import pytest

import lattice_inference
from lattice_embed import EmbeddingModel, NativeEmbeddingService

MINILM = EmbeddingModel.ALL_MINILM_L6_V2


class FakeEncoder:
    """Vectors drawn from a hash of prompt and text; a word is a token, and there are two special ones."""

    def __init__(self, source: str, *, dimension: int = 384, max_tokens: int = 256) -> None:
        self.source = source
        self.directory = Path("/models") / Path(source).name
        self.dimension = dimension
        self.max_tokens = max_tokens
        self.pooling = "mean"
        self.prompts = {"query": "find: ", "document": "doc: "}
        self.fingerprint = f"fake:{source}"
        self.closed = False
        self.poison: str | None = None
        self.seen: list[str] = []

    @property
    def space(self) -> str:
        return self.fingerprint

    def count_tokens(self, texts: Sequence[str], *, prompt: str = "") -> Any:
        return np.array([len((prompt + text).split()) + 2 for text in texts], np.int32)

    def encode(
        self, texts: Sequence[str], *, prompt: str = "", normalize: bool | None = None, truncate: str = "right"
    ) -> Any:
        assert not self.closed
        counts = self.count_tokens(texts, prompt=prompt)
        if truncate == "error" and (counts > self.max_tokens).any():
            raise lattice_inference.errors.TextTooLongError("a text is too long")
        vectors = np.stack([self._vector(prompt + text) for text in texts])
        if normalize:
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        bad = tuple(row for row, text in enumerate(texts) if self.poison is not None and self.poison in text)
        if bad:
            raise lattice_inference.errors.NonFiniteError("the weights are damaged", bad)
        self.seen += [prompt + text for text in texts]
        return SimpleNamespace(
            vectors=vectors, token_counts=np.minimum(counts, self.max_tokens), truncated=counts > self.max_tokens
        )

    def token_offsets(self, text: str) -> Any:
        return np.array([word.span() for word in re.finditer(r"\S+", text)], np.int32).reshape(-1, 2)

    def _vector(self, text: str) -> Any:
        seed = int.from_bytes(blake3.blake3(text.encode()).digest(8), "little")
        return np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)

    def close(self) -> None:
        self.closed = True


class FakeLoader:
    """Takes the place of ``lattice_inference.load_encoder``, counts its calls and can be told to fail or to wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.encoders: list[FakeEncoder] = []
        self.failures: list[Exception] = []
        self.delay = 0.0
        self.started, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.sizes: dict[str, int] = {}

    def __call__(self, source: str, **options: Any) -> FakeEncoder:
        self.calls.append((source, options))
        self.started.set()
        time.sleep(self.delay)
        assert self.may_go_on.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        encoder = FakeEncoder(str(source), dimension=self.sizes.get(str(source), 384))
        self.encoders.append(encoder)
        return encoder


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    fake = FakeLoader()
    monkeypatch.setitem(vars(lattice_inference), "load_encoder", fake)
    for variable in ("LATTICE_EMBED_MODEL", "LATTICE_EMBED_DIM", "LATTICE_QWEN_MODEL_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return fake


@pytest.fixture
def service(loader: FakeLoader) -> Iterator[NativeEmbeddingService]:
    with NativeEmbeddingService(MINILM) as made:
        yield made


@pytest.fixture
def qwen_runs(loader: FakeLoader) -> None:
    """The fake encoder with the width of Qwen3-Embedding-0.6B, for the logic of shorter vectors."""
    loader.sizes[EmbeddingModel.QWEN3_EMBEDDING_0_6B.model_id] = 1024


@pytest.fixture(scope="session")
def minilm() -> Iterator[NativeEmbeddingService]:
    """The real all-MiniLM-L6-v2, found without a network."""
    service = NativeEmbeddingService(MINILM)
    offline = os.environ.get("LATTICE_OFFLINE")
    os.environ["LATTICE_OFFLINE"] = "1"
    try:
        service.load()
    except lattice_inference.errors.ModelNotFoundError as error:
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(f"LATTICE_REQUIRE_MODELS=1, but: {error}")
        pytest.skip(str(error))
    finally:
        if offline is None:
            del os.environ["LATTICE_OFFLINE"]
        else:
            os.environ["LATTICE_OFFLINE"] = offline
    with service:
        yield service


@pytest.fixture
def on_each_isa() -> Iterator[Callable[[], Iterator[str]]]:
    """Call it to go through the instruction sets of this CPU; the one in use before is restored afterwards."""
    from lattice_embed.vectors import _vectors

    before = _vectors.isa_name()

    def levels() -> Iterator[str]:
        for name in _vectors.available_isas():
            yield _vectors.select_isa(name)

    yield levels
    _vectors.select_isa(before)
