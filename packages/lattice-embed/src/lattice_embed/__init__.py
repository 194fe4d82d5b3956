"""Text embeddings as a light library.

    from lattice_embed import EmbeddingModel, NativeEmbeddingService

    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2) as service:
        vectors = service.encode(["first text", "second text"])

Names are imported when they are first used: ``import lattice_embed`` by itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lattice_embed._version import __version__

if TYPE_CHECKING:
    from lattice_embed import utils, vectors
    from lattice_embed.catalogue import EmbeddingModel, ModelDescription, Role
    from lattice_embed.cross_encoder import CrossEncoder, RankedDocument
    from lattice_embed.errors import (
        DimensionMismatchError,
        EmptyInputError,
        InvalidInputError,
        InvalidTextError,
        LatticeEmbedError,
        ModelConfigError,
        NonFiniteVectorError,
        ServiceClosedError,
        TextTooLongError,
        TierMismatchError,
        TooManyTextsError,
        UnknownModelError,
        UnsupportedModelError,
        WrongModelError,
    )
    from lattice_embed.model_config import MIN_MRL_OUTPUT_DIM, ModelConfig
    from lattice_embed.native_service import NativeEmbeddingService
    from lattice_embed.result import EmbeddingResult
    from lattice_embed.service import EmbeddingService
    from lattice_embed.validation import DEFAULT_MAX_BATCH_SIZE, DEFAULT_MAX_TEXT_CHARS

__all__ = [
    "CrossEncoder",
    "EmbeddingModel",
    "EmbeddingResult",
    "EmbeddingService",
    "ModelConfig",
    "ModelDescription",
    "NativeEmbeddingService",
    "RankedDocument",
    "Role",
    "DEFAULT_MAX_BATCH_SIZE",
    "DEFAULT_MAX_TEXT_CHARS",
    "MIN_MRL_OUTPUT_DIM",
    "DimensionMismatchError",
    "EmptyInputError",
    "InvalidInputError",
    "InvalidTextError",
    "LatticeEmbedError",
    "ModelConfigError",
    "NonFiniteVectorError",
    "ServiceClosedError",
    "TextTooLongError",
    "TierMismatchError",
    "TooManyTextsError",
    "UnknownModelError",
    "UnsupportedModelError",
    "WrongModelError",
    "utils",
    "vectors",
    "__version__",
]

_MODULES: dict[str, tuple[str, ...]] = {
    "catalogue": ("EmbeddingModel", "ModelDescription", "Role"),
    "cross_encoder": ("CrossEncoder", "RankedDocument"),
    "errors": (
        "DimensionMismatchError",
        "EmptyInputError",
        "InvalidInputError",
        "InvalidTextError",
        "LatticeEmbedError",
        "ModelConfigError",
        "NonFiniteVectorError",
        "ServiceClosedError",
        "TextTooLongError",
        "TierMismatchError",
        "TooManyTextsError",
        "UnknownModelError",
        "UnsupportedModelError",
        "WrongModelError",
    ),
    "model_config": ("MIN_MRL_OUTPUT_DIM", "ModelConfig"),
    "native_service": ("NativeEmbeddingService",),
    "result": ("EmbeddingResult",),
    "service": ("EmbeddingService",),
    "validation": ("DEFAULT_MAX_BATCH_SIZE", "DEFAULT_MAX_TEXT_CHARS"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in {"utils", "vectors"}:
        return importlib.import_module(f"lattice_embed.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lattice_embed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lattice_embed.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
