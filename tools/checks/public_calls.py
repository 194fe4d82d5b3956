"""A valid call of every public callable that takes something, by its name."""

from __future__ import annotations

from . import (
    embed_calls,
    inference_calls,
    leaf_calls,
    model_registry_calls,
    tune_lora_calls,
    tune_student_calls,
    tune_teacher_calls,
)
from .call_registry import CALLS

__all__ = ["CALLS", "MADE_BY_THE_LIBRARY", "MODULES"]

#: What registers the calls.
MODULES = (
    inference_calls,
    embed_calls,
    leaf_calls,
    model_registry_calls,
    tune_lora_calls,
    tune_student_calls,
    tune_teacher_calls,
)

#: Results and states, which callers are given and do not make.
MADE_BY_THE_LIBRARY = {
    "lattice_inference": {
        *{"CachedSequence", "CausalLanguageModel", "CrossEncoder", "EncodedTexts", "Encoder", "Encoding", "Extension"},
        *{"EngineStats", "EngineStream"},
        *{
            "FinishReason",
            "GenerateResult",
            "GenerationStream",
            "KvCache",
            "LogitComparison",
            "MemoryReport",
            "MergeReport",
        },
        *{"ModelFiles", "Perplexity", "StreamPiece", "TokenLogprobs", "Tokenizer"},
        *{"ToolCall", "ToolCallDelta", "ToolStream"},
    },
    "lattice_embed": {
        *{"CacheStats", "DriftReport", "RankedDocument", "RemoteUsage", "ShardStats", "DocumentVersion", "Match"},
        *{
            "StoreOnDisk",
            "VectorStore",
            "EmbeddingService",
            "BackfillProgress",
            "QueryAnswer",
            "RoutingConfig",
            "Metric",
        },
        *{"HalfMatrix", "StoredMatrix", "StoredVector", "TopK", "BinaryVector", "Int4Vector", "QuantizedVector"},
        *{"BackfillCoordinator", "DriftVerdict", "MigrationController", "MigrationPlan"},
        *{"code_of", "queries_for", "rows_for"},  # what the modules of vectors ask each other
    },
    "lattice_fann": {
        "EpochRecord",
        "GradientCheck",
        "Gradients",
        "InputScaling",
        "RlooStep",
        "Trainer",
        "TrainingResult",
    }
    | {"TrainingState"},
    "lattice_transport": {
        *{
            "BarycenterResult",
            "DivergenceGradient",
            "DivergenceResult",
            "DriftItems",
            "DriftObservation",
            "DriftReport",
        },
        *{"DriftSummary", "DriftVerdict", "EmdResult", "FreeSupportResult", "Gaussian", "SelfTerm", "SinkhornProgress"},
        *{"SinkhornResult", "SinkhornStage", "SparsePlan", "TestResult"},
    },
    "lattice_tune": {
        *{
            "GcReport",
            "LoadedModel",
            "RegisteredModel",
            "RegistryEvent",
            "RollbackRecord",
            "ShadowProgress",
            "StoredFile",
        },
        *{"VerifiedAdapter", "VerifyReport"},
        *{"PromotionGate", "refusal"},  # what a promotion asks its gates
        "matches",  # what a registry asks a query
        *{"DryRun", "InProcessTeacher", "LabelingProgress", "LabelingReport", "LabelingResult", "TeacherAnswer"},
        *{
            "DatasetStats",
            "Deferral",
            "DistillationReport",
            "DistillationResult",
            "Duplicate",
            "EpochMetrics",
            "Evaluation",
        },
        *{"LabelScores", "PassBack", "Predictions", "SkippedRows", "StageRecord", "StoppingState", "TrainedNetwork"},
        *{"WorstExample", "Teacher", "TrainingCallback"},
        *{"AdaptStep", "LoraCheckpoint", "LoraEvaluation", "LoraGradients", "LoraResult", "LoraStep"},
    },
}
