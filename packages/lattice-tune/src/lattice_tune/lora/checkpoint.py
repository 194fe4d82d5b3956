"""All that it takes to go on with the training of an adapter as if it had never ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann import FannError
from lattice_fann.formats.npz import read_arrays
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.arguments import path_of
from lattice_tune.errors import CheckpointError, TuneError
from lattice_tune.training.early_stopping import StoppingState
from lattice_tune.training.json_object import json_object, part_of, to_json
from lattice_tune.training.metrics import EpochMetrics

__all__ = ["CheckpointIdentity", "LoraCheckpoint", "RoundState"]

Float32Array = npt.NDArray[np.float32]

_KIND, _VERSION = "lattice LoRA checkpoint", 1
_VECTORS = ("values", "moment1", "moment2")


@dataclass(frozen=True)
class CheckpointIdentity:
    """What the bits of a training depend on, beside the number of updates that are done.

    Attributes:
        model: the model's files.
        examples: those that are trained on and measured.
        settings: both configurations, and the objective.
    """

    model: str
    examples: str
    settings: str

    def check(self, other: CheckpointIdentity) -> None:
        """Raise CheckpointError if a checkpoint is of another training, and say in what."""
        for name, what in (("model", "another model"), ("settings", "other settings"), ("examples", "other examples")):
            if getattr(self, name) != getattr(other, name):
                raise CheckpointError(
                    f"the checkpoint is of a training with {what}: go on with what it was made with, or take another folder"
                )


@dataclass(frozen=True)
class RoundState:
    """The sums of a round of updates that has not ended: loss, weight, norms and seconds."""

    loss: float = 0.0
    weight: float = 0.0
    norms: float = 0.0
    updates: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class LoraCheckpoint:
    """A training between two updates.

    The order of the examples and all draws follow from the seed and the number of updates.

    Attributes:
        identity: of the training.
        step: updates done.
        values: all matrices, as :class:`~lattice_tune.lora.parameters.TrainedParameters` has them.
        moment1, moment2: of the optimizer.
        losses: the loss of each update, (step,) float64.
        history: the rounds so far.
        current: the sums of the round that goes on.
        stopping: how early stopping stands; None without it.
        best: the values of the best round; None without early stopping.
        labels: the classes of a head, in order; None without one.
    """

    identity: CheckpointIdentity
    step: int
    values: Float32Array
    moment1: Float32Array
    moment2: Float32Array
    losses: npt.NDArray[np.float64]
    history: tuple[EpochMetrics, ...]
    current: RoundState
    stopping: StoppingState | None
    best: Float32Array | None
    labels: tuple[str, ...] | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint as an ``.npz`` file, whole or not at all.

        Raises:
            CheckpointError: it cannot be written; an older one stays as it was.
        """
        record = {
            "kind": _KIND,
            "version": _VERSION,
            "identity": asdict(self.identity),
            "step": self.step,
            "history": [asdict(entry) for entry in self.history],
            "current": asdict(self.current),
            "stopping": None if self.stopping is None else asdict(self.stopping),
            "labels": self.labels,
        }
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in _VECTORS}
        arrays["losses"] = self.losses
        if self.best is not None:
            arrays["best"] = self.best
        try:
            with atomic_file(path_of(path)) as file:
                np.savez(file, record=np.frombuffer(to_json(record), np.uint8), **arrays)  # type: ignore[arg-type]
        except WriteError as error:
            raise CheckpointError(str(error)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LoraCheckpoint:
        """Read a checkpoint that :meth:`save` wrote.

        Raises:
            CheckpointError: the file cannot be read, or is none.
        """
        source = path_of(path)
        try:
            arrays = read_arrays(source)
            record = json_object(arrays["record"].tobytes())
            if record.get("kind") != _KIND or record.get("version") != _VERSION:
                raise CheckpointError(f"it is none of an adapter's training, or not of version {_VERSION}")
            return cls(**_fields(arrays, record))
        except OSError as error:
            raise CheckpointError(f"{source}: {error.strerror or error}") from error
        except (FannError, TuneError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{source}: no checkpoint: {error}") from None


def _fields(arrays: Mapping[str, npt.NDArray[Any]], record: Mapping[str, Any]) -> dict[str, Any]:
    size = arrays["values"].size
    best = arrays.get("best")
    for name, vector in [*((name, arrays[name]) for name in _VECTORS), *([] if best is None else [("best", best)])]:
        if vector.dtype != np.float32 or vector.shape != (size,) or not np.isfinite(vector).all():
            raise CheckpointError(f"{name} is no vector of {size} finite float32 numbers")
    step = record["step"]
    losses = arrays["losses"]
    if type(step) is not int or step < 0 or losses.dtype != np.float64 or losses.shape != (step,):
        raise CheckpointError("the number of updates is not that of the losses")
    stopping, labels = record["stopping"], record["labels"]
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise CheckpointError("labels is no list of texts")
    if stopping is not None and best is None and stopping.get("best_epoch") is not None:
        raise CheckpointError("the values of the best round are missing")
    return {name: arrays[name] for name in _VECTORS} | {
        "identity": part_of(CheckpointIdentity, record["identity"]),
        "step": step,
        "losses": losses,
        "history": tuple(part_of(EpochMetrics, entry) for entry in record["history"]),
        "current": part_of(RoundState, record["current"]),
        "stopping": None if stopping is None else part_of(StoppingState, stopping),
        "best": best,
        "labels": None if labels is None else tuple(labels),
    }
