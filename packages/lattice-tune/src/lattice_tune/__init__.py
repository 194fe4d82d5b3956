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
    from lattice_tune.distillation.temperature_scaling import fit_temperature
    from lattice_tune.errors import (
        AdapterNotApprovedError,
        CheckpointError,
        ConfigError,
        DatasetError,
        DuplicateModelError,
        EncoderMismatchError,
        InvalidInputError,
        InvalidTransitionError,
        LabelStoreError,
        LineageError,
        MissingDependencyError,
        ModelNotFoundError,
        PromotionRefusedError,
        RegistryBusyError,
        RegistryCorruptError,
        RegistryError,
        StorageError,
        StudentFileError,
        TeacherAnswerError,
        TeacherApiError,
        TeacherTimeoutError,
        TrainingError,
        TuneError,
        WeightIntegrityError,
    )
    from lattice_tune.lora.checkpoint import LoraCheckpoint
    from lattice_tune.lora.config import LoraConfig, LoraTrainingConfig
    from lattice_tune.lora.head import ClassificationHead, load_head
    from lattice_tune.lora.loop import LoraStep
    from lattice_tune.lora.loss_curve import loss_curve
    from lattice_tune.lora.objective import LoraEvaluation
    from lattice_tune.lora.single_step import AdaptStep, LoraGradients, adapt_step, compute_lora_gradients
    from lattice_tune.lora.trainer import LoraResult, LoraTrainer
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
    "LabelStoreError",
    "TeacherApiError",
    "TeacherTimeoutError",
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
    "AdapterGovernance",
    "AdapterManifest",
    "AdapterNotApprovedError",
    "AdapterStatus",
    "DuplicateModelError",
    "GcReport",
    "HashVerified",
    "InvalidTransitionError",
    "Lineage",
    "LineageError",
    "LiveModel",
    "LoadedModel",
    "ManifestEntry",
    "MetricThreshold",
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
    "VerifiedAdapter",
    "VerifyReport",
    "WeightIntegrityError",
    "wilson_interval",
    "AdaptStep",
    "ClassificationHead",
    "LoraCheckpoint",
    "LoraConfig",
    "LoraEvaluation",
    "LoraGradients",
    "LoraResult",
    "LoraStep",
    "LoraTrainer",
    "LoraTrainingConfig",
    "adapt_step",
    "compute_lora_gradients",
    "load_head",
    "loss_curve",
]

_MODULES = {
    "_version": ("__version__",),
    "datasets.config": ("DatasetConfig",),
    "datasets.dataset": ("Dataset",),
    "datasets.duplicates": (
        "Duplicate",
        "DuplicateFinder",
        "find_duplicates",
        "find_overlap",
    ),
    "datasets.example": ("TrainingExample",),
    "datasets.labels": (
        "IntentLabels",
        "LabelSet",
    ),
    "datasets.rows": ("SkippedRows",),
    "datasets.split": ("SplitRule",),
    "datasets.stats": ("DatasetStats",),
    "distillation.temperature_scaling": ("fit_temperature",),
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
    "errors": (
        "AdapterNotApprovedError",
        "CheckpointError",
        "ConfigError",
        "DatasetError",
        "DuplicateModelError",
        "EncoderMismatchError",
        "InvalidInputError",
        "InvalidTransitionError",
        "LabelStoreError",
        "LineageError",
        "MissingDependencyError",
        "ModelNotFoundError",
        "PromotionRefusedError",
        "RegistryBusyError",
        "RegistryCorruptError",
        "RegistryError",
        "StorageError",
        "StudentFileError",
        "TeacherAnswerError",
        "TeacherApiError",
        "TeacherTimeoutError",
        "TrainingError",
        "TuneError",
        "WeightIntegrityError",
    ),
    "lora.checkpoint": ("LoraCheckpoint",),
    "lora.config": ("LoraConfig", "LoraTrainingConfig"),
    "lora.head": ("ClassificationHead", "load_head"),
    "lora.loop": ("LoraStep",),
    "lora.loss_curve": ("loss_curve",),
    "lora.objective": ("LoraEvaluation",),
    "lora.single_step": ("AdaptStep", "LoraGradients", "adapt_step", "compute_lora_gradients"),
    "lora.trainer": ("LoraResult", "LoraTrainer"),
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
