"""A checkpoint with tensors that no file holds, worked out from the configuration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.mapped_tensors import TensorInfo

__all__ = ["ComputedTensors"]


class ComputedTensors:
    """The tensors of ``checkpoint`` and those of ``computed``.

    The opener closes the checkpoint.

    Args:
        checkpoint: the open checkpoint.
        computed: float32 tensors by names that the checkpoint has not.
    """

    def __init__(self, checkpoint: Checkpoint, computed: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._checkpoint = checkpoint
        self._computed = computed

    def __contains__(self, name: object) -> bool:
        return name in self._computed or name in self._checkpoint

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of a tensor.

        Raises:
            CheckpointError: no tensor has that name.
        """
        if name in self._computed:
            array = self._computed[name]
            return TensorInfo("F32", array.shape, self._checkpoint.directory, 0, array.nbytes)
        return self._checkpoint.info(name)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored."""
        return self._computed[name] if name in self._computed else self._checkpoint.array(name)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as new, finite, C-contiguous float32.

        Raises:
            CheckpointError: there is no such tensor, or it is not finite; the message names the file.
        """
        return self._computed[name].copy() if name in self._computed else self._checkpoint.float32(name)

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that a tensor's pages are not needed soon."""
        if name not in self._computed:
            self._checkpoint.drop_pages(name)
