"""A model whose weights lie in several folders: the model's, and one for each module."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.errors import CheckpointError

if TYPE_CHECKING:
    from types import TracebackType

    from lattice_inference.checkpoint.mapped_tensors import TensorInfo

__all__ = ["CheckpointGroup", "open_checkpoint_group"]


class CheckpointGroup:
    """Several checkpoints as one: ``NAME`` in the model's folder, ``FOLDER/NAME`` elsewhere.

    Made by :func:`open_checkpoint_group`; a context manager.
    """

    def __init__(self, main: Checkpoint, others: dict[str, Checkpoint]) -> None:
        self.main = main
        self._others = others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The model's directory, or its file."""
        return self.main.directory

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name.

        A name of the model's folder that has a slash begins with ``./``.
        """
        own = [f"./{name}" if "/" in name else name for name in self.main.names()]
        others = (f"{folder}/{name}" for folder, other in self._others.items() for name in other.names())
        return (*own, *others)

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of tensors, as :attr:`Checkpoint.aliases` has them."""
        found = dict(self.main.aliases)
        for folder, other in self._others.items():
            found |= {f"{folder}/{name}": f"{folder}/{stored}" for name, stored in other.aliases.items()}
        return found

    def close(self) -> None:
        """Let go of every mapping; calling twice is harmless."""
        for checkpoint in (self.main, *self._others.values()):
            checkpoint.close()

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as new, finite, C-contiguous float32.

        Raises:
            CheckpointError: there is no such tensor, or it is not finite; the message names the file.
        """
        checkpoint, name = self._find(name)
        return checkpoint.float32(name)

    def __contains__(self, name: object) -> bool:
        checkpoint, rest = self._find(str(name))
        return rest in checkpoint

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of a tensor."""
        checkpoint, name = self._find(name)
        return checkpoint.info(name)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored: a read-only view of the mapped file."""
        checkpoint, name = self._find(name)
        return checkpoint.array(name)

    def drop_pages(self, name: str) -> None:
        """Tell the kernel that a tensor's pages are not needed soon."""
        checkpoint, name = self._find(name)
        checkpoint.drop_pages(name)

    def _find(self, name: str) -> tuple[Checkpoint, str]:
        folder, slash, rest = name.rpartition("/")
        if not slash:
            return self.main, name
        if folder not in self._others:
            raise CheckpointError(f"{self.main.directory}: no folder {folder!r} was opened for the tensor {name!r}")
        return self._others[folder], rest


def open_checkpoint_group(directory: Path, folders: Sequence[str] = ()) -> CheckpointGroup:
    """Open the checkpoint of ``directory`` (or that GGUF file) and those of some folders in it.

    Raises:
        ModelNotFoundError, CheckpointError: as :func:`~lattice_inference.checkpoint.formats.open_weights` does.
    """
    with contextlib.ExitStack() as stack:
        main = stack.enter_context(open_weights(directory))
        others = {folder: stack.enter_context(open_weights(directory / folder)) for folder in folders}
        stack.pop_all()
        return CheckpointGroup(main, others)
