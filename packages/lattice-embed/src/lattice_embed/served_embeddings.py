"""An embedding service as the server of lattice_inference takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_kind
from lattice_embed.cached_service import CachedEmbeddingService
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.result import Float32Array
from lattice_embed.service import EmbeddingService
from lattice_embed.validation import check_limit

__all__ = ["ServedEmbeddings", "ServedVectors"]

_ROLES = {"query": Role.QUERY, "passage": Role.PASSAGE, "document": Role.PASSAGE, "generic": Role.GENERIC}


@dataclass(frozen=True)
class ServedVectors:
    """The vectors of some texts.

    Attributes:
        vectors: (n, dimension) float32.
    """

    vectors: Float32Array


class ServedEmbeddings:
    """What ``create_app`` of lattice_inference takes, over a service of this package.

    A request's ``input_type`` is the role of its texts: ``query``, ``passage`` (or ``document``) or ``generic``, the
    default. The answer tells the fingerprint of the vectors. The service stays the caller's to close.

    Args:
        service: the model.
        memory: how many vectors to keep in memory; 0 keeps none.

    Raises:
        InvalidInputError: ``service`` is no :class:`NativeEmbeddingService`, or ``memory`` is negative.

    >>> from lattice_embed import NativeEmbeddingService
    >>> served = ServedEmbeddings(NativeEmbeddingService("all-minilm-l6-v2"), memory=100)
    >>> served.dimension, served.encode(["A cat sleeps."], role="query").vectors.shape
    (384, (1, 384))
    """

    roles: tuple[str, ...] = tuple(_ROLES)
    """What a request's ``input_type`` may be."""

    def __init__(self, service: NativeEmbeddingService, *, memory: int = 0) -> None:
        check_kind("service", service, NativeEmbeddingService)
        kept = check_limit("memory", memory, lowest=0)
        self._service = service
        self._embeds: EmbeddingService = CachedEmbeddingService(service, capacity=kept) if kept else service

    @property
    def dimension(self) -> int:
        """The length of a vector. Loads the model."""
        return self._service.model_config().dimensions

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text, its role's prompt included. Loads the model."""
        return self._service.max_tokens

    def count_tokens(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.int32]:
        """Return each text's number of tokens, its role's prompt included.

        Raises:
            InvalidInputError: no such role, or a text that cannot be embedded.
        """
        most, asked = self._service.max_batch_size, _role(role)
        parts = [
            self._service.count_tokens(texts[start : start + most], role=asked) for start in range(0, len(texts), most)
        ]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> ServedVectors:
        """Return the texts' vectors.

        Raises:
            InvalidInputError: no such role, or a text that cannot be embedded.
        """
        return ServedVectors(self._embeds.encode(texts, role=_role(role)))

    def fingerprint_of(self, role: str | None) -> str:
        """Return 32 hex digits that are equal where equal texts have equal bits."""
        return self._service.provenance(role=_role(role)).fingerprint


def _role(name: str | None) -> Role:
    if name is None:
        return Role.GENERIC
    if not isinstance(name, str) or name not in _ROLES:
        raise InvalidInputError(f"role is {name!r:.80}; expected one of {', '.join(_ROLES)}")
    return _ROLES[name]
