"""Which format a model's weights are in."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf import gguf_parts, open_gguf
from lattice_inference.checkpoint.safetensors import open_checkpoint, open_safetensors

__all__ = ["is_gguf", "only_gguf", "open_weights"]


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names a GGUF file, by its suffix."""
    return Path(path).suffix == ".gguf"


def only_gguf(directory: str | os.PathLike[str]) -> Path | None:
    """Return the GGUF file that a directory holds, of a split model its first part; None if there are none or several."""
    files = sorted(Path(directory).glob("*.gguf"))
    return files[0] if files and gguf_parts(files[0]) == files else None


def open_weights(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's weights: a GGUF file (with its other parts), a safetensors file, or a directory of the latter.

    Raises:
        ModelNotFoundError: there is nothing.
        CheckpointError: a file is malformed.
    """
    path = Path(path)
    if is_gguf(path):
        return open_gguf(path)
    if path.suffix == ".safetensors" and not path.is_dir():
        file = open_safetensors(path)
        return Checkpoint(path, (file,), dict(file.metadata))
    return open_checkpoint(path)
