"""From a folder of texts to a small classifier in production.

Names are imported when they are first used: ``import lattice_tune`` by itself costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_tune._version import __version__
    from lattice_tune.datasets.config import DatasetConfig
    from lattice_tune.datasets.dataset import Dataset
    from lattice_tune.datasets.duplicates import Duplicate, DuplicateFinder, find_duplicates, find_overlap
    from lattice_tune.datasets.example import TrainingExample
    from lattice_tune.datasets.labels import IntentLabels, LabelSet
    from lattice_tune.datasets.rows import SkippedRows
    from lattice_tune.datasets.split import SplitRule
    from lattice_tune.datasets.stats import DatasetStats
    from lattice_tune.errors import ConfigError, DatasetError, InvalidInputError, MissingDependencyError, TuneError

__all__ = [
    "ConfigError",
    "Dataset",
    "DatasetConfig",
    "DatasetStats",
    "Duplicate",
    "DuplicateFinder",
    "IntentLabels",
    "LabelSet",
    "SkippedRows",
    "SplitRule",
    "TrainingExample",
    "find_duplicates",
    "find_overlap",
    "DatasetError",
    "InvalidInputError",
    "MissingDependencyError",
    "TuneError",
    "__version__",
]

_MODULES = {
    "datasets.config": ("DatasetConfig",),
    "datasets.dataset": ("Dataset",),
    "datasets.duplicates": ("Duplicate", "DuplicateFinder", "find_duplicates", "find_overlap"),
    "datasets.example": ("TrainingExample",),
    "datasets.labels": ("IntentLabels", "LabelSet"),
    "datasets.rows": ("SkippedRows",),
    "datasets.split": ("SplitRule",),
    "datasets.stats": ("DatasetStats",),
    "_version": ("__version__",),
    "errors": ("ConfigError", "DatasetError", "InvalidInputError", "MissingDependencyError", "TuneError"),
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
