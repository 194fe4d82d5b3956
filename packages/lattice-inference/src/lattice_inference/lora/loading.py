"""Detects the format of an adapter, and reads it."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.argument_checks import check_path
from lattice_inference.checkpoint.formats import is_gguf, only_gguf
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import ModelNotFoundError, UnsupportedError
from lattice_inference.lora.adapter import LoraAdapter
from lattice_inference.lora.gguf_files import load_gguf_adapter
from lattice_inference.lora.mlx_files import MLX_WEIGHTS, load_mlx_directory
from lattice_inference.lora.peft_config import MAX_CONFIG_BYTES
from lattice_inference.lora.peft_files import CONFIG_FILE, PEFT_WEIGHTS, load_peft_directory

__all__ = ["load_adapter_file"]


def load_adapter_file(path: str | os.PathLike[str]) -> LoraAdapter:
    """Read a low-rank adapter: a directory of PEFT or mlx-lm, or a GGUF file of llama.cpp.

    ``path`` may also be the weights file in such a directory. A and B become float32, which is exact.

    Raises:
        ModelNotFoundError: ``path`` does not exist, or a file of the adapter is missing.
        ModelConfigError: ``adapter_config.json`` is malformed, or a field is wrong.
        CheckpointError: the weights are malformed, hold NaN, or do not match the configuration. The message lists every
            tensor that matches no site.
        UnsupportedError: it needs a feature that is not built; the message says what to do instead.
    """
    check_path("path", path)
    place = Path(path)
    if os.path.isfile(place) and place.name in (PEFT_WEIGHTS, MLX_WEIGHTS, CONFIG_FILE):
        place = place.parent
    if not os.path.isdir(place):
        if is_gguf(place):
            return load_gguf_adapter(place)
        if os.path.isfile(place):
            raise UnsupportedError(
                f"{place}: an adapter is read from its directory, where {CONFIG_FILE} stands beside the weights, or from a "
                "GGUF file"
            )
        raise ModelNotFoundError(f"{place}: there is no such file or directory")
    config = place / CONFIG_FILE
    if not os.path.lexists(config):
        file = only_gguf(place)
        if file is not None:
            return load_gguf_adapter(file)
        raise ModelNotFoundError(
            f"{config}: is missing: without it the scale is not known, so weights alone are not read. Remedy: copy it from "
            "where the adapter was saved"
        )
    fields = load_json_object(config, max_bytes=MAX_CONFIG_BYTES)
    is_mlx = "peft_type" not in fields and ("fine_tune_type" in fields or "lora_parameters" in fields)
    return load_mlx_directory(place) if is_mlx else load_peft_directory(place)
