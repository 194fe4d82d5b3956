"""The weights of one model, whichever format and however many files they are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.mapped_tensors import MappedTensors, PageAdvice, TensorInfo
from lattice_inference.checkpoint.tensor_rows import parse_rows, rows_name
from lattice_inference.errors import CheckpointError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Checkpoint"]


class Checkpoint:
    """The weights of one model, in one file or several of one format. A context manager.

    Made by :func:`~lattice_inference.checkpoint.formats.open_weights`.

    Attributes:
        directory: the directory, or the (first) file where that is the whole model.
        files: the open files.
        metadata: what the files say besides tensors: free-form strings of safetensors, the typed values of GGUF (see
            :mod:`lattice_inference.checkpoint.gguf`).
        aliases: other names of tensors, with the names that they are stored under. safetensors' ``save_model`` stores a
            tensor that a model has twice once, and writes its other name into the metadata.
    """

    def __init__(
        self,
        directory: Path,
        files: tuple[MappedTensors, ...],
        metadata: Mapping[str, object],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.files = files
        self.metadata = metadata
        self.aliases: Mapping[str, str] = {} if aliases is None else aliases
        self._file_of = {name: file for file in files for name in file.names()}
        self._infos: dict[str, TensorInfo] = {}
        for file in files:
            self._infos.update(file.infos)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.directory)!r}, {len(self._file_of)} tensors in {len(self.files)} files)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        if name in self._file_of or name in self.aliases:
            return True
        if not isinstance(name, str) or parse_rows(name) is None:
            return False
        try:
            file, stored = self._place(name)
        except CheckpointError:
            return False
        return stored in file

    def __len__(self) -> int:
        return len(self._file_of)

    def close(self) -> None:
        """Release every file's mapping.

        Arrays returned before stay valid; calling twice is harmless.
        """
        for file in self.files:
            file.close()

    def names(self) -> tuple[str, ...]:
        """Return every stored tensor's name: file by file, in the order of the headers."""
        return tuple(self._file_of)

    def stored_name(self, name: str) -> str:
        """Return the name that a tensor is stored under: its own, unless it is an alias."""
        return self.aliases.get(name, name)

    def info(self, name: str) -> TensorInfo:
        """Return type, shape and place of a tensor, as :meth:`MappedTensors.info` does."""
        info = self._infos.get(self.aliases.get(name, name))
        if info is not None:
            return info
        file, stored = self._place(name)
        return file.info(stored)

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Return a tensor as it is stored, as :meth:`MappedTensors.array` does."""
        file, stored = self._place(name)
        return file.array(stored)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as finite float32, as :meth:`MappedTensors.float32` does."""
        file, stored = self._place(name)
        return file.float32(stored)

    def float32_chunks(self, name: str) -> Iterator[npt.NDArray[np.float32]]:
        """Yield a tensor piece by piece, as :meth:`MappedTensors.float32_chunks` does."""
        file, stored = self._place(name)
        return file.float32_chunks(stored)

    def drop_pages(self, name: str) -> None:
        """Advise the kernel about a tensor's pages, as :meth:`MappedTensors.drop_pages` does."""
        file, stored = self._place(name)
        file.drop_pages(stored)

    def advise(self, advice: PageAdvice, names: Iterable[str] | None = None) -> None:
        """Tell the kernel how tensors, by default all, will be read.

        See :meth:`MappedTensors.advise`.
        """
        for name in self._file_of if names is None else names:
            file, stored = self._place(name)
            file.advise(advice, (stored,))

    def _place(self, name: str) -> tuple[MappedTensors, str]:
        """Return the file that holds a tensor, or rows of one, and its name there."""
        stored = self.aliases.get(name, name)
        file = self._file_of.get(stored)
        if file is None and (rows := parse_rows(name)) is not None:
            tensor = self.aliases.get(rows.tensor, rows.tensor)
            count = rows.end - rows.first
            file, stored = self._file_of.get(tensor), rows_name(tensor, rows.first, count, swapped=rows.swapped)
        if file is None:
            raise CheckpointError(f"{self.directory}: the checkpoint holds no tensor {name!r}")
        return file, stored
