"""Which format a model's weights are in: the first bytes of a file say so, not its name."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.gguf import gguf_parts, open_gguf
from lattice_inference.checkpoint.gguf_header import MAGIC
from lattice_inference.checkpoint.model_file import file_head, is_safetensors_head
from lattice_inference.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, open_checkpoint, open_safetensors

__all__ = ["gguf_files", "is_gguf", "only_gguf", "open_weights"]


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a GGUF file, by its first bytes.

    A name that ends in ``.gguf`` is one as well, so that opening it says what is wrong with it.
    """
    path = Path(path)
    if path.suffix.lower() == ".gguf":
        return not os.path.isdir(path)
    return file_head(path).startswith(MAGIC)


def gguf_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the GGUF files in a directory, sorted by name; hidden ones do not count."""
    try:
        files = sorted(path for path in Path(directory).iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    return [path for path in files if is_gguf(path)]


def only_gguf(directory: str | os.PathLike[str]) -> Path | None:
    """Return a directory's GGUF file; of a split model its first part.

    None if there are none or several.
    """
    files = gguf_files(directory)
    return files[0] if files and gguf_parts(files[0]) == files else None


def open_weights(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's weights: a GGUF file, a safetensors file, or a directory of either.

    A split GGUF model is opened by any part.

    Raises:
        ModelNotFoundError: there is nothing.
        CheckpointError: a file is malformed, or of another format.
    """
    path = Path(path)
    if is_gguf(path):
        return open_gguf(path)
    if os.path.isdir(path):
        complete = any(os.path.lexists(path / name) for name in (SINGLE_FILE, INDEX_FILE))
        model = None if complete else only_gguf(path)
        return open_checkpoint(path) if model is None else open_gguf(model)
    if path.suffix == ".safetensors" or is_safetensors_head(file_head(path)):
        file = open_safetensors(path)
        return Checkpoint(path, (file,), dict(file.metadata))
    return open_checkpoint(path)
