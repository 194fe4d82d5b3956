"""Tensors of PyTorch beside NumPy arrays.

PyTorch is imported only if a caller has it or asks for it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import plain_array

__all__ = ["as_operands", "rows_of", "tensor_of"]


def tensor_of(array: npt.NDArray[Any]) -> Any:
    """Return an array as a tensor over the same memory."""
    import torch

    return torch.from_numpy(array)


def rows_of(embeddings: Any) -> npt.NDArray[Any]:
    """Return vectors as a matrix: an array, a tensor, or a list of either."""
    if _holds_tensors(embeddings):
        torch: Any = sys.modules["torch"]
        tensor = embeddings if _is_tensor(embeddings) else torch.stack(embeddings)
        embeddings = tensor.detach().cpu().float().numpy()
    return np.atleast_2d(plain_array(embeddings, "embeddings"))


def as_operands(scores: npt.NDArray[Any], *operands: Any) -> Any:
    """Return scores as a tensor if an operand is one."""
    return tensor_of(scores) if any(_holds_tensors(operand) for operand in operands) else scores


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _holds_tensors(embeddings: Any) -> bool:
    return _is_tensor(embeddings) or (isinstance(embeddings, list) and bool(embeddings) and _is_tensor(embeddings[0]))
