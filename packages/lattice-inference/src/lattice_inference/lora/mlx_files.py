"""Reads and writes adapters in mlx-lm's format.

Their matrices are transposed, in ``adapters.safetensors``; the configuration holds one scale for all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lattice_inference.argument_checks import check_path
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.safetensors import open_safetensors
from lattice_inference.checkpoint.safetensors_writer import StoredTensor, write_safetensors
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.lora.adapter import MAX_RANK, LoraAdapter, listed
from lattice_inference.lora.destination import check_new_directory
from lattice_inference.lora.peft_files import CONFIG_FILE, built_site
from lattice_inference.models.config_fields import ConfigFields, shown

__all__ = ["MLX_WEIGHTS", "load_mlx_directory", "save_mlx"]

MLX_WEIGHTS = "adapters.safetensors"
_PARTS = {"lora_a": "a", "lora_b": "b", "m": "lora_magnitude_vector"}


def load_mlx_directory(directory: Path) -> LoraAdapter:
    """Read a directory of mlx-lm.

    There A is (inputs, rank), B is (rank, outputs), and ``scale`` multiplies their product.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelConfigError, CheckpointError: a file is malformed; the message lists every tensor of no site.
        UnsupportedError: whole weights were trained, or the configuration is of an old form with another scale.
    """
    source = directory / CONFIG_FILE
    content = load_json_object(source)
    fields = ConfigFields(content, str(source))
    kind = fields.text("fine_tune_type", default="lora")
    if kind not in ("lora", "dora"):
        raise UnsupportedError(f"{source}: fine_tune_type is {shown(kind)}; built are 'lora' and 'dora'")
    inner = content.get("lora_parameters")
    if not isinstance(inner, dict):
        raise ModelConfigError(f"{source}: lora_parameters: {shown(inner)} is not an object")
    parameters = ConfigFields(inner, f"{source}: lora_parameters")
    rank = parameters.integer("rank", 1, MAX_RANK)
    scale = parameters.real("scale", above=-1e30, at_most=1e30)
    if parameters.has("alpha") and parameters.real("alpha", above=0, at_most=1e30) != rank:
        raise UnsupportedError(
            f"{source}: lora_parameters has alpha, which versions of mlx-lm read differently. Remedy: take it out, and "
            "write into scale what the product was multiplied by in training"
        )
    path = directory / MLX_WEIGHTS
    with open_safetensors(path) as file:
        parts: dict[str, dict[str, str]] = {}
        unknown = []
        for key in file.names():
            module, _, part = key.rpartition(".")
            if not module or part not in _PARTS or (part == "m") > (kind == "dora"):
                unknown.append(key)
            else:
                parts.setdefault(module, {})[_PARTS[part]] = key
        if unknown:
            raise CheckpointError(
                f"{path}: tensors that belong to no adapter of low rank ({len(unknown)}): {listed(unknown)}"
            )
        if not parts:
            raise CheckpointError(f"{path}: holds no pair lora_a, lora_b, so it changes nothing")
        sites = {name: built_site(file, name, found, scale, transposed=True) for name, found in parts.items()}
    without = [name for name, site in sites.items() if (site.magnitude is None) == (kind == "dora")]
    wrong = [name for name, site in sites.items() if site.rank != rank]
    if wrong or without:
        raise CheckpointError(
            f"{path}: not of the rank {rank}, or without the magnitudes, that {source} promises: {listed(wrong + without)}"
        )
    model = content.get("model")
    return LoraAdapter(sites, base_model=model if isinstance(model, str) else None, source=str(directory))


def save_mlx(adapter: LoraAdapter, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write an adapter as mlx-lm reads it, in float32.

    The directory appears when it is complete. mlx-lm has one scale and one rank: if scales differ, B is multiplied by
    each site's scale. If ranks differ, A and B are padded with zeros.

    Args:
        adapter: the adapter: pairs of matrices only, with rows in the order of transformers.
        directory: the directory to write.
        overwrite: replace ``directory`` if it holds an adapter.

    Returns:
        The directory.

    Raises:
        InvalidInputError: ``directory`` exists, or its parent does not.
        UnsupportedError: the adapter has more than pairs of matrices, or another order of rows.
        WriteError: the directory cannot be written; an older one stays as it was.
    """
    if not isinstance(adapter, LoraAdapter):
        raise InvalidInputError(f"adapter: a LoraAdapter is needed, not {type(adapter).__name__}")
    check_path("directory", directory)
    if not adapter.is_plain or adapter.row_order != "half":
        raise UnsupportedError(
            f"{adapter.source}: only pairs of matrices with rows in transformers' order are written for mlx-lm (rows in "
            "another order: in_row_order; anything else: merge_adapter)"
        )
    target = Path(directory)
    check_new_directory(target, CONFIG_FILE, overwrite=overwrite)
    scales = {site.scale for site in adapter.sites.values()}
    scale = scales.pop() if len(scales) == 1 else 1.0
    rank = max(site.rank for site in adapter.sites.values())
    tensors, arrays = [], []
    for module, site in adapter.sites.items():
        more = ((0, rank - site.rank), (0, 0))
        b = site.b if site.scale == scale else site.b * np.float32(site.scale)
        for part, array in (("lora_a", np.pad(site.a, more).T), ("lora_b", np.pad(b.T, more))):
            tensors.append(StoredTensor(f"{module}.{part}", "F32", array.shape))
            arrays.append(array)
    keys = sorted({_within_layer(module) for module in adapter.sites})
    config: Mapping[str, object] = {
        "fine_tune_type": "lora",
        "model": adapter.base_model,
        "num_layers": -1,
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys},
    }
    with atomic_directory(target) as work:
        (work / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        with open(work / MLX_WEIGHTS, "wb") as file:
            write_safetensors(file, tensors, arrays, {"format": "mlx"})
    return target


def _within_layer(module: str) -> str:
    pieces = module.split(".")
    numbers = [index for index, piece in enumerate(pieces) if piece.isdecimal()]
    return ".".join(pieces[numbers[0] + 1 :]) if numbers else module
