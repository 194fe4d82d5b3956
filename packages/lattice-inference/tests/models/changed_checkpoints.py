"""Model files written again with other tensors or other settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lattice_inference.checkpoint.gguf import open_gguf_file
from lattice_inference.checkpoint.gguf_writer import EncodedEntry, TensorToWrite, write_gguf

__all__ = ["change_config", "change_gguf", "change_tensors"]

Arrays = Mapping[str, npt.NDArray[np.generic] | None]


def change_tensors(path: Path, changes: Arrays, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file again with ``changes``; None leaves a tensor out."""
    with safe_open(path, "np") as file:
        kept = dict(file.metadata() or {}) | dict(metadata or {})
    tensors = load_file(path) | dict(changes)
    save_file({name: array for name, array in tensors.items() if array is not None}, path, metadata=kept or None)


def change_config(directory: Path, **changes: object) -> None:
    """Write a directory's ``config.json`` again with ``changes``; None leaves a field out."""
    path = directory / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def change_gguf(path: Path, tensors: Arrays | None = None, **entries: object) -> Path:
    """Write a GGUF file again with other tensors and entries; None leaves one out. ``a__b`` stands for ``a.b``."""
    with open_gguf_file(path) as file:
        metadata: dict[str, object] = {key: EncodedEntry(file.encoded_entry(key)) for key in file.metadata}
        metadata |= {name.replace("__", "."): value for name, value in entries.items()}
        arrays = {name: (np.array(file.array(name)), file.info(name)) for name in file.names()}
    written = {
        name: TensorToWrite(name, info.shape, info.dtype, lambda array=array: [array.tobytes()])
        for name, (array, info) in arrays.items()
    }
    for name, changed in (tensors or {}).items():
        written.pop(name, None)
        if changed is not None:
            written[name] = TensorToWrite(name, changed.shape, "F32", lambda array=changed: [array.tobytes()])
    write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, list(written.values()))
    return path
