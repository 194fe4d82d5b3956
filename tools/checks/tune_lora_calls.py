"""Valid calls of the public callables of lattice_tune that train adapters."""

from __future__ import annotations

import numpy as np

import lattice_tune
from lattice_tune.lora.checkpoint import CheckpointIdentity, RoundState

from .call_registry import call, calls

_ROW = {"prompt": "a", "completion": "b"}
_TRAINING = lattice_tune.LoraTrainingConfig(epochs=1, max_tokens=16, micro_batch_tokens=16)


def _head() -> lattice_tune.ClassificationHead:
    return lattice_tune.ClassificationHead(["a", "b"], np.ones((2, 3)), np.zeros(2))


def _trainer() -> lattice_tune.LoraTrainer:
    config = lattice_tune.LoraConfig(rank=1, targets=("q_proj",))
    return lattice_tune.LoraTrainer("decoder", config, _TRAINING, threads=1)


def _checkpoint() -> lattice_tune.LoraCheckpoint:
    identity, vector = CheckpointIdentity("m", "e", "s"), np.zeros(16, np.float32)
    losses = np.zeros(0)
    return lattice_tune.LoraCheckpoint(identity, 0, vector, vector, vector, losses, (), RoundState(), None, None)


calls(
    "lattice_tune",
    lambda: lattice_tune,
    {
        "ClassificationHead": {"labels": ["a", "b"], "weight": np.ones((2, 3)), "bias": np.zeros(2)},
        "LoraConfig": {},
        "LoraTrainer": {
            "model": "decoder",
            "config": lambda: lattice_tune.LoraConfig(rank=1, targets=("q_proj",)),
            "training": _TRAINING,
            "threads": 1,
        },
        "LoraTrainingConfig": {},
        "adapt_step": {"trainer": _trainer, "example": lambda: _ROW, "learning_rate": 0.1},
        "compute_lora_gradients": {"trainer": _trainer, "examples": lambda: [_ROW]},
        "loss_curve": {"losses": lambda: [1.0, 0.5], "width": 10, "height": 4},
    },
)
calls(
    "lattice_tune.ClassificationHead",
    _head,
    {
        "logits": {"vectors": np.ones((1, 3))},
        "predict": {"vectors": np.ones((1, 3))},
        "probabilities": {"vectors": np.ones((1, 3))},
        "save": {"path": "out-head.safetensors"},
    },
)
calls("lattice_tune.LoraCheckpoint", _checkpoint, {"save": {"path": "out-lora.npz"}})
calls("lattice_tune.LoraTrainingConfig", lattice_tune.LoraTrainingConfig, {"rates": {"steps": 10}})
calls(
    "lattice_tune.LoraTrainer",
    _trainer,
    {
        "evaluate": {"examples": lambda: [_ROW]},
        "factors": {"site": "model.layers.0.self_attn.q_proj"},
        "load": {"adapter": lambda: _trainer().adapter},
        "plan": {"examples": lambda: [_ROW]},
        "save": {"directory": "out-adapter", "overwrite": True},
        "train": {"examples": lambda: [_ROW]},
        "validate_against": {"linears": lambda: dict(_trainer()._parameters.shapes)},
    },
)


@call("lattice_tune.load_head")
def _() -> tuple[object, dict[str, object]]:
    _head().save("out-head.safetensors")
    return lattice_tune.load_head, {"path": "out-head.safetensors"}


@call("lattice_tune.LoraCheckpoint.load")
def _() -> tuple[object, dict[str, object]]:
    _checkpoint().save("out-lora.npz")
    return lattice_tune.LoraCheckpoint.load, {"path": "out-lora.npz"}
