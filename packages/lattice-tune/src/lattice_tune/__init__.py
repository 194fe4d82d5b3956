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
    from lattice_tune.distillation.calibration import fit_temperature
    from lattice_tune.distillation.config import DistillationConfig
    from lattice_tune.distillation.evaluation import (
        Deferral,
        Evaluation,
        LabelScores,
        WorstExample,
        deferral_table,
        evaluate,
    )
    from lattice_tune.distillation.pipeline import DistillationPipeline, DistillationResult
    from lattice_tune.distillation.report import DistillationReport, PassBack
    from lattice_tune.distillation.stages import StageError, StageRecord
    from lattice_tune.distillation.student import EncoderRecord, Predictions, StudentModel, load_student
    from lattice_tune.distillation.student_trainer import StudentTrainer, TrainedNetwork
    from lattice_tune.distillation.teacher import RecordedTeacher, Teacher
    from lattice_tune.errors import (
        CheckpointError,
        ConfigError,
        DatasetError,
        EncoderMismatchError,
        InvalidInputError,
        MissingDependencyError,
        StudentFileError,
        TeacherAnswerError,
        TrainingError,
        TuneError,
    )
    from lattice_tune.training.callback import TrainingCallback
    from lattice_tune.training.checkpoint import Checkpoint
    from lattice_tune.training.config import TrainingConfig
    from lattice_tune.training.early_stopping import EarlyStopping, StoppingState
    from lattice_tune.training.metrics import EpochMetrics, TrainingMetrics
    from lattice_tune.training.optimizer import Optimizer, OptimizerConfig
    from lattice_tune.training.regularization import RegularizationConfig
    from lattice_tune.training.schedule import LRSchedule

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
    "fit_temperature",
    "DistillationConfig",
    "Deferral",
    "Evaluation",
    "LabelScores",
    "WorstExample",
    "deferral_table",
    "evaluate",
    "DistillationPipeline",
    "DistillationResult",
    "DistillationReport",
    "PassBack",
    "StageError",
    "StageRecord",
    "EncoderRecord",
    "Predictions",
    "StudentModel",
    "load_student",
    "StudentTrainer",
    "TrainedNetwork",
    "RecordedTeacher",
    "Teacher",
    "TrainingCallback",
    "Checkpoint",
    "TrainingConfig",
    "EarlyStopping",
    "StoppingState",
    "EpochMetrics",
    "TrainingMetrics",
    "Optimizer",
    "OptimizerConfig",
    "RegularizationConfig",
    "LRSchedule",
    "DatasetError",
    "CheckpointError",
    "EncoderMismatchError",
    "StudentFileError",
    "TeacherAnswerError",
    "TrainingError",
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
    "errors": (
        "CheckpointError",
        "ConfigError",
        "DatasetError",
        "EncoderMismatchError",
        "InvalidInputError",
        "MissingDependencyError",
        "StudentFileError",
        "TeacherAnswerError",
        "TrainingError",
        "TuneError",
    ),
    "distillation.calibration": ("fit_temperature",),
    "distillation.config": ("DistillationConfig",),
    "distillation.evaluation": (
        "Deferral",
        "Evaluation",
        "LabelScores",
        "WorstExample",
        "deferral_table",
        "evaluate",
    ),
    "distillation.pipeline": (
        "DistillationPipeline",
        "DistillationResult",
    ),
    "distillation.report": (
        "DistillationReport",
        "PassBack",
    ),
    "distillation.stages": (
        "StageError",
        "StageRecord",
    ),
    "distillation.student": (
        "EncoderRecord",
        "Predictions",
        "StudentModel",
        "load_student",
    ),
    "distillation.student_trainer": (
        "StudentTrainer",
        "TrainedNetwork",
    ),
    "distillation.teacher": (
        "RecordedTeacher",
        "Teacher",
    ),
    "training.callback": ("TrainingCallback",),
    "training.checkpoint": ("Checkpoint",),
    "training.config": ("TrainingConfig",),
    "training.early_stopping": (
        "EarlyStopping",
        "StoppingState",
    ),
    "training.metrics": (
        "EpochMetrics",
        "TrainingMetrics",
    ),
    "training.optimizer": (
        "Optimizer",
        "OptimizerConfig",
    ),
    "training.regularization": ("RegularizationConfig",),
    "training.schedule": ("LRSchedule",),
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
