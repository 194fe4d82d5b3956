"""Where weights come from, as the backend sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lattice_inference.checkpoint.mapped_tensors import TensorInfo

__all__ = ["StoredTensorSource", "TensorSource"]


class TensorSource(Protocol):
    """A checkpoint, or any other source of named float32 tensors."""

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as a new C-contiguous float32 array."""
        ...

    def drop_pages(self, name: str) -> None:
        """Drop the tensor's file pages from memory, as it has been packed."""
        ...


@runtime_checkable
class StoredTensorSource(TensorSource, Protocol):
    """A source that says how a tensor is stored and returns it as stored.

    Quantized tensors need no conversion to float32.
    """

    def __contains__(self, name: object) -> bool: ...

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's stored type and shape."""
        ...

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored."""
        ...
