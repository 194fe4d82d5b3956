"""What a model's weights are, told without reading them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.gguf import GgufFile
from lattice_inference.checkpoint.gguf_header import GgufArray
from lattice_inference.checkpoint.mapped_tensors import TensorInfo

__all__ = ["ArraySummary", "CheckpointSummary", "Share", "summarize"]

# A layer's number in the names of GGUF ("blk.7.attn_q.weight") and of transformers ("model.layers.7.mlp...").
_LAYER = re.compile(r"(?:^|\.)(?:blk|layers?|h)\.(?P<number>[0-9]+)\.")

_SHOWN_ELEMENTS = 8


@dataclass
class Share:
    """A part of a model's tensors: their number, elements, bytes, and bytes by type."""

    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    bytes_by_dtype: dict[str, int] = field(default_factory=dict)

    def add(self, info: TensorInfo) -> None:
        """Count a tensor."""
        self.tensors += 1
        self.parameters += math.prod(info.shape)
        self.nbytes += info.nbytes
        self.bytes_by_dtype[info.dtype] = self.bytes_by_dtype.get(info.dtype, 0) + info.nbytes


@dataclass(frozen=True)
class ArraySummary:
    """An array in the metadata: the type and number of its elements, and the first few."""

    kind: str
    count: int
    first: tuple[object, ...]


@dataclass(frozen=True)
class CheckpointSummary:
    """What :func:`summarize` found.

    Attributes:
        path: what was asked about.
        format: ``"GGUF 3"``, ``"safetensors"``, ...
        files: the files with their sizes in bytes.
        metadata: what the files say besides tensors, with arrays cut short.
        tensors: every tensor by name, in the order of the files.
        total: all tensors.
        by_dtype: the tensors of each type.
        by_layer: those of each layer by its number, and the others under ``"other"``.
    """

    path: Path
    format: str
    files: Mapping[Path, int]
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorInfo]
    total: Share
    by_dtype: Mapping[str, Share]
    by_layer: Mapping[str, Share]

    @property
    def architecture(self) -> str | None:
        """A GGUF file's ``general.architecture``."""
        return self._text("general.architecture")

    @property
    def name(self) -> str | None:
        """A GGUF file's ``general.name``."""
        return self._text("general.name")

    def _text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None


def summarize(path: str | os.PathLike[str]) -> CheckpointSummary:
    """Describe a GGUF file, a safetensors file, or a directory of the latter.

    The other parts of a split GGUF model are included.

    Raises:
        ModelNotFoundError: there is nothing.
        CheckpointError: a file is malformed.
    """
    with open_weights(path) as checkpoint:
        first = checkpoint.files[0]
        tensors = {name: checkpoint.info(name) for name in checkpoint.names()}
        total, by_dtype, by_layer = Share(), dict[str, Share](), dict[str, Share]()
        for name, info in tensors.items():
            found = _LAYER.search(name)
            layer = str(int(found["number"][:18])) if found else "other"
            for share in (total, by_dtype.setdefault(info.dtype, Share()), by_layer.setdefault(layer, Share())):
                share.add(info)
        by_layer = dict(sorted(by_layer.items(), key=lambda item: (item[0] == "other", len(item[0]), item[0])))
        return CheckpointSummary(
            path=Path(path),
            format=f"GGUF {first.version}" if isinstance(first, GgufFile) else "safetensors",
            files={file.path: file.path.stat().st_size for file in checkpoint.files},
            metadata={key: _cut(value) for key, value in checkpoint.metadata.items()},
            tensors=tensors,
            total=total,
            by_dtype=by_dtype,
            by_layer=by_layer,
        )


def _cut(value: object) -> object:
    if not isinstance(value, GgufArray):
        return value
    return ArraySummary(value.kind, len(value), value.first(_SHOWN_ELEMENTS))
