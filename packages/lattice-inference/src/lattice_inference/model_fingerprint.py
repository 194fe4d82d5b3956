"""The digest of the files that a model's results depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from lattice_inference.checkpoint.formats import is_gguf
from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.required_files import TOKENIZER_FILES

__all__ = ["digest_of_files"]

_MODEL_FILES = ("*.safetensors", "config.json", "tokenizer_config.json", *dict.fromkeys(sum(TOKENIZER_FILES, ())))
_MODULE_FILES = ("*.safetensors", "config.json")


def digest_of_files(directory: Path, folders: Sequence[str] = ()) -> str:
    """Return 128 bits, in hex, over the names and contents of a model's weights, configuration and tokenizer.

    ``folders`` are those of modules with weights of their own. Of a GGUF file, it is the file with its parts. Every file
    is read once.
    """
    if is_gguf(directory):
        with open_gguf(directory) as checkpoint:
            return _digest([file.path for file in checkpoint.files], directory.parent)
    names = [*_MODEL_FILES, *(f"{folder}/{name}" for folder in folders for name in _MODULE_FILES)]
    return _digest(sorted(path for name in names for path in directory.glob(name)), directory)


def _digest(paths: Sequence[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode())
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]
