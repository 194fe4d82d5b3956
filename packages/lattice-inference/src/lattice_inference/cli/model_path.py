"""What ``--model`` names: a file or directory here, or a model to be found by its name."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.checkpoint.formats import only_gguf
from lattice_inference.files.hub import find_model

__all__ = ["model_path"]


def model_path(name: str) -> Path:
    """Return the file or the directory of the model ``name``.

    Raises:
        ModelNotFoundError, InvalidInputError, DownloadError: as :func:`lattice_inference.files.hub.find_model` says.
    """
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        return find_model(name).directory
    return path if any(path.glob("*.safetensors")) or os.path.exists(path / "config.json") else only_gguf(path) or path
