"""Weights that lie in a mapped file as kernels read them.

They are found here, so that a device that shares the CPU's memory copies none.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.device import GpuBuffer
from lattice_inference.backends.tensor_source import StoredTensorSource, TensorSource

__all__ = ["MAP_VARIABLE", "MappingDevice", "bytes_in_file", "follows", "maps_weights", "mapping_of"]

ByteArray = npt.NDArray[np.uint8]

MAP_VARIABLE = "LATTICE_MAP_WEIGHTS"
"""Set to 0, weights are copied: files on storage that may go away, or that others cut, are safe then."""

_ALIGNMENT = {"float32": 4, "int8": 1}  # 2 of all others


@runtime_checkable
class MappingDevice(Protocol):
    """A device that reads mapped files where they lie."""

    def map_bytes(self, data: ByteArray) -> GpuBuffer | None:
        """Return a buffer over bytes of a mapped file, which it keeps; None if there can be none."""
        ...


def maps_weights(device: object) -> bool:
    """Whether weights stay in the mapped file on ``device``."""
    return isinstance(device, MappingDevice) and os.environ.get(MAP_VARIABLE) != "0"


def mapping_of(array: npt.NDArray[np.generic]) -> tuple[mmap.mmap, int] | None:
    """Return the mapping that an array is a view of, and where it begins there; else None."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap):
        return None
    return base, _address(array) - _address(np.frombuffer(base, np.uint8))


def bytes_in_file(source: TensorSource, names: Sequence[str], form: str) -> ByteArray | None:
    """Return tensors as one array over the file that they lie in, one after the other.

    None: they do not lie so, or not where kernels can read ``form``.
    """
    if not isinstance(source, StoredTensorSource):
        return None
    arrays = [source.array(name) for name in names]
    if not all(array.flags.c_contiguous for array in arrays):
        return None
    found = mapping_of(arrays[0])
    if found is None:
        return None
    mapping, first = found
    end = first
    for array in arrays:
        if mapping_of(array) != (mapping, end):
            return None
        end += array.nbytes
    if first % _ALIGNMENT.get(form, 2):
        return None
    return np.frombuffer(mapping, np.uint8, end - first, first)


def follows(source: StoredTensorSource, name: str, former: str) -> bool:
    """Whether the tensor ``name`` lies in the mapped file where ``former`` ends."""
    places = [mapping_of(source.array(each)) for each in (former, name)]
    if places[0] is None or places[1] is None:
        return places == [None, None]  # both are copied, together
    (mapping, first), (other, second) = places[0], places[1]
    return mapping is other and first + source.array(former).nbytes == second


def _address(array: npt.NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
