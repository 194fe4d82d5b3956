"""Training data: inputs, targets and weights as checked arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_fann.arguments import real, shown, whole
from lattice_fann.arrays import float32_of, number_array
from lattice_fann.errors import InvalidInputError, SizeMismatchError
from lattice_fann.layer import Float32Array
from lattice_fann.network import Network
from lattice_fann.training.loss import Loss

__all__ = ["ClassWeight", "DataSet", "prepare", "sample_weights", "split"]

ClassWeight = Mapping[int, float] | Literal["balanced"]

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class DataSet:
    """Samples with targets, and a weight each or None for equal weights."""

    inputs: Float32Array
    targets: Float32Array
    weights: Float32Array | None

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def rows(self, which: npt.NDArray[np.int64]) -> DataSet:
        """Return a data set of some of the samples."""
        return DataSet(
            np.ascontiguousarray(self.inputs[which]),
            np.ascontiguousarray(self.targets[which]),
            None if self.weights is None else np.ascontiguousarray(self.weights[which]),
        )


def prepare(
    network: Network,
    inputs: npt.ArrayLike,
    targets: npt.ArrayLike,
    loss: Loss,
    *,
    sample_weight: npt.ArrayLike | None = None,
    class_weight: ClassWeight | None = None,
    target_sum: float = 1.0,
) -> DataSet:
    """Return checked float32 arrays.

    ``targets`` is (samples, outputs); for a softmax output, (samples,) integers name classes; for one output,
    (samples,) numbers are its targets. Distributions sum to ``target_sum``.
    Inputs may hold values that are not finite: the gradient guard deals with them.

    Raises:
        SizeMismatchError: no samples, or sizes that do not fit.
        InvalidInputError: targets that are not finite, or no distributions where the loss needs them.
    """
    x = _float32(inputs, "inputs")
    if x.ndim != 2 or x.shape[1] != network.num_inputs:
        raise SizeMismatchError(f"inputs must have shape (samples, {network.num_inputs}), not {x.shape}")
    if not x.shape[0]:
        raise SizeMismatchError("there are no samples to train on")
    y = _targets(network, targets)
    if y.shape[0] != x.shape[0]:
        raise SizeMismatchError(f"there are {x.shape[0]} inputs and {y.shape[0]} targets")
    if not np.isfinite(y).all():
        row, column = np.argwhere(~np.isfinite(y))[0]
        raise InvalidInputError(f"target {column} of sample {row} is not finite")
    if loss.wants_distributions:
        wrong = (y.min(axis=1) < 0) | (np.abs(y.sum(axis=1) - target_sum) > _SUM_TOLERANCE * target_sum)
        if wrong.any():
            row = int(np.argmax(wrong))
            made = (
                "" if loss is not Loss.DISTILLATION else ": make them with mixed_targets, of temperature and hard_share"
            )
            raise InvalidInputError(
                f"{loss.name} needs targets of at least 0 that sum to {target_sum:g}; "
                f"sample {row} has {shown(y[row].tolist())}{made}"
            )
    if loss is Loss.BINARY_CROSS_ENTROPY and not ((y >= 0) & (y <= 1)).all():
        raise InvalidInputError("BINARY_CROSS_ENTROPY needs targets from 0 to 1")
    return DataSet(x, y, _weights(y, sample_weight, class_weight))


def _float32(values: npt.ArrayLike, name: str) -> Float32Array:
    return float32_of(number_array(values, name))


def _targets(network: Network, targets: npt.ArrayLike) -> Float32Array:
    given = number_array(targets, "targets")
    outputs = network.num_outputs
    if given.ndim == 1 and given.dtype.kind in "biu" and network.layers[-1].activation.is_softmax:
        if given.size and not (given.min() >= 0 and given.max() < outputs):
            raise InvalidInputError(
                f"classes must be from 0 to {outputs - 1}; they go from {given.min()} to {given.max()}"
            )
        one_hot = np.zeros((given.size, outputs), dtype=np.float32)
        one_hot[np.arange(given.size), given.astype(np.int64)] = 1.0
        return one_hot
    y = _float32(given, "targets")
    if y.ndim == 1 and outputs == 1:
        y = y.reshape(-1, 1)
    if y.ndim != 2 or y.shape[1] != outputs:
        raise SizeMismatchError(f"targets must have shape (samples, {outputs}), not {y.shape}")
    return y


def sample_weights(sample_weight: npt.ArrayLike | None, samples: int) -> npt.NDArray[np.float64] | None:
    """Return one weight a sample as float64, or None for none.

    Raises:
        SizeMismatchError: another number of weights than samples.
        InvalidInputError: a weight that is not finite or is negative, or all are zero.
    """
    if sample_weight is None:
        return None
    weights = number_array(sample_weight, "sample_weight").astype(np.float64)
    if weights.shape != (samples,):
        raise SizeMismatchError(f"sample_weight must have shape {(samples,)}, not {weights.shape}")
    with np.errstate(all="ignore"):
        total = weights.sum()
    if not ((weights >= 0).all() and 0 < total < np.inf):
        raise InvalidInputError("sample weights must be finite, not negative, not all zero, and of a finite sum")
    return weights


def _weights(
    targets: Float32Array, sample_weight: npt.ArrayLike | None, class_weight: ClassWeight | None
) -> Float32Array | None:
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(targets.shape[0], dtype=np.float64)
    given = sample_weights(sample_weight, targets.shape[0])
    if given is not None:
        weights *= given
    if class_weight is not None:
        if targets.shape[1] < 2:
            raise InvalidInputError("class_weight needs one output a class; give sample_weight instead")
        classes = targets.argmax(axis=1)
        if isinstance(class_weight, str):
            if class_weight != "balanced":
                raise InvalidInputError(f"class_weight is {class_weight!r}; it must be a mapping or 'balanced'")
            counts = np.bincount(classes, minlength=targets.shape[1])
            factors = np.where(counts > 0, classes.size / (np.maximum(counts, 1) * (counts > 0).sum()), 0.0)
        else:
            factors = np.ones(targets.shape[1])
            if not isinstance(class_weight, Mapping):
                raise InvalidInputError(f"class_weight is {shown(class_weight)}; it must be a mapping or 'balanced'")
            for label, factor in class_weight.items():
                known = whole(label, "a class of class_weight", most=targets.shape[1] - 1)
                factors[known] = real(factor, f"the weight of class {known}", "of at least 0", least=0)
        with np.errstate(over="ignore"):
            weights *= factors[classes]
        if not np.isfinite(weights).all():
            raise InvalidInputError("a sample weight times its class weight is not finite: make them smaller")
    # the scale is of no consequence (means are weighted) but must not leave float32
    return (weights / weights.max()).astype(np.float32) if weights.max() > 0 else weights.astype(np.float32)


def split(
    data: DataSet, fraction: float, generator: np.random.RandomState, *, stratify: bool
) -> tuple[DataSet, DataSet]:
    """Return two parts, the second with ``fraction`` of the samples.

    ``stratify`` takes this share of each class.

    Raises:
        SizeMismatchError: a part would be empty.
    """
    groups = [np.arange(len(data))]
    if stratify:
        classes = data.targets.argmax(axis=1)
        groups = [np.flatnonzero(classes == label) for label in np.unique(classes)]
    wanted = round(len(data) * fraction)
    if not 0 < wanted < len(data):
        raise SizeMismatchError(
            f"validation_fraction {fraction} of {len(data)} samples leaves a part without any: take 0, or more samples"
        )
    # shuffled within each class, then dealt out evenly: sample j of n of a class stands at (j + 1/2) / n
    shuffled = [generator.permutation(group) for group in groups]
    positions = np.concatenate([(np.arange(len(group)) + 0.5) / len(group) for group in shuffled])
    dealt = np.concatenate(shuffled)[np.argsort(positions, kind="stable")].astype(np.int64)
    return data.rows(np.sort(dealt[wanted:])), data.rows(np.sort(dealt[:wanted]))
