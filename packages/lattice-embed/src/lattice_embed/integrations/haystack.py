"""Components of Haystack (``haystack-ai``): embedders of queries and documents, a ranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from lattice_embed.argument_checks import check_kind
from lattice_embed.catalogue import Role
from lattice_embed.cross_encoder import CrossEncoder
from lattice_embed.errors import InvalidInputError
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, ServiceOptions, choose_service, stored_name
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.service import EmbeddingService
from lattice_embed.validation import check_limit
from lattice_inference.cancellation import in_thread

if TYPE_CHECKING:
    from lattice_inference.precision import Precision

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as _error:
    raise missing_library(_error, "haystack") from _error

__all__ = ["LatticeDocumentEmbedder", "LatticeRanker", "LatticeTextEmbedder"]


class QueryVector(TypedDict):
    """What :class:`LatticeTextEmbedder` returns: ``embedding``, the vector."""

    embedding: list[float]


class Documents(TypedDict):
    """What the other components return: ``documents``, new ones with vectors or scores."""

    documents: list[Document]


@component
class LatticeTextEmbedder:
    """Haystack's ``TextEmbedder`` over a service of ours: embeds queries.

    Args:
        model: a name or directory for :class:`~lattice_embed.NativeEmbeddingService`, or any service.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`, where ``model`` is no service.

    Attributes:
        service: the service; close it when you are done.
    """

    def __init__(self, model: ModelOrService | None = None, **options: Unpack[ServiceOptions]) -> None:
        self.service: EmbeddingService = choose_service(model, options)

    def warm_up(self) -> None:
        """Load the model before the first text."""
        _load(self.service)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> QueryVector:
        """Return the vector of a query, as ``embedding``."""
        return {"embedding": self.service.embed_one(text, role=Role.QUERY).tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> QueryVector:
        """Do :meth:`run` without blocking the event loop."""
        return {"embedding": (await self.service.aembed_one(text, role=Role.QUERY)).tolist()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LatticeTextEmbedder:
        """Make the component of what :meth:`to_dict` returned."""
        return cast(LatticeTextEmbedder, default_from_dict(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Return the model's name and the options, from which Haystack makes the component again.

        Raises:
            InvalidInputError: the service is no native one, or has a ``VectorCache`` that no file can name.
        """
        return _to_dict(self, self.service)


@component
class LatticeDocumentEmbedder:
    """Haystack's ``DocumentEmbedder`` over a service of ours: embeds documents as passages.

    Args:
        model: a name or directory for :class:`~lattice_embed.NativeEmbeddingService`, or any service.
        meta_fields_to_embed: names of fields of ``meta`` whose values are put before the content.
        embedding_separator: put between these and the content.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`, where ``model`` is no service.

    Attributes:
        service: the service; close it when you are done.
    """

    def __init__(
        self,
        model: ModelOrService | None = None,
        *,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        **options: Unpack[ServiceOptions],
    ) -> None:
        self.service: EmbeddingService = choose_service(model, options)
        self.meta_fields_to_embed: list[str] = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

    def warm_up(self) -> None:
        """Load the model before the first document."""
        _load(self.service)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> Documents:
        """Return copies of the documents with vectors in ``embedding``; no documents give none.

        Raises:
            InvalidInputError: ``documents`` is no list of documents.
        """
        vectors = self.service.encode(self._texts(documents), role=Role.PASSAGE)
        return _with_vectors(documents, vectors.tolist())

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> Documents:
        """Do :meth:`run` without blocking the event loop."""
        vectors = await self.service.aencode(self._texts(documents), role=Role.PASSAGE)
        return _with_vectors(documents, vectors.tolist())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LatticeDocumentEmbedder:
        """Make the component of what :meth:`to_dict` returned."""
        return cast(LatticeDocumentEmbedder, default_from_dict(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Return the model's name and the options, from which Haystack makes the component again.

        Raises:
            InvalidInputError: the service is no native one, or has a ``VectorCache`` that no file can name.
        """
        return _to_dict(
            self,
            self.service,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
        )

    def _texts(self, documents: list[Document]) -> list[str]:
        texts = []
        for document in _checked(documents):
            fields = [document.meta.get(name) for name in self.meta_fields_to_embed]
            parts = [str(value) for value in fields if value is not None]
            texts.append(self.embedding_separator.join([*parts, document.content or ""]))
        return texts


