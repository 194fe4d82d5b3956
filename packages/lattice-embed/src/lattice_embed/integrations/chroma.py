"""Adapter for Chroma (``chromadb``)."""

from __future__ import annotations

from typing import Any, Unpack

from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.integrations.missing_library import missing_library
from lattice_embed.integrations.service_choice import ModelOrService, ServiceOptions, choose_service, stored_name
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.service import EmbeddingService

try:
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function
except ModuleNotFoundError as _error:
    raise missing_library(_error, "chroma") from _error

__all__ = ["LatticeEmbeddingFunction"]


@register_embedding_function
class LatticeEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's ``EmbeddingFunction`` over a service of ours.

    Documents are embedded as passages and queries as queries. A collection stores the model's name and the options, and
    makes the function again where it is opened, once this module is imported there. That cannot be done for other services
    than :class:`~lattice_embed.NativeEmbeddingService`: pass the function again to ``get_collection``, and name the space
    of the collection yourself (``configuration={"hnsw": {"space": "cosine"}}``), or Chroma takes its own, ``l2``.

    Args:
        model: a name or directory for :class:`~lattice_embed.NativeEmbeddingService`, or any service.
        **options: of :class:`~lattice_embed.NativeEmbeddingService`, where ``model`` is no service.

    Attributes:
        service: the service; close it when you are done.
    """

    def __init__(self, model: ModelOrService | None = None, **options: Unpack[ServiceOptions]) -> None:
        self.service: EmbeddingService = choose_service(model, options)

    def __call__(self, input: Documents) -> Embeddings:
        """Return the vector of each document, as a passage."""
        return list(self.service.encode(input, role=Role.PASSAGE))

    def embed_query(self, input: Documents) -> Embeddings:
        """Return the vector of each query."""
        return list(self.service.encode(input, role=Role.QUERY))

    @staticmethod
    def name() -> str:
        """Name of the function in stored collections."""
        return "lattice_embed"

    def default_space(self) -> Space:
        """Return the distance of collections that name none."""
        return "cosine"

    def supported_spaces(self) -> list[Space]:
        """Return the distances that make sense: all, since vectors have length 1."""
        return ["cosine", "l2", "ip"]

    def get_config(self) -> Any:
        """Return the configuration that a collection stores.

        A function that cannot be stored gives ``NotImplemented``, as Chroma expects.
        """
        if not isinstance(self.service, NativeEmbeddingService):
            return NotImplemented
        model, options = self.service.recipe()
        if not isinstance(options["cache"], str | bool | None):
            return NotImplemented  # a VectorCache, which the configuration's JSON cannot name
        return {"model": stored_name(model), "options": dict(options)}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> LatticeEmbeddingFunction:
        """Make the function of a stored collection."""
        return LatticeEmbeddingFunction(config["model"], **config["options"])

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Refuse another model for a collection that holds vectors.

        Raises:
            InvalidInputError: the model or an option differs.
        """
        if old_config != new_config:
            raise InvalidInputError(
                f"the collection's vectors are of {old_config}, not of {new_config}: make a collection for each"
            )

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Check a stored configuration.

        Raises:
            InvalidInputError: it is none of ours.
        """
        if not isinstance(config, dict) or set(config) != {"model", "options"}:
            raise InvalidInputError(f"{config!r} is no configuration of a {LatticeEmbeddingFunction.name()} function")
