"""From a folder of texts to a small classifier in production.

Names are imported when they are first used: ``import lattice_tune`` by itself costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_tune._version import __version__
    from lattice_tune.errors import (
        AdapterNotApprovedError,
        ConfigError,
        DatasetError,
        DuplicateModelError,
        InvalidInputError,
        InvalidTransitionError,
        LineageError,
        MissingDependencyError,
        ModelNotFoundError,
        PromotionRefusedError,
        RegistryBusyError,
        RegistryCorruptError,
        RegistryError,
        StorageError,
        TuneError,
        WeightIntegrityError,
    )
    from lattice_tune.registry.adapter_governance import AdapterGovernance, AdapterStatus
    from lattice_tune.registry.adapter_manifest import AdapterManifest, ManifestEntry, VerifiedAdapter
    from lattice_tune.registry.live_model import LiveModel, LoadedModel
    from lattice_tune.registry.maintenance import GcReport, VerifyReport
    from lattice_tune.registry.model_registry import ModelRegistry
    from lattice_tune.registry.promotion_gates import (
        HashVerified,
        MetricThreshold,
        NotWorseThanLive,
        PromotionGate,
        ShadowPassed,
    )
    from lattice_tune.registry.records import (
        Lineage,
        ModelKind,
        ModelMetadata,
        ModelQuery,
        RegisteredModel,
        RegistryEvent,
        StoredFile,
    )
    from lattice_tune.registry.rollback import RollbackController, RollbackRecord
    from lattice_tune.registry.semantic_version import SemanticVersion
    from lattice_tune.registry.shadow import ShadowConfig, ShadowProgress, ShadowSession, ShadowState, wilson_interval
    from lattice_tune.registry.statuses import ModelStatus

__all__ = [
    "AdapterGovernance",
    "AdapterManifest",
    "AdapterNotApprovedError",
    "AdapterStatus",
    "ConfigError",
    "DatasetError",
    "DuplicateModelError",
    "GcReport",
    "HashVerified",
    "InvalidInputError",
    "InvalidTransitionError",
    "Lineage",
    "LineageError",
    "LiveModel",
    "LoadedModel",
    "ManifestEntry",
    "MetricThreshold",
    "MissingDependencyError",
    "ModelKind",
    "ModelMetadata",
    "ModelNotFoundError",
    "ModelQuery",
    "ModelRegistry",
    "ModelStatus",
    "NotWorseThanLive",
    "PromotionGate",
    "PromotionRefusedError",
    "RegisteredModel",
    "RegistryBusyError",
    "RegistryCorruptError",
    "RegistryError",
    "RegistryEvent",
    "RollbackController",
    "RollbackRecord",
    "SemanticVersion",
    "ShadowConfig",
    "ShadowPassed",
    "ShadowProgress",
    "ShadowSession",
    "ShadowState",
    "StorageError",
    "StoredFile",
    "TuneError",
    "VerifiedAdapter",
    "VerifyReport",
    "WeightIntegrityError",
    "wilson_interval",
    "__version__",
]

_MODULES = {
    "_version": ("__version__",),
    "errors": (
        "AdapterNotApprovedError",
        "ConfigError",
        "DatasetError",
        "DuplicateModelError",
        "InvalidInputError",
        "InvalidTransitionError",
        "LineageError",
        "MissingDependencyError",
        "ModelNotFoundError",
        "PromotionRefusedError",
        "RegistryBusyError",
        "RegistryCorruptError",
        "RegistryError",
        "StorageError",
        "TuneError",
        "WeightIntegrityError",
    ),
    "registry.adapter_governance": (
        "AdapterGovernance",
        "AdapterStatus",
    ),
    "registry.adapter_manifest": (
        "AdapterManifest",
        "ManifestEntry",
        "VerifiedAdapter",
    ),
    "registry.live_model": (
        "LiveModel",
        "LoadedModel",
    ),
    "registry.maintenance": (
        "GcReport",
        "VerifyReport",
    ),
    "registry.model_registry": ("ModelRegistry",),
    "registry.promotion_gates": (
        "HashVerified",
        "MetricThreshold",
        "NotWorseThanLive",
        "PromotionGate",
        "ShadowPassed",
    ),
    "registry.records": (
        "Lineage",
        "ModelKind",
        "ModelMetadata",
        "ModelQuery",
        "RegisteredModel",
        "RegistryEvent",
        "StoredFile",
    ),
    "registry.rollback": (
        "RollbackController",
        "RollbackRecord",
    ),
    "registry.semantic_version": ("SemanticVersion",),
    "registry.shadow": (
        "ShadowConfig",
        "ShadowProgress",
        "ShadowSession",
        "ShadowState",
        "wilson_interval",
    ),
    "registry.statuses": ("ModelStatus",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lattice_tune' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lattice_tune.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
