"""Checks the tensors of a checkpoint before the model's program is built.

A tensor that nothing reads belongs to another model: an adapter, another layer, a bias that the configuration leaves out.
Without it, the results would be those of another model than the caller chose. So it is refused, unless the family lists
it as idle. A configuration that states more than the file holds is refused at the first missing tensor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.calibration import RANGE_SUFFIX
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.formats import is_gguf, only_gguf
from lattice_inference.checkpoint.gguf import gguf_parts
from lattice_inference.checkpoint.int8_weights import SCALE_SUFFIX
from lattice_inference.checkpoint.mapped_tensors import TensorInfo
from lattice_inference.checkpoint.tensor_rows import parse_rows
from lattice_inference.errors import CheckpointError, UnsupportedError
from lattice_inference.graph.program import Program
from lattice_inference.models.config_fields import ConfigFields
from lattice_inference.models.family import ModelConfig, StoredWeights

__all__ = ["check_weights", "refuse_adapter_file", "refuse_adapters"]

_SHOWN_NAMES = 3
_COMPARED_BYTES = 1 << 24

_ADAPTER = re.compile(r"(?i)(?:^|[._])(?:lora|adapters?|ia3|modules_to_save|base_layer)(?:[._]|$)")
_MERGE = (
    "merge the adapter into the weights (lattice merge-adapter; with peft: model.merge_and_unload(), then save_pretrained) "
    "and load the result"
)


class _Tensors(Protocol):
    """An open checkpoint, or several."""

    @property
    def directory(self) -> Path: ...

    def __contains__(self, name: object) -> bool: ...

    @property
    def aliases(self) -> Mapping[str, str]: ...

    def names(self) -> tuple[str, ...]: ...

    def info(self, name: str) -> TensorInfo: ...


@dataclass(frozen=True)
class _Layers:
    """The layers that a configuration states.

    Attributes:
        first: the beginning of the names of the first layer's tensors; ``0`` is its number.
        count: the number of layers.
        told_by: the field that states the number.
    """

    first: str
    count: int
    told_by: str

    def named(self, name: str, layer: int) -> str:
        """Return the name, in another layer, of a tensor of the first layer."""
        return f"{self.first.removesuffix('0.')}{layer}.{name.removeprefix(self.first)}"


def check_weights(tensors: _Tensors, checkpoint: Checkpoint, config: ModelConfig, weights: StoredWeights[Any]) -> None:
    """Check the tensors in the files of a model.

    Args:
        tensors: the model's own checkpoint, together with those of the modules on top, if there are some.
        checkpoint: the model's own checkpoint.
        config: the model's configuration.
        weights: how the checkpoint holds the weights.

    Raises:
        CheckpointError: a tensor is missing, has another shape than ``config`` says, or is read by nothing.
    """
    all_layers = tuple(range(config.num_hidden_layers))
    kinds = [
        (_shapes(weights, one), numbers)
        for one, numbers in weights.kinds_of_layers or ((config.with_one_layer(), all_layers),)
    ]
    read = set(weights.also_read)
    if weights.same is not None and all(name in checkpoint for name in weights.same):
        _check_same(checkpoint, *weights.same)
        read.add(checkpoint.stored_name(weights.same[0]))
    layers = _Layers(weights.first_layer, config.num_hidden_layers, weights.layers_told_by)
    _check(tensors, kinds, layers, weights.idle, read)


def _shapes(weights: StoredWeights[Any], one: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a model of one layer reads, by name."""
    program: Program = weights.build(one)
    refs = [ref for op in program.ops for ref in op.weights.values() if ref.sources[0] not in weights.computed]
    return {weights.renamed.get(name, name): ref.source_shape for ref in refs for name in ref.sources}


def refuse_adapters(model: Path) -> None:
    """Refuse weights beside a description of an adapter.

    Loading the weights alone would leave the adapter out. ``model`` is a directory or a GGUF file. A description beside
    a GGUF file counts only if the file is the one model of its folder.

    Raises:
        UnsupportedError: there is such a description.
    """
    in_file = is_gguf(model)
    path = (model.parent if in_file else model) / "adapter_config.json"
    if os.path.lexists(path) and not (in_file and only_gguf(model.parent) not in gguf_parts(model)):
        raise UnsupportedError(
            f"{path}: describes an adapter, and loading the model would leave it out: move the adapter (this file and its "
            f"weights) to its own folder, load the model, and call model.load_adapter(folder); or {_MERGE}"
        )


