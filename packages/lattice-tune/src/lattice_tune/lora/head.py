"""A linear classifier on an encoder's vectors: trained with an adapter, stored beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.safetensors_writer import StoredTensor, write_safetensors
from lattice_inference.errors import WriteError
from lattice_tune.arguments import number_rows, path_of
from lattice_tune.datasets.labels import LabelSet
from lattice_tune.errors import CheckpointError, InvalidInputError, TuneError
from lattice_tune.lora.losses import Float64Array, unit_rows, unit_rows_gradient
from lattice_tune.training.json_object import json_object, to_json

__all__ = ["HEAD_FILE", "ClassificationHead", "HeadMatrices", "head_logits", "load_head", "through_head"]

HEAD_FILE = "lattice_head.safetensors"
"""The name of a head's file in an adapter's directory."""

_MOST_BYTES = 1 << 28


class HeadMatrices(NamedTuple):
    """Weight, (labels, dimension), and bias, (labels,)."""

    weight: npt.NDArray[np.floating]
    bias: npt.NDArray[np.floating]


def head_logits(head: HeadMatrices, vectors: npt.NDArray[np.float32], scale: float) -> Float64Array:
    """Return (n, labels) float64: scale * weight u + bias, u the vector scaled to length 1."""
    units, _ = unit_rows(vectors)
    return scale * (units @ head.weight.astype(np.float64).T) + head.bias.astype(np.float64)


def through_head(
    head: HeadMatrices, vectors: npt.NDArray[np.float32], scale: float, d_logits: Float64Array
) -> tuple[Float64Array, HeadMatrices]:
    """Return the gradients by the vectors, and by the head."""
    units, lengths = unit_rows(vectors)
    d_units = scale * (d_logits @ head.weight.astype(np.float64))
    d_weight = scale * (d_logits.T @ units)
    return unit_rows_gradient(units, lengths, d_units), HeadMatrices(d_weight, d_logits.sum(axis=0))


class ClassificationHead:
    """Labels vectors that an encoder gives with the adapter that the head was trained with.

    Args:
        labels: in the order of the rows.
        weight: (labels, dimension).
        bias: (labels,).

    Raises:
        InvalidInputError: shapes that do not fit each other.
    """

    def __init__(self, labels: LabelSet | Sequence[str], weight: npt.ArrayLike, bias: npt.ArrayLike) -> None:
        self.labels: LabelSet = labels if isinstance(labels, LabelSet) else LabelSet(labels)
        self.weight: npt.NDArray[np.float32] = number_rows(weight, "weight")
        self.bias: npt.NDArray[np.float32] = number_rows([bias], "bias")[0]
        if len(self.weight) != len(self.labels) or self.bias.shape != (len(self.labels),):
            raise InvalidInputError(
                f"there are {len(self.labels)} labels, {len(self.weight)} rows of weight and {self.bias.size} of bias"
            )

    def logits(self, vectors: npt.ArrayLike) -> Float64Array:
        """Return (n, labels) float64 for vectors, (n, dimension); their lengths do not matter.

        Raises:
            InvalidInputError: the vectors have another dimension.
        """
        rows = number_rows(vectors, "vectors")
        if rows.shape[1] != self.weight.shape[1]:
            raise InvalidInputError(f"vectors have {rows.shape[1]} numbers, and the head takes {self.weight.shape[1]}")
        return head_logits(HeadMatrices(self.weight, self.bias), rows, 1.0)

    def probabilities(self, vectors: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return (n, labels) float32, the labels' probabilities for the vectors, (n, dimension).

        Raises:
            InvalidInputError: the vectors have another dimension.
        """
        logits = self.logits(vectors)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: npt.NDArray[np.float32] = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
        return found

    def predict(self, vectors: npt.ArrayLike) -> list[str]:
        """Return the most probable label of each vector."""
        return [self.labels.names[place] for place in self.probabilities(vectors).argmax(axis=1)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head as a safetensors file.

        Raises:
            CheckpointError: it cannot be written; an older file stays as it was.
        """
        arrays = [self.bias, self.weight]
        tensors = [
            StoredTensor(name, "F32", array.shape) for name, array in zip(("bias", "weight"), arrays, strict=True)
        ]
        try:
            with atomic_file(path_of(path)) as file:
                labels = to_json({"labels": list(self.labels.names)}).decode()
                write_safetensors(file, tensors, arrays, {"labels": labels})
        except WriteError as error:
            raise CheckpointError(str(error)) from error


def load_head(path: str | os.PathLike[str]) -> ClassificationHead:
    """Read the head beside an adapter; ``path`` is the adapter's directory, or the head's file.

    Raises:
        CheckpointError: there is none, or it is malformed.
    """
    place = path_of(path)
    file = place / HEAD_FILE if place.is_dir() else place
    try:
        if os.path.getsize(file) > _MOST_BYTES:
            raise CheckpointError(f"{file}: is larger than any head")
        with safe_open(file, framework="numpy") as opened:
            record = json_object(opened.metadata()["labels"].encode())
            return ClassificationHead(record["labels"], opened.get_tensor("weight"), opened.get_tensor("bias"))
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror or error}") from error
    except (SafetensorError, TuneError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: no head of an adapter: {error!s:.200}") from None
