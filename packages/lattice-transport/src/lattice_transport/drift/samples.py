"""A set of vectors with weights, ids, and the one model that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lattice_transport.arrays import as_numbers
from lattice_transport.checks import check_kind, check_list
from lattice_transport.costs import as_points
from lattice_transport.errors import DimensionMismatchError, InvalidInputError, MixedModelsError, shown
from lattice_transport.measures import check_weights, normalize_weights

__all__ = ["SupportsFingerprint", "VectorSet", "as_vector_set"]

_Array = npt.NDArray[Any]


@runtime_checkable
class SupportsFingerprint(Protocol):
    """Protocol of an embedding result: vectors, and the fingerprint of their embedding space."""

    @property
    def vectors(self) -> Any:
        """The vectors, (n, dimension)."""

    @property
    def fingerprint(self) -> str:
        """Names model, weights and settings."""


@dataclass(frozen=True, eq=False)
class VectorSet:
    """Vectors (n, dimension) of one model.

    Attributes:
        vectors: float32 or float64, all finite.
        weights: importance of each; None for equal.
        ids: a name for each, for reports; None for positions.
        fingerprint: what model made them: one string, or one for each vector, which must then be the same.

    Raises:
        MixedModelsError: vectors of more than one model.
        InvalidInputError: and its kinds, for vectors or weights that are none.
    """

    vectors: npt.ArrayLike
    weights: npt.ArrayLike | None = None
    ids: Sequence[Any] | None = None
    fingerprint: str | Sequence[str] | None = None
    name: str = field(default="the set", kw_only=True)

    def __post_init__(self) -> None:
        vectors = as_points(self.vectors, self.name)
        object.__setattr__(self, "vectors", vectors)
        if self.weights is not None:
            object.__setattr__(self, "weights", normalize_weights(check_weights(self.weights, len(vectors), 0)))
        if self.ids is not None:
            object.__setattr__(self, "ids", check_list(f"ids of {self.name}", self.ids))
        if self.ids is not None and len(self.ids) != len(vectors):
            raise DimensionMismatchError(f"ids of {self.name}", expected=len(vectors), actual=len(self.ids))
        if self.fingerprint is not None and not isinstance(self.fingerprint, str):
            each = check_list(f"fingerprint of {self.name}", self.fingerprint)
            for one in each:
                check_kind(f"fingerprint of {self.name}", one, str)
            if len(each) != len(vectors):
                raise DimensionMismatchError(f"fingerprints of {self.name}", expected=len(vectors), actual=len(each))
            different = sorted(set(each))
            if len(different) > 1:
                raise MixedModelsError(self.name, different)
            object.__setattr__(self, "fingerprint", different[0])

    def __len__(self) -> int:
        return len(np.asarray(self.vectors))

    @property
    def array(self) -> _Array:
        """The vectors as an array."""
        return np.asarray(self.vectors)

    def subset(self, kept: npt.NDArray[np.int64]) -> VectorSet:
        """Return the vectors at positions ``kept``, under the ids that they have here."""
        kept = self._checked_positions(kept)
        ids = self.ids if self.ids is not None else range(len(self))
        weights = None if self.weights is None else np.asarray(self.weights)[kept]
        return VectorSet(self.array[kept], weights, [ids[int(i)] for i in kept], self.fingerprint, name=self.name)

    def _checked_positions(self, kept: npt.ArrayLike) -> npt.NDArray[np.int64]:
        positions, count = as_numbers(kept, "the positions"), len(self)
        integers = positions.dtype.kind in "iu" or positions.size == 0
        if not (integers and positions.ndim == 1 and ((-count <= positions) & (positions < count)).all()):
            raise InvalidInputError(
                f"the positions are {shown(kept)}; they must be a list of integers from 0 to {count - 1}"
            )
        return positions.astype(np.int64, copy=False)


def as_vector_set(
    values: npt.ArrayLike | VectorSet | SupportsFingerprint, name: str, fingerprint: str | Sequence[str] | None = None
) -> VectorSet:
    """Return ``values`` as a :class:`VectorSet`.

    An embedding result brings its fingerprint along.
    """
    if isinstance(values, VectorSet):
        return values
    if isinstance(values, SupportsFingerprint):
        return VectorSet(values.vectors, fingerprint=fingerprint or values.fingerprint, name=name)
    return VectorSet(values, fingerprint=fingerprint, name=name)
