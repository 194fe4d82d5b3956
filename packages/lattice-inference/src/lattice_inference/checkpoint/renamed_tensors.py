"""Tensors under other names: a program uses its names, the file another convention's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.mapped_tensors import TensorInfo
from lattice_inference.errors import CheckpointError

__all__ = ["RenamedTensors"]


class RenamedTensors:
    """A checkpoint's tensors by other names. Closing the checkpoint is its opener's business.

    Args:
        checkpoint: the open checkpoint.
        names: the checkpoint's name of each tensor by the program's name.
    """

    def __init__(self, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._names = names

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as new, finite, C-contiguous float32.

        Raises:
            CheckpointError: there is no such tensor, or it is not finite; the message has the checkpoint's name of it.
        """
        return self._checkpoint.float32(self._stored_name(name))

    def __contains__(self, name: object) -> bool:
        return self._names.get(str(name)) in self._checkpoint

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's stored type, shape and place."""
        return self._checkpoint.info(self._stored_name(name))

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored: a read-only view of the mapped file."""
        return self._checkpoint.array(self._stored_name(name))

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that a tensor's pages are not needed soon."""
        self._checkpoint.drop_pages(self._stored_name(name))

    def _stored_name(self, name: str) -> str:
        try:
            return self._names[name]
        except KeyError:
            raise CheckpointError(
                f"{self._checkpoint.directory}: the format has no name for the tensor {name!r}"
            ) from None
