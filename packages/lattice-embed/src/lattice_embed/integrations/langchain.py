"""Adapter for LangChain (``langchain-core``)."""

from __future__ import annotations

from typing import Unpack

from lattice_embed.catalogue import Role
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, ServiceOptions, choose_service
from lattice_embed.service import EmbeddingService

try:
    from langchain_core.embeddings import Embeddings
except ModuleNotFoundError as _error:
    raise missing_library(_error, "langchain") from _error

__all__ = ["LatticeEmbeddings"]


class LatticeEmbeddings(Embeddings):
    """LangChain's ``Embeddings`` over a service of ours.

    Documents are embedded as passages and queries as queries, so that a model's prompts are put where they belong.

    Args:
        model: a name or directory for :class:`~lattice_embed.NativeEmbeddingService`, or any service.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`, where ``model`` is no service.

    Attributes:
        service: the service; close it when you are done.
    """

    def __init__(self, model: ModelOrService | None = None, **options: Unpack[ServiceOptions]) -> None:
        self.service: EmbeddingService = choose_service(model, options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text, as a passage; no texts give no vectors."""
        vectors: list[list[float]] = self.service.encode(texts, role=Role.PASSAGE).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        vector: list[float] = self.service.embed_one(text, role=Role.QUERY).tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Do :meth:`embed_documents` without blocking the event loop."""
        vectors: list[list[float]] = (await self.service.aencode(texts, role=Role.PASSAGE)).tolist()
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        """Do :meth:`embed_query` without blocking the event loop."""
        vector: list[float] = (await self.service.aembed_one(text, role=Role.QUERY)).tolist()
        return vector

    def __repr__(self) -> str:
        return f"LatticeEmbeddings({self.service!r})"
