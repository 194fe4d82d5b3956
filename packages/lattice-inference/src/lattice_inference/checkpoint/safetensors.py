"""Safetensors checkpoints, single and sharded, as read-only views of the mapped file.

Reading is our own: :mod:`lattice_inference.checkpoint.safetensors_header` checks what a file claims, and
:mod:`lattice_inference.checkpoint.mapped_tensors` hands tensors out. A model's directory is opened with
:func:`open_checkpoint`, one file with :func:`open_safetensors`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType

from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.mapped_tensors import MappedTensors, open_mapped
from lattice_inference.checkpoint.model_file import content_of
from lattice_inference.checkpoint.safetensors_header import MAX_TENSORS, Header, header_length, parse_header
from lattice_inference.errors import CheckpointError, ModelNotFoundError

__all__ = [
    "INDEX_FILE",
    "MAX_INDEX_BYTES",
    "SINGLE_FILE",
    "SafetensorsFile",
    "open_checkpoint",
    "open_safetensors",
    "read_shard_index",
]

#: Name of the weight file of a checkpoint that is one file.
SINGLE_FILE = "model.safetensors"

#: Name of the file that says which shard holds which tensor.
INDEX_FILE = "model.safetensors.index.json"

#: Largest shard index in bytes: a million tensors with long names.
MAX_INDEX_BYTES = 128 * 1024 * 1024


class SafetensorsFile(MappedTensors):
    """One open, mapped safetensors file. Made by :func:`open_safetensors`; a context manager."""

    def __init__(self, path: Path, mapping: mmap.mmap, size: int, header: Header) -> None:
        super().__init__(path, mapping, size, header.tensors)
        self._metadata = header.metadata

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free-form strings that the writer left in the header."""
        return self._metadata


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open and map one safetensors file, after checking everything that its header claims.

    Raises:
        ModelNotFoundError: the file does not exist.
        CheckpointError: it is not a well-formed safetensors file. The message says what is wrong, and names usual
            mix-ups: a Git LFS pointer, a web page, a PyTorch file.
    """

    def read(path: Path, mapping: mmap.mmap, size: int) -> SafetensorsFile:
        length = header_length(mapping[:8], size, path)
        return SafetensorsFile(path, mapping, size, parse_header(mapping[8 : 8 + length], size, path))

    return open_mapped(Path(path), read)


def open_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Open the weights of the model in ``directory``.

    ``model.safetensors`` is taken where it exists, else the shards that ``model.safetensors.index.json`` names.

    Raises:
        ModelNotFoundError: the directory, both of these files, or a shard do not exist.
        CheckpointError: ``directory`` is a file, a file is malformed, the index names a file outside of the directory, a
            shard lacks a tensor that the index promises, or two shards hold the same tensor.
    """
    directory = Path(directory)
    if not os.path.isdir(directory):  # unlike Path.is_dir, false for whatever cannot be looked at
        if os.path.isfile(directory):
            raise CheckpointError(
                f"{directory}: a directory with weights is needed, and this is {content_of(directory)}"
            )
        raise ModelNotFoundError(f"{directory}: no such directory")
    if os.path.lexists(directory / SINGLE_FILE):
        file = open_safetensors(directory / SINGLE_FILE)
        return Checkpoint(directory, (file,), file.metadata, _aliases((file,)))
    if not os.path.lexists(directory / INDEX_FILE):
        raise ModelNotFoundError(f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_shard_index(directory / INDEX_FILE)
    files: list[SafetensorsFile] = []
    try:
        for shard in dict.fromkeys(weight_map.values()):
            files.append(open_safetensors(directory / shard))
        _check_shards(directory, weight_map, {file.path: file for file in files})
    except BaseException:
        for file in files:
            file.close()
        raise
    # where shards differ in a key, the first shard's counts
    metadata: dict[str, object] = {}
    for file in reversed(files):
        metadata.update(file.metadata)
    return Checkpoint(directory, tuple(files), MappingProxyType(metadata), _aliases(files))


def _aliases(files: Sequence[SafetensorsFile]) -> Mapping[str, str]:
    """Return the alternative names of tensors from the files' metadata, by stored name."""
    stored = {name for file in files for name in file.names()}
    pairs = (pair for file in files for pair in file.metadata.items())
    return MappingProxyType({name: meant for name, meant in pairs if meant in stored and name not in stored})


def read_shard_index(path: Path) -> Mapping[str, str]:
    """Read ``model.safetensors.index.json`` and return which file holds which tensor.

    Every file name is relative, stays inside the directory and ends in ``.safetensors``. Only its text is checked:
    shards may be symbolic links to elsewhere, as in the Hugging Face cache.

    Raises:
        ModelNotFoundError: there is no such index.
        CheckpointError: it is malformed.
    """
    index = load_json_object(path, max_bytes=MAX_INDEX_BYTES, error=CheckpointError)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map is missing, empty or not an object")
    if len(weight_map) > MAX_TENSORS:
        raise CheckpointError(f"{path}: {len(weight_map):,} tensors, and at most {MAX_TENSORS:,} are read")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise CheckpointError(
                f"{path}: tensor {name!r} is said to lie in {shard!r}, which is no file name in this directory"
            )
        if not shard.endswith(".safetensors"):
            raise CheckpointError(f"{path}: tensor {name!r} lies in {shard!r}, which is not a .safetensors file")
    return MappingProxyType(weight_map)


def _check_shards(directory: Path, weight_map: Mapping[str, str], files: Mapping[Path, SafetensorsFile]) -> None:
    for name, shard in weight_map.items():
        if name not in files[directory / shard]:
            raise CheckpointError(f"{directory}: the index promises tensor {name!r} in {shard}, which does not hold it")
    holder: dict[str, Path] = {}
    for path, file in files.items():
        for name in file.names():
            if name in holder:
                raise CheckpointError(f"{directory}: both {holder[name].name} and {path.name} hold tensor {name!r}")
            holder[name] = path


def _stays_inside(name: str) -> bool:
    """Whether ``name`` is a relative path inside its directory, on any operating system."""
    if not name or "\0" in name or "\\" in name or PureWindowsPath(name).drive or PurePosixPath(name).is_absolute():
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))
