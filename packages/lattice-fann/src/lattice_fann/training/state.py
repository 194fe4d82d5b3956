"""What a training is at between two epochs: everything that resuming takes to go on with the same bits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lattice_fann.errors import FormatError
from lattice_fann.layer import Float32Array

__all__ = ["TrainingState"]

_VERSION = 1


@dataclass
class TrainingState:
    """Weights, optimizer memory, and how far training has come.

    Attributes:
        architecture: of the network, to tell another one by.
        seed: of shuffles and of the validation split.
        epoch: epochs done.
        updates: optimizer steps done.
        parameters, moment1, moment2: flat arrays as the network keeps them.
        best_loss, best_epoch, best_parameters: of the best monitored epoch so far.
        epochs_without_gain: how long ago that was.
    """

    architecture: str
    seed: int
    epoch: int
    updates: int
    parameters: Float32Array
    moment1: Float32Array
    moment2: Float32Array
    best_loss: float
    best_epoch: int | None
    best_parameters: Float32Array | None
    epochs_without_gain: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as an ``.npz`` file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        from lattice_fann.formats.atomic_write import atomic_write

        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("parameters", "moment1", "moment2")}
        if self.best_parameters is not None:
            arrays["best_parameters"] = self.best_parameters
        numbers = {
            "version": _VERSION,
            "epoch": self.epoch,
            "updates": self.updates,
            "best_epoch": -1 if self.best_epoch is None else self.best_epoch,
            "epochs_without_gain": self.epochs_without_gain,
        }
        arrays |= {name: np.int64(value) for name, value in numbers.items()}
        arrays |= {"best_loss": np.float64(self.best_loss)}
        arrays |= {"architecture": np.array(self.architecture), "seed": np.array(str(self.seed))}
        with atomic_write(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingState:
        """Read a state that :meth:`save` wrote.

        Raises:
            FormatError: it is none, or of another version.
            OSError: it cannot be read.
        """
        import zipfile

        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                if int(archive["version"]) != _VERSION:
                    raise FormatError(
                        f"{path}: training state of version {archive['version']}; this package reads {_VERSION}"
                    )
                best_epoch = int(archive["best_epoch"])
                arrays = {name: archive[name] for name in ("parameters", "moment1", "moment2")}
                best = archive["best_parameters"] if "best_parameters" in archive.files else None
                for name, array in {**arrays, **({} if best is None else {"best_parameters": best})}.items():
                    if array.dtype != np.float32 or array.ndim != 1 or not np.isfinite(array).all():
                        raise FormatError(f"{path}: {name} is no array of finite float32 values")
                return cls(
                    architecture=str(archive["architecture"]),
                    seed=int(str(archive["seed"])),
                    epoch=int(archive["epoch"]),
                    updates=int(archive["updates"]),
                    best_loss=float(archive["best_loss"]),
                    best_epoch=None if best_epoch < 0 else best_epoch,
                    best_parameters=best,
                    epochs_without_gain=int(archive["epochs_without_gain"]),
                    **arrays,
                )
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, TypeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{path}: no training state: {error}") from error
