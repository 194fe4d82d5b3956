"""Valid calls of the public callables of lattice_tune that make datasets and students."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import lattice_fann
import lattice_tune

from .call_registry import call, calls

_X = np.random.RandomState(0).standard_normal((24, 6)).astype(np.float32)
_Y = np.eye(2, dtype=np.float32)[np.arange(24) % 2]
_PARTS = {"train": 0.5, "test": 0.5}
_METRICS = lattice_tune.EpochMetrics(
    epoch=0,
    train_loss=1.0,
    val_loss=1.0,
    val_accuracy=0.5,
    learning_rate=0.1,
    gradient_norm=1.0,
    duration_seconds=0.1,
    examples_seen=4,
)


class _Encoder:
    fingerprint, dimension = "x", 6

    def encode(self, texts: list[str], *, prompt: str = "") -> SimpleNamespace:
        return SimpleNamespace(vectors=np.resize(_X, (len(texts), 6)))


def _dataset() -> lattice_tune.Dataset:
    return lattice_tune.Dataset([(f"text {i}", "ab"[i % 2]) for i in range(24)])


def _labels() -> lattice_tune.LabelSet:
    return lattice_tune.LabelSet(["a", "b"])


def _network() -> lattice_fann.Network:
    builder = lattice_fann.NetworkBuilder().input(6)
    return builder.output(2, lattice_fann.Activation.SOFTMAX).build(seed=0)


def _record() -> lattice_tune.EncoderRecord:
    return lattice_tune.EncoderRecord(fingerprint="x", source="", dimension=6)


def _student() -> lattice_tune.StudentModel:
    student = lattice_tune.StudentModel(_network(), _labels(), _record())
    student.use_encoder(_Encoder())
    return student


def _config(**options: object) -> lattice_tune.TrainingConfig:
    return lattice_tune.TrainingConfig(**({"epochs": 1, "val_split": 0.3} | options))


def _rule() -> lattice_tune.SplitRule:
    return lattice_tune.SplitRule(_PARTS)


_example = {"example": lambda: lattice_tune.TrainingExample(text="a", label="a")}
_measured = {"probabilities": _Y, "expected": _Y, "labels": _labels}
calls(
    "lattice_tune",
    lambda: lattice_tune,
    {
        "Dataset": {"examples": lambda: [("a text", "a")]},
        "DatasetConfig": {},
        "DistillationConfig": {"hidden": (4,), "temperature": 2.0, "hard_share": 0.5, "balance": False, "prompt": ""},
        "DistillationPipeline": {"encoder": _Encoder, "labels": _labels},
        "DuplicateFinder": {"near": 0.8},
        "EarlyStopping": {},
        "EncoderRecord": {"fingerprint": "x", "source": "", "dimension": 6},
        "LRSchedule": {},
        "LabelSet": {"names": lambda: ["a", "b"]},
        "OptimizerConfig": {},
        "RecordedTeacher": {"dataset": _dataset},
        "RegularizationConfig": {},
        "SplitRule": {"parts": _PARTS},
        "StudentModel": {"network": _network, "labels": _labels, "encoder": _record},
        "StudentTrainer": {"config": _config},
        "TrainingConfig": {},
        "TrainingExample": {
            "text": "a",
            "label": "a",
            "labels": {"a": 1.0},
            "vector": [1.0],
            "weight": 1.0,
            "metadata": {},
        },
        "TrainingMetrics": {},
        "deferral_table": _measured,
        "evaluate": _measured | {"texts": ["a"] * 24, "worst": 3, "bins": 5},
        "find_duplicates": {"examples": _dataset, "near": 0.8},
        "find_overlap": {"first": _dataset, "second": _dataset, "near": 0.8},
        "fit_temperature": {"probabilities": _Y, "expected": _Y},
        "load_student": {"path": "student.safetensors"},
    },
)
calls(
    "lattice_tune.Dataset",
    _dataset,
    {
        "epoch": {"number": 1},
        "batches": {"epoch": 1},
        "split": {"parts": _PARTS, "seed": 1, "group": None, "stratify": True},
        "targets": {"labels": _labels},
        "gold": {"labels": _labels},
        "duplicates": {"near": 0.8},
        "overlap": {"other": _dataset, "near": 0.8},
        "without_duplicates": {"near": 0.8},
        "write_jsonl": {"path": "out.jsonl"},
    },
)
calls("lattice_tune.Dataset", lambda: lattice_tune.Dataset, {"open": {"path": "labelled.jsonl"}})
calls("lattice_tune.DistillationPipeline", lambda: _pipeline(), {"run": {"dataset": _dataset, "test": _dataset}})
calls("lattice_tune.DuplicateFinder", lambda: lattice_tune.DuplicateFinder(), {"find": {"index": 0} | _example})
calls(
    "lattice_tune.EarlyStopping",
    lattice_tune.EarlyStopping,
    {
        "observe": {"state": lambda: lattice_tune.EarlyStopping().begin(), "metrics": _METRICS},
        "is_over": {"state": lambda: lattice_tune.EarlyStopping().begin()},
    },
)
for _name in ("LabelSet", "IntentLabels"):
    _kind = _labels if _name == "LabelSet" else lattice_tune.IntentLabels
    _label = "a" if _name == "LabelSet" else "continuation"
    calls(f"lattice_tune.{_name}", _kind, {"index": {"label": _label}, "row": {"labels": {_label: 1.0}}})
calls(
    "lattice_tune.LRSchedule",
    lambda: lattice_tune.LRSchedule,
    {
        "linear_warmup": {"warmup_steps": 3},
        "step_decay": {"step_size": 2, "gamma": 0.5},
        "exponential_decay": {"gamma": 0.5},
        "cosine_annealing": {"min_lr": 0.0, "t_max": 5},
        "cosine_annealing_warmup": {"warmup_steps": 3, "min_lr": 0.0, "t_max": 5},
        "linear_decay": {"warmup_steps": 3, "total_steps": 10},
        "cosine_decay": {"warmup_steps": 3, "total_steps": 10},
        "one_cycle": {"max_lr": 0.1, "pct_start": 0.5, "total_steps": 10},
    },
)
calls("lattice_tune.LRSchedule", lattice_tune.LRSchedule, {"get_lr": {"base": 0.1, "step": 1, "epoch": 1}})
calls(
    "lattice_tune.SplitRule", _rule, {"position": _example, "part_of": _example, "stratified": {"examples": _dataset}}
)
calls(
    "lattice_tune.StudentModel",
    _student,
    {
        "predict": {"texts": ["a"]},
        "predict_vectors": {"vectors": _X, "encoder_fingerprint": "x"},
        "save": {"path": "out.safetensors"},
        "use_encoder": {"encoder": _Encoder},
    },
)
calls(
    "lattice_tune.StudentTrainer",
    lambda: lattice_tune.StudentTrainer(_config(), hidden=(4,)),
    {
        "train": {"vectors": _X, "soft": _Y, "hard": _Y, "sample_weight": np.ones(24)},
        "fann_config": {"epochs": 1, "batches": 2},
    },
)
calls("lattice_tune.TrainingMetrics", lattice_tune.TrainingMetrics, {"is_overfitting": {"window": 2}})


def _pipeline() -> lattice_tune.DistillationPipeline:
    config = lattice_tune.DistillationConfig(hidden=(), training=_config())
    return lattice_tune.DistillationPipeline(_Encoder(), _labels(), config=config)


def _checkpoint() -> lattice_tune.Checkpoint:
    result = lattice_fann.BackpropTrainer(_network(), lattice_fann.TrainingConfig(max_epochs=1)).train(_X, _Y)
    return lattice_tune.Checkpoint(result.state, (), None, None, "x")


@call("lattice_tune.Checkpoint")
def _() -> tuple[object, dict[str, object]]:
    made = _checkpoint()
    return lattice_tune.Checkpoint, {
        "state": made.state,
        "history": (),
        "stopping": None,
        "best": None,
        "data_digest": "x",
    }


calls("lattice_tune.Checkpoint", _checkpoint, {"save": {"path": "out.npz"}})


@call("lattice_tune.Checkpoint.load")
def _() -> tuple[object, dict[str, object]]:
    _checkpoint().save("out.npz")
    return lattice_tune.Checkpoint.load, {"path": "out.npz"}
