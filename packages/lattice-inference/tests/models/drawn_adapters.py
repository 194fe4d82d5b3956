"""Adapters as PEFT writes them, with drawn numbers: what is stored of a case is its configuration, and names and shapes.

``tools/goldens/lora_peft.py`` writes the same directories and has PEFT merge them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drawn_checkpoints import draw
from lattice_inference.lora import LoraAdapter, LoraSite

__all__ = ["adapter_of_linears", "adapter_tensors", "write_adapter"]


def adapter_of_linears(
    name: str, linears: Mapping[str, tuple[int, int]], *, rank: int, scales: Sequence[float]
) -> LoraAdapter:
    """Draw a pair for each linear of the layers, given with rows and columns. The linears take the scales in turn."""
    layers = sorted((linear, shape) for linear, shape in linears.items() if ".layers." in linear)
    return LoraAdapter(
        {
            linear: LoraSite(
                draw(f"{name}:{linear}:a", (rank, columns)),
                draw(f"{name}:{linear}:b", (rows, rank)),
                scales[index % len(scales)],
            )
            for index, (linear, (rows, columns)) in enumerate(layers)
        }
    )


def adapter_tensors(name: str, shapes: Mapping[str, list[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """Draw the tensors of a case; lengths of rows (DoRA) are about 1."""
    return {key: draw(f"{name}:{key}", shape) + np.float32("magnitude" in key) for key, shape in shapes.items()}


def write_adapter(directory: Path, name: str, case: Mapping[str, Any]) -> Path:
    """Write the adapter of a case as a directory of PEFT's."""
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(case["config"], indent=1), encoding="utf-8")
    save_file(adapter_tensors(name, case["tensors"]), directory / "adapter_model.safetensors", {"format": "pt"})
    return directory
