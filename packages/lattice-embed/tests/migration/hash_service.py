"""A service without a model: vectors drawn from a hash of the text, fast, always the same, and written down if asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import blake3
import numpy as np
import numpy.typing as npt

from lattice_embed import EmbeddingResult, EmbeddingService, InvalidTextError, ModelConfig, ModelDescription, Role
from lattice_embed.stores.space import PROBE

DIMENSIONS = {"old": 8, "new": 12}


def vector_of(name: str, text: str) -> npt.NDArray[np.float32]:
    """Return the one vector that the service ``name`` gives for ``text``."""
    seed = blake3.blake3(f"{name}:{text}".encode()).digest(DIMENSIONS[name])
    vector = np.frombuffer(seed, np.uint8).astype(np.float32) - np.float32(127.5)
    return vector / np.linalg.norm(vector)


class HashService(EmbeddingService):
    """Embeds with no model. Texts with the word ``poison`` or ``poison-NAME`` are refused.

    ``before`` is called before the work of each call; ``log`` gets what was embedded.

    Attributes:
        seen: every text that was embedded, in order.
        failure: raised by the next calls, while it is set.
    """

    def __init__(self, name: str, *, log: Path | None = None, before: Callable[[], object] | None = None) -> None:
        self._name = name
        self._log = log
        self._before = before
        self.seen: list[str] = []
        self.failure: Exception | None = None

    def embed(
        self, texts: Sequence[str], model: object = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> EmbeddingResult:
        if self.failure is not None:
            raise self.failure
        if self._before is not None:
            self._before()
        for index, text in enumerate(texts):
            if {"poison", f"poison-{self._name}"} & set(text.split()):
                raise InvalidTextError(index=index, reason="holds poison")
        new = [text for text in texts if text != PROBE]
        self.seen += new
        if self._log is not None and new and role is not Role.QUERY:
            handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, "".join(f"{self._name}\t{text}\n" for text in new).encode())
            os.close(handle)
        vectors = np.stack([vector_of(self._name, text) for text in texts])
        return EmbeddingResult(vectors, fingerprint=f"hash-{self._name}", model=self._name, role=role)

    def model_config(self, model: object = None) -> ModelConfig:
        return ModelConfig(
            ModelDescription(
                slug=self._name,
                model_id=self._name,
                native_dimensions=DIMENSIONS[self._name],
                max_tokens=512,
                pooling=None,
            )
        )

    def supports_model(self, model: object) -> bool:
        return model == self._name

    @property
    def name(self) -> str:
        return f"hash:{self._name}"
