"""npz datasets: ``vectors`` or ``texts``, ``labels``, ``label_names``, ``weights``.

Pickled objects are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann import FannError
from lattice_fann.formats.npz import read_arrays
from lattice_tune.datasets.config import DatasetConfig
from lattice_tune.datasets.rows import Row
from lattice_tune.errors import DatasetError, shown

__all__ = ["npz_rows"]

_KNOWN = {"vectors": 2, "texts": 1, "labels": (1, 2), "label_names": 1, "weights": 1}


def npz_rows(path: Path, config: DatasetConfig) -> Iterator[Row]:
    """Yield the rows of an npz file; all of it is read at once.

    ``labels`` are (n,) names or numbers, numbers standing for ``label_names`` if those are there; or (n, labels)
    probabilities of ``label_names``.

    Raises:
        DatasetError: it is no npz file, or its arrays do not fit each other.
    """
    arrays = _arrays(path)
    sizes = {name: len(array) for name, array in arrays.items() if name != "label_names"}
    if len(set(sizes.values())) > 1:
        raise DatasetError(f"{path}: its arrays have different numbers of rows: {sizes}")
    names = _names(path, arrays.get("label_names"))
    labels = arrays.get("labels")
    if labels is not None and labels.ndim == 2 and labels.shape[1] != len(names):
        raise DatasetError(f"{path}: labels have {labels.shape[1]} columns and label_names {len(names)} names")
    for row in range(next(iter(sizes.values()))):
        fields: dict[str, Any] = {}
        if "texts" in arrays:
            fields[config.text_field] = str(arrays["texts"][row])
        if "vectors" in arrays:
            fields[config.vector_field] = arrays["vectors"][row]
        if "weights" in arrays:
            fields[config.weight_field] = float(arrays["weights"][row])
        if labels is not None and labels.ndim == 2:
            fields[config.labels_field] = dict(zip(names, labels[row].astype(float).tolist(), strict=True))
        elif labels is not None:
            fields[config.label_field] = _label(path, row, labels[row], names)
        yield Row(row, fields)


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        arrays = read_arrays(path)
    except FannError as error:
        raise DatasetError(str(error)) from None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error
    if not arrays.keys() & {"vectors", "texts"}:
        raise DatasetError(f"{path}: it holds neither vectors nor texts; it holds {shown(list(arrays))}")
    for name, array in arrays.items():
        if name not in _KNOWN:
            raise DatasetError(f"{path}: it holds {shown(name)}; the arrays of a dataset are {', '.join(_KNOWN)}")
        dimensions = _KNOWN[name]
        if array.ndim not in (dimensions if isinstance(dimensions, tuple) else (dimensions,)):
            raise DatasetError(f"{path}: {name} has shape {array.shape}")
        kinds = {"vectors": "iuf", "weights": "iuf", "texts": "U", "label_names": "U"}.get(
            name, "iuf" if array.ndim == 2 else "Uiu"
        )
        if array.dtype.kind not in kinds:
            raise DatasetError(f"{path}: {name} holds {array.dtype}, which it cannot be made of")
    return arrays


def _names(path: Path, array: npt.NDArray[Any] | None) -> list[str]:
    names = [] if array is None else [str(name) for name in array]
    if len(set(names)) < len(names) or "" in names:
        raise DatasetError(f"{path}: label_names hold a name twice or an empty one")
    return names


def _label(path: Path, row: int, label: Any, names: list[str]) -> str | None:
    if isinstance(label, np.str_):
        return str(label) or None
    number = int(label)
    if not names:
        return str(number)
    if not 0 <= number < len(names):
        raise DatasetError(f"{path}, row {row}: the label {number} is none of {len(names)} label_names")
    return names[number]
