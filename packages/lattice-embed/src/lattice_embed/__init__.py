"""Text embeddings as a light library.

    from lattice_embed import EmbeddingModel, NativeEmbeddingService

    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2) as service:
        vectors = service.encode(["first text", "second text"])

Names are imported when they are first used: ``import lattice_embed`` by itself costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_embed import migration, stores, utils, vectors
    from lattice_embed._version import __version__
    from lattice_embed.added_models import add_model, list_models
    from lattice_embed.cached_service import CachedEmbeddingService
    from lattice_embed.catalogue import EmbeddingModel, ModelDescription, Role
    from lattice_embed.cross_encoder import CrossEncoder, RankedDocument
    from lattice_embed.drift import (
        DriftBaseline,
        DriftBaselineError,
        DriftError,
        DriftReport,
        DriftTolerance,
        check_drift,
    )
    from lattice_embed.embedding_cache import DEFAULT_CACHE_CAPACITY, CacheStats, EmbeddingCache, ShardStats
    from lattice_embed.embedding_key import DistanceMetric, EmbeddingKey, VectorDType, VectorNorm
    from lattice_embed.errors import (
        DimensionMismatchError,
        EmptyInputError,
        InvalidInputError,
        InvalidModelConfigError,
        InvalidTextError,
        InvalidTransitionError,
        LatticeEmbedError,
        ModelConfigError,
        NonFiniteVectorError,
        ProvenanceMismatchError,
        ServiceClosedError,
        SpaceMismatchError,
        StoreCorruptError,
        StoreError,
        TextTooLongError,
        TierMismatchError,
        TooManyTextsError,
        UnknownModelError,
        UnsupportedModelError,
        WrongModelError,
    )
    from lattice_embed.model_config import MIN_MRL_OUTPUT_DIM, ModelConfig
    from lattice_embed.native_service import NativeEmbeddingService
    from lattice_embed.provenance import VectorProvenance
    from lattice_embed.remote import (
        RemoteAuthenticationError,
        RemoteConnectionError,
        RemoteEmbeddingService,
        RemoteOfflineError,
        RemoteRateLimitError,
        RemoteRequestError,
        RemoteResponseError,
        RemoteServiceError,
        RemoteTimeoutError,
        RemoteUsage,
        RetryPolicy,
    )
    from lattice_embed.result import EmbeddingResult
    from lattice_embed.service import EmbeddingService
    from lattice_embed.validation import DEFAULT_MAX_BATCH_SIZE, DEFAULT_MAX_TEXT_CHARS

__all__ = [
    "CacheStats",
    "CachedEmbeddingService",
    "CrossEncoder",
    "DistanceMetric",
    "EmbeddingCache",
    "EmbeddingKey",
    "DriftBaseline",
    "DriftReport",
    "DriftTolerance",
    "EmbeddingModel",
    "EmbeddingResult",
    "EmbeddingService",
    "ModelConfig",
    "ModelDescription",
    "NativeEmbeddingService",
    "RankedDocument",
    "RemoteEmbeddingService",
    "RemoteUsage",
    "RetryPolicy",
    "Role",
    "ShardStats",
    "VectorDType",
    "VectorNorm",
    "VectorProvenance",
    "DEFAULT_CACHE_CAPACITY",
    "DEFAULT_MAX_BATCH_SIZE",
    "DEFAULT_MAX_TEXT_CHARS",
    "MIN_MRL_OUTPUT_DIM",
    "DimensionMismatchError",
    "DriftBaselineError",
    "DriftError",
    "EmptyInputError",
    "InvalidInputError",
    "InvalidModelConfigError",
    "InvalidTextError",
    "InvalidTransitionError",
    "LatticeEmbedError",
    "ModelConfigError",
    "NonFiniteVectorError",
    "ProvenanceMismatchError",
    "RemoteAuthenticationError",
    "RemoteConnectionError",
    "RemoteOfflineError",
    "RemoteRateLimitError",
    "RemoteRequestError",
    "RemoteResponseError",
    "RemoteServiceError",
    "RemoteTimeoutError",
    "ServiceClosedError",
    "SpaceMismatchError",
    "StoreCorruptError",
    "StoreError",
    "TextTooLongError",
    "TierMismatchError",
    "TooManyTextsError",
    "UnknownModelError",
    "UnsupportedModelError",
    "WrongModelError",
    "migration",
    "stores",
    "add_model",
    "check_drift",
    "list_models",
    "utils",
    "vectors",
    "__version__",
]

_MODULES: dict[str, tuple[str, ...]] = {
    "cached_service": ("CachedEmbeddingService",),
    "catalogue": ("EmbeddingModel", "ModelDescription", "Role"),
    "cross_encoder": ("CrossEncoder", "RankedDocument"),
    "embedding_cache": ("DEFAULT_CACHE_CAPACITY", "CacheStats", "EmbeddingCache", "ShardStats"),
    "embedding_key": ("DistanceMetric", "EmbeddingKey", "VectorDType", "VectorNorm"),
    "drift": ("DriftBaseline", "DriftBaselineError", "DriftError", "DriftReport", "DriftTolerance", "check_drift"),
    "_version": ("__version__",),
    "added_models": ("add_model", "list_models"),
    "errors": (
        "DimensionMismatchError",
        "EmptyInputError",
        "InvalidInputError",
        "InvalidModelConfigError",
        "InvalidTextError",
        "InvalidTransitionError",
        "LatticeEmbedError",
        "ModelConfigError",
        "NonFiniteVectorError",
        "ProvenanceMismatchError",
        "ServiceClosedError",
        "SpaceMismatchError",
        "StoreCorruptError",
        "StoreError",
        "TextTooLongError",
        "TierMismatchError",
        "TooManyTextsError",
        "UnknownModelError",
        "UnsupportedModelError",
        "WrongModelError",
    ),
    "model_config": ("MIN_MRL_OUTPUT_DIM", "ModelConfig"),
    "native_service": ("NativeEmbeddingService",),
    "provenance": ("VectorProvenance",),
    "remote": (
        "RemoteAuthenticationError",
        "RemoteConnectionError",
        "RemoteEmbeddingService",
        "RemoteOfflineError",
        "RemoteRateLimitError",
        "RemoteRequestError",
        "RemoteResponseError",
        "RemoteServiceError",
        "RemoteTimeoutError",
        "RemoteUsage",
        "RetryPolicy",
    ),
    "result": ("EmbeddingResult",),
    "service": ("EmbeddingService",),
    "validation": ("DEFAULT_MAX_BATCH_SIZE", "DEFAULT_MAX_TEXT_CHARS"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> "Any":
    import importlib

    if name in {"migration", "stores", "utils", "vectors"}:
        return importlib.import_module(f"lattice_embed.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lattice_embed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lattice_embed.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
