"""Writes safetensors files: a header, then every tensor's bytes.

They are row-major and little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.dtypes import DTYPES

__all__ = ["StoredTensor", "write_safetensors"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is to be written.

    Attributes:
        name: its name.
        dtype: a type of :data:`~lattice_inference.checkpoint.dtypes.DTYPES`, whose storage its array has.
        shape: its dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        count = 1
        for length in self.shape:
            count *= length
        return count * DTYPES[self.dtype].bits // 8


def write_safetensors(
    file: BinaryIO,
    tensors: Sequence[StoredTensor],
    arrays: Iterable[npt.NDArray[np.generic]],
    metadata: Mapping[str, str],
) -> None:
    """Write a file of ``tensors``, whose ``arrays`` are taken one at a time, in the same order.

    Raises:
        ValueError: an array is not what its tensor says.
        OSError: the file cannot be written.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor, array in zip(tensors, arrays, strict=True):
        storage = DTYPES[tensor.dtype].storage
        if storage is None or array.dtype != storage or array.shape != tensor.shape:
            raise ValueError(f"{tensor.name} is {array.dtype} {array.shape}, not {tensor.dtype} {tensor.shape}")
        file.write(np.ascontiguousarray(array, storage).data)
