"""Adapter for LlamaIndex (``llama-index-core``)."""

from __future__ import annotations

from typing import Any

from lattice_embed.catalogue import Role
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, ServiceOptions, changed_options, choose_service
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.service import EmbeddingService

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
except ModuleNotFoundError as _error:
    raise missing_library(_error, "llama-index") from _error

__all__ = ["LatticeEmbedding"]


class LatticeEmbedding(BaseEmbedding):
    """LlamaIndex's ``BaseEmbedding`` over a service of ours.

    Nodes are embedded as passages and queries as queries. ``to_dict`` keeps the model's name and options, so that
    ``from_dict`` makes an equal :class:`~lattice_embed.NativeEmbeddingService`; other services are passed again.

    Args:
        model_name: a name or directory for :class:`~lattice_embed.NativeEmbeddingService`.
        service: any service, instead.
        service_options: of :class:`~lattice_embed.NativeEmbeddingService`.
        **options: of ``BaseEmbedding``, such as ``embed_batch_size``.
    """

    # LlamaIndex finds stored vectors by all fields: without this one, those of other options would be taken
    service_options: dict[str, Any] = Field(default_factory=dict, description="Options of the native service.")

    _service: EmbeddingService = PrivateAttr()

    def __init__(
        self,
        model_name: str | None = None,
        *,
        service: EmbeddingService | None = None,
        service_options: ServiceOptions | None = None,
        **options: Any,
    ) -> None:
        chosen: ModelOrService | None = model_name if service is None else service
        given = service_options or {}
        if isinstance(service, NativeEmbeddingService) and given == changed_options(service):
            given = {}  # of a stored copy, which says what the service is
        made = choose_service(chosen, given)
        options["service_options"] = changed_options(made) if isinstance(made, NativeEmbeddingService) else {}
        super().__init__(model_name=model_name or made.name.partition(":")[2] or made.name, **options)
        self._service = made

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in stored indices."""
        return "LatticeEmbedding"

    @property
    def service(self) -> EmbeddingService:
        """The service; close it when you are done."""
        return self._service

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._service.embed_one(query, role=Role.QUERY).tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = (await self._service.aembed_one(query, role=Role.QUERY)).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = self._service.embed_one(text, role=Role.PASSAGE).tolist()
        return vector

    async def _aget_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = (await self._service.aembed_one(text, role=Role.PASSAGE)).tolist()
        return vector

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._service.encode(texts, role=Role.PASSAGE).tolist()
        return vectors

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = (await self._service.aencode(texts, role=Role.PASSAGE)).tolist()
        return vectors