@component
class LatticeRanker:
    """A ranker for Haystack over :class:`~lattice_embed.CrossEncoder`.

    It orders documents by how well they answer a query.

    Args:
        model: a cross-encoder's name or directory.
        top_k: the best so many are returned; ``None`` for all.
        precision, threads, max_text_chars: as :class:`~lattice_embed.CrossEncoder` has them; ``None`` for its own.

    Attributes:
        scorer: the cross-encoder; close it when you are done.
    """

    def __init__(
        self,
        model: str,
        *,
        top_k: int | None = None,
        precision: Precision = "float32",
        threads: int | None = None,
        max_text_chars: int | None = None,
    ) -> None:
        limit: dict[str, Any] = {} if max_text_chars is None else {"max_text_chars": max_text_chars}
        self.scorer: CrossEncoder = CrossEncoder(model, precision=precision, threads=threads, **limit)
        self.model = model
        self.top_k: int | None = None if top_k is None else check_limit("top_k", top_k)
        self.options: dict[str, Any] = {"precision": precision, "threads": threads, "max_text_chars": max_text_chars}

    def warm_up(self) -> None:
        """Load the model before the first query."""
        self.scorer.load()

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> Documents:
        """Return copies of the documents with their ``score``, best first.

        Args:
            query: the question.
            documents: what is ranked.
            top_k: as in the constructor, for this call.

        Raises:
            InvalidInputError: ``documents`` is no list of documents, or ``top_k`` is not at least 1.
            LatticeEmbedError: as :meth:`~lattice_embed.CrossEncoder.rank`.
        """
        if not _checked(documents):
            return {"documents": []}
        texts = [document.content or "" for document in documents]
        ranked = self.scorer.rank(query, texts, top_k=self.top_k if top_k is None else top_k)
        return {"documents": [replace(documents[place.index], score=place.score) for place in ranked]}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, documents: list[Document], top_k: int | None = None) -> Documents:
        """Do :meth:`run` without blocking the event loop."""
        return await in_thread(self.run, query, documents, top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LatticeRanker:
        """Make the component of what :meth:`to_dict` returned."""
        return cast(LatticeRanker, default_from_dict(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Return the model's name and the options, from which Haystack makes the component again."""
        return dict(default_to_dict(self, model=self.model, top_k=self.top_k, **self.options))


def _checked(documents: list[Document]) -> list[Document]:
    check_kind("documents", documents, list)
    for index, document in enumerate(documents):
        if not isinstance(document, Document):
            raise InvalidInputError(f"document {index} is a {type(document).__name__}; pass a haystack Document")
    return documents


def _with_vectors(documents: list[Document], vectors: Sequence[list[float]]) -> Documents:
    pairs = zip(documents, vectors, strict=True)
    return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}


def _load(service: EmbeddingService) -> None:
    if isinstance(service, NativeEmbeddingService):
        service.load()


def _to_dict(made: object, service: EmbeddingService, **own: Any) -> dict[str, Any]:
    if not isinstance(service, NativeEmbeddingService):
        raise InvalidInputError(f"{service.name} cannot be stored in a pipeline's file: only native services can")
    model, options = service.recipe()
    if not isinstance(options["cache"], str | bool | None):
        raise InvalidInputError("a VectorCache cannot be stored in a pipeline's file: give its folder instead")
    return dict(default_to_dict(made, model=stored_name(model), **own, **options))
