"""Adapters as PEFT writes them, with drawn numbers: what is stored of a case is its configuration, and names and shapes.

``tools/goldens/lora.py`` writes the same directories and has PEFT merge them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drawn_checkpoints import draw

__all__ = ["adapter_tensors", "write_adapter"]


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
