"""What each weight takes in the form that a backend keeps it in."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WeightSize"]


@dataclass(frozen=True)
class WeightSize:
    """One weight as it is kept.

    Attributes:
        name: of the tensor or tensors that it was made of.
        dtype: what its values are kept in.
        nbytes: what it takes, padding included.
        mapped: whether it lies in the mapped file; else it was packed into memory of its own.
    """

    name: str
    dtype: str
    nbytes: int
    mapped: bool = False
