"""The state of a training between two epochs; resuming from it gives the same bits."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.arguments import instance, shown, whole
from lattice_fann.errors import FormatError, InvalidInputError
from lattice_fann.initialization import LARGEST_SEED, check_seed
from lattice_fann.layer import Float32Array

__all__ = ["TrainingState"]

_VERSION = 1
_MOST_STEPS = 1 << 53  # as many as float64 can count


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

    def check(self) -> None:
        """Refuse a state whose fields are of another type or beyond their bounds.

        Raises:
            InvalidInputError: one is.
        """
        instance(self.architecture, "architecture", str)
        check_seed(self.seed)
        for name in ("epoch", "updates", "epochs_without_gain"):
            whole(getattr(self, name), name, most=_MOST_STEPS)
        if self.best_epoch is not None:
            whole(self.best_epoch, "best_epoch", most=_MOST_STEPS)
        if type(self.best_loss) not in (float, np.float64) or math.isnan(self.best_loss):
            raise InvalidInputError(f"best_loss is {shown(self.best_loss)}; it must be a number")
        for name in ("parameters", "moment1", "moment2", "best_parameters"):
            array = getattr(self, name)
            if name == "best_parameters" and array is None:
                continue
            if type(array) is not np.ndarray or array.dtype != np.float32 or array.ndim != 1:
                raise InvalidInputError(f"{name} is {shown(array)}; it must be a vector of float32")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as an ``.npz`` file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        from lattice_fann.formats.atomic_write import atomic_write
        from lattice_fann.formats.files import checked_path

        target = checked_path(path)
        self.check()
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
        with atomic_write(target) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingState:
        """Read a state that :meth:`save` wrote.

        Raises:
            FormatError: it is none, or of another version.
            OSError: it cannot be read.
        """
        from lattice_fann.formats.files import checked_path
        from lattice_fann.formats.npz import read_arrays

        name = checked_path(path)
        try:
            return cls._from_arrays(read_arrays(name))
        except (FormatError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise FormatError(f"{path}: no training state: {error}") from None

    @classmethod
    def _from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> TrainingState:
        version = _whole(arrays, "version")
        if version != _VERSION:
            raise FormatError(f"it is of version {version}; this package reads {_VERSION}")
        parts = {name: _finite(arrays, name) for name in ("parameters", "moment1", "moment2")}
        best = _finite(arrays, "best_parameters") if "best_parameters" in arrays else None
        sizes = {array.size for array in [*parts.values(), *([] if best is None else [best])]}
        if len(sizes) > 1:
            raise FormatError(f"its arrays have different sizes, {sorted(sizes)}")
        if (parts["moment2"] < 0).any():
            raise FormatError("moment2 holds a value below 0")
        architecture, seed = _text(arrays, "architecture"), _text(arrays, "seed")
        if not (seed.isascii() and seed.isdecimal()) or len(seed) >= len(str(LARGEST_SEED)):
            raise FormatError(f"seed is {seed[:40]!r}, no whole number below 10**400")
        best_epoch, best_loss = _whole(arrays, "best_epoch", least=-1), arrays["best_loss"]
        if best_loss.shape != () or best_loss.dtype != np.float64 or np.isnan(best_loss):
            raise FormatError("best_loss is no number")
        if (best_epoch < 0) != (best is None):
            raise FormatError("it holds a best epoch without its weights, or weights without their epoch")
        return cls(
            architecture=architecture,
            seed=int(seed),
            epoch=_whole(arrays, "epoch"),
            updates=_whole(arrays, "updates"),
            best_loss=float(best_loss),
            best_epoch=None if best_epoch < 0 else best_epoch,
            best_parameters=best,
            epochs_without_gain=_whole(arrays, "epochs_without_gain"),
            **parts,
        )


def _finite(arrays: dict[str, npt.NDArray[Any]], name: str) -> Float32Array:
    array = arrays[name]
    if array.dtype != np.float32 or array.ndim != 1 or not np.isfinite(array).all():
        raise FormatError(f"{name} is no array of finite float32 values")
    return array


def _whole(arrays: dict[str, npt.NDArray[Any]], name: str, *, least: int = 0) -> int:
    array = arrays[name]
    if array.shape != () or array.dtype.kind not in "iu" or not least <= int(array) <= _MOST_STEPS:
        raise FormatError(f"{name} must be one whole number from {least} to {_MOST_STEPS}")
    return int(array)


def _text(arrays: dict[str, npt.NDArray[Any]], name: str) -> str:
    array = arrays[name]
    if array.shape != () or array.dtype.kind != "U":
        raise FormatError(f"{name} is no text")
    return str(array)