def refuse_adapter_file(fields: ConfigFields) -> None:
    """Raise UnsupportedError if a file with the metadata ``fields`` is an adapter."""
    if fields.text("general.type", default="model") == "adapter":
        raise UnsupportedError(
            f"{fields.source}: general.type is 'adapter', and this is no model: load its model and call "
            "model.load_adapter(file), or merge it (lattice merge-adapter; with llama.cpp: llama-export-lora)"
        )


def _check(
    tensors: _Tensors,
    kinds: Sequence[tuple[Mapping[str, tuple[int, ...]], Sequence[int]]],
    layers: _Layers,
    idle: re.Pattern[str],
    read: Collection[str] = (),
) -> None:
    """Check a checkpoint.

    Args:
        tensors: the checkpoint.
        kinds: for each kind of layer, the tensors that a model with one such layer needs, and the numbers of these layers.
        layers: all layers of the model.
        idle: matches the names of tensors that a file may hold although nothing reads them.
        read: tensors that are read if the file holds them.
    """
    used, aliases = set(read), tensors.aliases
    for name, shape, is_later in _needed(kinds, layers):
        if name not in tensors:
            why = f" of the {layers.count:,} layers that {layers.told_by} promises" if is_later else ""
            raise CheckpointError(f"{tensors.directory}: the checkpoint holds no tensor {name!r}{why}")
        info = tensors.info(name)
        if info.shape != shape:
            raise CheckpointError(
                f"{tensors.directory}: the model needs a tensor of shape {shape}, the checkpoint has {name} {info.shape}"
            )
        rows = parse_rows(name)
        whole = name if rows is None else rows.tensor
        used.add(aliases.get(whole, whole))
        if len(shape) == 2:
            used.add(whole + RANGE_SUFFIX)
            if info.dtype == "I8":
                used.add(whole + SCALE_SUFFIX)
    unread = [name for name in tensors.names() if name not in used and not idle.fullmatch(name)]
    if unread:
        raise CheckpointError(_unread_message(tensors.directory, unread, layers))


def _needed(
    kinds: Sequence[tuple[Mapping[str, tuple[int, ...]], Sequence[int]]], layers: _Layers
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield each needed tensor, its shape, and whether its layer is not the first of its kind."""
    for shapes, numbers in kinds:
        in_layer = {name: shape for name, shape in shapes.items() if name.startswith(layers.first)}
        for name, shape in shapes.items():
            yield (layers.named(name, numbers[0]) if name in in_layer else name), shape, False
        for number in numbers[1:]:
            for name, shape in in_layer.items():
                yield layers.named(name, number), shape, True


def _unread_message(directory: Path, unread: Sequence[str], layers: _Layers) -> str:
    shown = ", ".join(f"{name:.200}" for name in unread[:_SHOWN_NAMES])
    more = f" and {len(unread) - _SHOWN_NAMES:,} more" if len(unread) > _SHOWN_NAMES else ""
    stem = layers.first.removesuffix("0.")
    beyond = re.compile(rf"{re.escape(stem)}([0-9]{{1,18}})\.")
    if any(_ADAPTER.search(name) for name in unread):
        remedy = _MERGE
    elif any((found := beyond.match(name)) and int(found[1]) >= layers.count for name in unread):
        remedy = f"{layers.told_by} is {layers.count:,}; state the number of layers that the file has"
    else:
        remedy = "the configuration must say what they are for, or they must be taken out of the file"
    return (
        f"{directory}: the checkpoint holds tensors that the model does not read ({len(unread):,}), so its results would be "
        f"another model's: {shown}{more}. Remedy: {remedy}"
    )


def _check_same(checkpoint: Checkpoint, output: str, embedding: str) -> None:
    """Refuse an output matrix beside its tied embedding, unless both have the same bytes."""
    if checkpoint.stored_name(output) == checkpoint.stored_name(embedding):
        return
    pair = [checkpoint.info(name) for name in (output, embedding)]
    same = (pair[0].dtype, pair[0].shape) == (pair[1].dtype, pair[1].shape)
    if same:
        first, second = (_bytes(checkpoint.array(name)) for name in (output, embedding))
        same = all(
            np.array_equal(first[start : start + _COMPARED_BYTES], second[start : start + _COMPARED_BYTES])
            for start in range(0, len(first), _COMPARED_BYTES)
        )
    if not same:
        raise CheckpointError(
            f"{checkpoint.directory}: tie_word_embeddings is true and {output} is not {embedding}: set it to false if the "
            f"output matrix is {output}, or take {output} out of the file"
        )


def _bytes(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
