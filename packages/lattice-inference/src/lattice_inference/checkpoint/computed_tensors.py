"""A source of weights with tensors that no file holds, worked out from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["ComputedTensors"]


class _Source(Protocol):
    def float32(self, name: str) -> npt.NDArray[np.float32]: ...

    def drop_pages(self, name: str) -> None: ...


class ComputedTensors:
    """The tensors of ``source``, and those of ``computed`` by their names, which come first."""

    def __init__(self, source: _Source, computed: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._source = source
        self._computed = computed

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as C-contiguous float32."""
        return self._computed[name] if name in self._computed else self._source.float32(name)

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that the pages of a tensor of the file are not needed soon."""
        if name not in self._computed:
            self._source.drop_pages(name)
