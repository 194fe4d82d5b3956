"""Buffers over pages of mapped files, which Metal reads where they lie.

A buffer without a copy begins at a page and has whole pages. One buffer covers a file; a file above the largest buffer has
several, which may overlap.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_inference.backends.gpu.mapped_weights import mapping_of

if TYPE_CHECKING:
    from lattice_inference.backends.metal import _metal

__all__ = ["MappedPages"]


class MappedPages:
    """The buffers over mapped files that are in use. Not thread-safe.

    A buffer holds its mapping, and is forgotten with the last weight that lies in it.

    Args:
        device: the module's device.
        make: makes a buffer of a number of bytes over an array of whole pages.
        most_bytes: of a buffer.
    """

    def __init__(self, device: _metal.Device, make: Callable[..., _metal.Buffer], most_bytes: int) -> None:
        self._device = device
        self._make = make
        self._most = most_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._windows: weakref.WeakValueDictionary[tuple[int, int, int], Any] = weakref.WeakValueDictionary()

    def place(self, data: npt.NDArray[np.uint8]) -> tuple[_metal.Buffer, int] | None:
        """Return the buffer that ``data`` lies in and where it begins; None if there is none."""
        found = mapping_of(data)
        if found is None or not data.size:
            return None
        mapping, first = found
        end = first + data.size
        whole = np.frombuffer(mapping, np.uint8)
        for (identity, begin, size), buffer in list(self._windows.items()):
            if identity == id(mapping) and begin <= first and end <= begin + size:
                return buffer, first - begin
        begin = 0 if _pages(whole.size) <= self._most else first // mmap.PAGESIZE * mmap.PAGESIZE
        size = min(self._most, _pages(whole.size - begin))
        if end > begin + size:
            return None
        buffer = self._make(self._device, size, whole[begin:], keep=True)
        self._windows[id(mapping), begin, size] = buffer
        return buffer, first - begin


def _pages(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole pages: a mapping has them, whatever its file's size."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
