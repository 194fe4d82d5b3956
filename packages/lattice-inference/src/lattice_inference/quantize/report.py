"""What writing a checkpoint came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lattice_inference.checkpoint.gguf_writer import TensorToWrite

__all__ = ["QuantizeReport"]


@dataclass(frozen=True)
class QuantizeReport:
    """A checkpoint that was written.

    Attributes:
        path: the file, or the directory.
        tensors: how many tensors of each type it has.
        source_bytes: bytes of the source's tensors.
        tensor_bytes: bytes of the tensors written.
        file_bytes: bytes of the file; of a directory, of its weights.
    """

    path: Path
    tensors: Mapping[str, int]
    source_bytes: int
    tensor_bytes: int
    file_bytes: int

    @classmethod
    def of(cls, path: Path, tensors: Sequence[TensorToWrite], source_bytes: int) -> Self:
        """Return the report on the file ``path`` with ``tensors``."""
        return cls(
            path,
            dict(Counter(tensor.dtype for tensor in tensors)),
            source_bytes,
            sum(tensor.nbytes for tensor in tensors),
            path.stat().st_size,
        )
