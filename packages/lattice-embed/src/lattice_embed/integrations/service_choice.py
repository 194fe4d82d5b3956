"""The ``service`` argument of every adapter: a service, or the arguments that make one."""

from __future__ import annotations

import os
from typing import Any

from lattice_embed.catalogue import EmbeddingModel
from lattice_embed.errors import InvalidInputError
from lattice_embed.native_service import NativeEmbeddingService
from lattice_embed.service import EmbeddingService

__all__ = ["ModelOrService", "choose_service"]

ModelOrService = EmbeddingService | EmbeddingModel | str | os.PathLike[str]


def choose_service(model: ModelOrService | None, options: dict[str, Any]) -> EmbeddingService:
    """Return the service, or a :class:`NativeEmbeddingService` of the model and the options.

    Raises:
        InvalidInputError: options for a service that exists already.
    """
    if not isinstance(model, EmbeddingService):
        return NativeEmbeddingService(model, **options)
    if options:
        raise InvalidInputError(
            f"{', '.join(options)} given with a service: options belong to the service's own making"
        )
    return model
