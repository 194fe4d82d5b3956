"""The digest of the files that a model's results depend on, as they were when it was loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lattice_inference.checkpoint.formats import is_gguf
from lattice_inference.checkpoint.gguf import gguf_parts
from lattice_inference.checkpoint.json_file import load_json
from lattice_inference.checkpoint.safetensors import INDEX_FILE, SINGLE_FILE, read_shard_index
from lattice_inference.errors import CheckpointError, LatticeError, ModelNotFoundError
from lattice_inference.files.checksums import FileIdentity, file_identity, remembered_sha256
from lattice_inference.files.required_files import TOKENIZER_FILES

__all__ = ["ModelSnapshot"]

_OWN_FILES = ("config.json", "modules.json", "tokenizer_config.json", *dict.fromkeys(sum(TOKENIZER_FILES, ())))


@dataclass(frozen=True)
class ModelSnapshot:
    """Which files a model's results depend on, and which contents they had at one moment.

    Take it **before** the model is loaded. Then a digest that is computed later is that of the files that were read,
    or an error. It is never that of files that have replaced them since.

    Attributes:
        model: its directory, or its GGUF file.
        files: the files by their names relative to the directory, each with what tells it from a later one.
    """

    model: Path
    files: tuple[tuple[str, FileIdentity], ...]

    @classmethod
    def take(cls, model: Path) -> ModelSnapshot:
        """Find weights, configuration and tokenizer of a directory and its modules.

        Reads no weights. Of a GGUF file, which holds all of these, it is the file with its parts.
        """
        found = {}
        for name in sorted(set(_names(model))):
            identity = file_identity(_directory(model) / name)
            if identity is not None:
                found[name] = identity
        return cls(model, tuple(found.items()))

    def digest(self) -> str:
        """Return 128 bits, in hex, over the files' names and contents. Every file is read once.

        The digests of large files are remembered beside the model cache, so that the next process need not read them.

        Raises:
            CheckpointError: a file was changed or taken away since the snapshot.
        """
        digest = hashlib.sha256()
        for name, _ in self.files:
            try:
                content = bytes.fromhex(remembered_sha256(_directory(self.model) / name))
            except ModelNotFoundError:
                break  # taken away: the comparison below says so
            encoded = os.fsencode(name)
            digest.update(len(encoded).to_bytes(8, "little") + encoded + content)
        self.check_unchanged()
        return digest.hexdigest()[:32]

    def check_unchanged(self) -> None:
        """Raise CheckpointError if a file was changed or taken away since the snapshot."""
        before, now = dict(self.files), dict(ModelSnapshot.take(self.model).files)
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise CheckpointError(
                    f"{_directory(self.model) / name} was changed after the model was loaded, so nothing can say any more "
                    "what its vectors come from: load the model again"
                )


def _directory(model: Path) -> Path:
    return model.parent if is_gguf(model) else model


def _names(directory: Path) -> Iterator[str]:
    if is_gguf(directory):
        yield from (path.name for path in gguf_parts(directory))
        return
    yield from _OWN_FILES
    yield from _weight_files(directory)
    for folder in _module_folders(directory):
        yield f"{folder}/config.json"
        yield from (f"{folder}/{name}" for name in _weight_files(directory / folder))


def _weight_files(directory: Path) -> Iterator[str]:
    """Yield the files that weights are read from: the single one, else the index and its shards."""
    if os.path.exists(directory / SINGLE_FILE):
        yield SINGLE_FILE
    elif os.path.exists(directory / INDEX_FILE):
        yield INDEX_FILE
        try:
            yield from sorted(set(read_shard_index(directory / INDEX_FILE).values()))
        except LatticeError:  # the loader reports what is wrong
            return


def _module_folders(directory: Path) -> Iterator[str]:
    try:
        modules = load_json(directory / "modules.json")
    except LatticeError:
        return
    for module in modules if isinstance(modules, list) else ():
        folder = module.get("path") if isinstance(module, dict) else None
        if isinstance(folder, str) and "\0" not in folder and PurePosixPath(folder) != PurePosixPath("."):
            yield folder
