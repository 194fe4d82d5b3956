"""Describes an adapter in a few words and numbers."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from lattice_inference.checkpoint.formats import is_gguf
from lattice_inference.checkpoint.gguf import open_gguf_file
from lattice_inference.lora.loading import load_adapter_file
from lattice_inference.lora.mlx_files import MLX_WEIGHTS
from lattice_inference.lora.peft_files import CONFIG_FILE, PEFT_WEIGHTS

__all__ = ["adapter_weights", "describe_adapter"]


def adapter_weights(path: Path) -> Path | None:
    """Return the file with the weights of the adapter in ``path``; None if it is no adapter."""
    if os.path.isdir(path):
        if not os.path.isfile(path / CONFIG_FILE) or os.path.exists(path / "config.json"):
            return None
        return path / (MLX_WEIGHTS if os.path.exists(path / MLX_WEIGHTS) else PEFT_WEIGHTS)
    if not os.path.isfile(path) or not is_gguf(path):
        return None
    with open_gguf_file(path) as file:
        return path if file.metadata.get("general.type") == "adapter" else None


def describe_adapter(path: Path) -> dict[str, object]:
    """Read an adapter and return its description, by field.

    Raises:
        LatticeError: as :func:`~lattice_inference.lora.loading.load_adapter_file` does.
    """
    adapter = load_adapter_file(path)
    sites = adapter.sites.values()
    modules = Counter(name.rpartition(".")[2] for name in adapter.sites)
    return {
        "base_model": adapter.base_model or "not stated",
        "sites": len(adapter.sites),
        "modules": ", ".join(f"{name} ({count})" for name, count in sorted(modules.items())),
        "ranks": ", ".join(map(str, sorted({site.rank for site in sites}))),
        "scales": ", ".join(f"{scale:g}" for scale in sorted({site.scale for site in sites})[:8]),
        "parameters": adapter.parameter_count,
        "dora": any(site.magnitude is not None for site in sites),
        "biases": sum(site.bias is not None for site in sites),
        "replaced_tensors": len(adapter.replaced),
        "row_order": adapter.row_order,
        "sha256": adapter.sha256,
    }
