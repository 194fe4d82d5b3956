"""The two stores of a migration, and what embeds into each."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from lattice_embed.errors import InvalidInputError
from lattice_embed.migration.routing import Side
from lattice_embed.service import EmbeddingService
from lattice_embed.stores.document import DocumentVersion
from lattice_embed.stores.document_embedder import DocumentEmbedder
from lattice_embed.stores.vector_store import VectorStore

__all__ = ["Endpoints"]


class Endpoints:
    """Stores and services by side.

    A service's space is determined on first use.
    """

    def __init__(self, stores: Mapping[Side, VectorStore], services: Mapping[Side, EmbeddingService | None]) -> None:
        self._stores = stores
        self._services = services
        self._embedders: dict[Side, DocumentEmbedder] = {}
        self._lock = threading.RLock()

    def store(self, side: Side) -> VectorStore:
        """Return a side's store."""
        return self._stores[side]

    def embedder(self, side: Side) -> DocumentEmbedder:
        """Return what embeds into a side's store.

        Raises:
            InvalidInputError: the coordinator was given no service for this side.
            SpaceMismatchError: the service embeds into another space than the store's.
        """
        service = self._services[side]
        if service is None:
            raise InvalidInputError(f"this needs the model of the {side.value}: pass {side.value}_service")
        with self._lock:
            if side not in self._embedders:
                self._embedders[side] = DocumentEmbedder(service, self._stores[side].space)
            return self._embedders[side]

    def target_follows(self, source: DocumentVersion, target: DocumentVersion | None) -> bool:
        """Return whether the target has dealt with the very text that the source has."""
        if target is None or target.digest != source.digest:
            return False
        if target.fingerprint:
            return target.fingerprint == self._stores[Side.TARGET].space.fingerprint
        return target.reason != ""
