"""All that it takes to go on with a training as if it had never ended."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lattice_fann import FannError, TrainingState
from lattice_fann.formats.npz import read_arrays
from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.errors import WriteError
from lattice_tune.arguments import instance, path_of
from lattice_tune.errors import CheckpointError, TuneError
from lattice_tune.training.early_stopping import StoppingState
from lattice_tune.training.json_object import json_object, part_of, to_json
from lattice_tune.training.metrics import EpochMetrics

__all__ = ["Checkpoint"]

_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A training between two epochs.

    Resuming from it gives the bits of an uninterrupted training.

    Attributes:
        state: weights, both moments, seed, epochs and updates done. The order of the examples and all draws of dropout
            depend on seed, epoch and update alone, so these are in it too.
        history: the epochs so far.
        stopping: how early stopping stands; None without it.
        best: the best epoch's weights, (parameters,) float32; None without early stopping.
        data_digest: of the examples and the configuration, to tell another training by.
    """

    state: TrainingState
    history: tuple[EpochMetrics, ...]
    stopping: StoppingState | None
    best: np.ndarray[Any, np.dtype[np.float32]] | None
    data_digest: str

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.state.epoch

    @property
    def step(self) -> int:
        """Updates done."""
        return self.state.updates

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint as an ``.npz`` file, whole or not at all.

        Raises:
            CheckpointError: it cannot be written.
        """
        target = path_of(path)
        state = instance(self.state, "state", TrainingState)
        record = {
            "version": _VERSION,
            "architecture": state.architecture,
            "seed": str(state.seed),
            "epoch": state.epoch,
            "updates": state.updates,
            "history": [asdict(entry) for entry in self.history],
            "stopping": None if self.stopping is None else asdict(self.stopping),
            "data_digest": self.data_digest,
        }
        arrays = {"parameters": state.parameters, "moment1": state.moment1, "moment2": state.moment2}
        if self.best is not None:
            arrays["best"] = self.best
        try:
            with atomic_file(target) as file:
                np.savez(file, record=np.frombuffer(to_json(record), np.uint8), **arrays)  # type: ignore[arg-type]
        except WriteError as error:
            raise CheckpointError(str(error)) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Read a checkpoint that :meth:`save` wrote.

        Raises:
            CheckpointError: the file cannot be read, or is none.
        """
        source = path_of(path)
        try:
            arrays = read_arrays(source)
            record = json_object(arrays["record"].tobytes())
            if record.get("version") != _VERSION:
                raise CheckpointError(f"it is of version {record.get('version')!r:.20}; this package reads {_VERSION}")
            stopping = record["stopping"]
            vectors = {name: arrays[name] for name in ("parameters", "moment1", "moment2")}
            best = arrays.get("best")
            for name, vector in {**vectors, **({} if best is None else {"best": best})}.items():
                finite = vector.dtype == np.float32 and vector.ndim == 1 and np.isfinite(vector).all()
                if not finite or (name != "best" and vector.size != vectors["parameters"].size):
                    raise CheckpointError(f"{name} is no vector of finite float32 numbers of the network's size")
            state = TrainingState(
                architecture=record["architecture"],
                seed=int(record["seed"]),
                epoch=record["epoch"],
                updates=record["updates"],
                best_loss=float("inf"),
                best_epoch=None,
                best_parameters=None,
                epochs_without_gain=0,
                **vectors,
            )
            state.check()
            return cls(
                state,
                tuple(part_of(EpochMetrics, entry) for entry in record["history"]),
                None if stopping is None else part_of(StoppingState, stopping),
                best,
                str(record["data_digest"]),
            )
        except OSError as error:
            raise CheckpointError(f"{source}: {error.strerror or error}") from error
        except (FannError, TuneError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{source}: no checkpoint: {error}") from None
