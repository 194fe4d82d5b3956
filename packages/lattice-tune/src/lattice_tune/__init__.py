"""From a folder of texts to a small classifier in production.

Names are imported when they are first used: ``import lattice_tune`` by itself costs next to nothing.
"""

TYPE_CHECKING = False  # typing's, which type checkers know by its name: the package imports nothing ahead
if TYPE_CHECKING:
    from typing import Any

    from lattice_tune._version import __version__
    from lattice_tune.errors import (
        ConfigError,
        DatasetError,
        InvalidInputError,
        LabelStoreError,
        MissingDependencyError,
        TeacherApiError,
        TeacherTimeoutError,
        TuneError,
    )
    from lattice_tune.teachers.answer import Outcome, TeacherAnswer
    from lattice_tune.teachers.callable_teacher import CallableTeacher
    from lattice_tune.teachers.config import TeacherConfig, TeacherPrices
    from lattice_tune.teachers.encoder_teacher import EncoderTeacher
    from lattice_tune.teachers.endpoint import EndpointSecurity
    from lattice_tune.teachers.label_store import LabelStore
    from lattice_tune.teachers.labeling import alabel_texts, dry_run, label_texts
    from lattice_tune.teachers.limits import RequestLimits
    from lattice_tune.teachers.local_teacher import LocalTeacher
    from lattice_tune.teachers.provider import InProcessTeacher, TeacherProvider
    from lattice_tune.teachers.report import DryRun, LabelingProgress, LabelingReport, LabelingResult
    from lattice_tune.teachers.rows import LabeledText, write_jsonl
    from lattice_tune.teachers.served_teacher import ServedTeacher
    from lattice_tune.teachers.task import LabelingTask
    from lattice_tune.teachers.teacher_function import TeacherFunction

__all__ = [
    "ConfigError",
    "DatasetError",
    "InvalidInputError",
    "LabelStoreError",
    "MissingDependencyError",
    "TeacherApiError",
    "TeacherTimeoutError",
    "TuneError",
    "__version__",
    "CallableTeacher",
    "DryRun",
    "EncoderTeacher",
    "EndpointSecurity",
    "LabelStore",
    "LabeledText",
    "LabelingProgress",
    "LabelingReport",
    "LabelingResult",
    "LabelingTask",
    "LocalTeacher",
    "Outcome",
    "RequestLimits",
    "ServedTeacher",
    "InProcessTeacher",
    "TeacherAnswer",
    "TeacherConfig",
    "TeacherFunction",
    "TeacherPrices",
    "TeacherProvider",
    "alabel_texts",
    "dry_run",
    "label_texts",
    "write_jsonl",
]

_MODULES = {
    "_version": ("__version__",),
    "errors": (
        "ConfigError",
        "DatasetError",
        "InvalidInputError",
        "LabelStoreError",
        "MissingDependencyError",
        "TeacherApiError",
        "TeacherTimeoutError",
        "TuneError",
    ),
    "teachers.answer": (
        "Outcome",
        "TeacherAnswer",
    ),
    "teachers.callable_teacher": ("CallableTeacher",),
    "teachers.config": (
        "TeacherConfig",
        "TeacherPrices",
    ),
    "teachers.encoder_teacher": ("EncoderTeacher",),
    "teachers.endpoint": ("EndpointSecurity",),
    "teachers.label_store": ("LabelStore",),
    "teachers.labeling": (
        "alabel_texts",
        "dry_run",
        "label_texts",
    ),
    "teachers.limits": ("RequestLimits",),
    "teachers.local_teacher": ("LocalTeacher",),
    "teachers.provider": (
        "InProcessTeacher",
        "TeacherProvider",
    ),
    "teachers.report": (
        "DryRun",
        "LabelingProgress",
        "LabelingReport",
        "LabelingResult",
    ),
    "teachers.rows": (
        "LabeledText",
        "write_jsonl",
    ),
    "teachers.served_teacher": ("ServedTeacher",),
    "teachers.task": ("LabelingTask",),
    "teachers.teacher_function": ("TeacherFunction",),
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
