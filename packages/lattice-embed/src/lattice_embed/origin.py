"""Keeps vectors of two embedding spaces apart: their recorded origin and its check.

Results of services carry an origin, and so do matrices that were quantized from them. Plain arrays carry none, and are
compared with anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_embed.errors import ProvenanceMismatchError, SpaceMismatchError

if TYPE_CHECKING:
    from lattice_embed.provenance import VectorProvenance

__all__ = ["DeferredProvenance", "VectorOrigin", "check_one_space", "origin_of"]


class DeferredProvenance:
    """A provenance that is computed when it is needed, because that reads the model's files.

    Args:
        make: a method that returns the provenance of vectors of a prompt, scaled to length 1 or not.
        prompt: what was put before every text.
        normalize: whether the vectors were scaled.
    """

    __slots__ = ("make", "normalize", "prompt")

    def __init__(self, make: Callable[[str, bool], VectorProvenance | None], prompt: str, normalize: bool) -> None:
        self.make: Callable[[str, bool], VectorProvenance | None] = make
        self.prompt: str = prompt
        self.normalize: bool = normalize

    def __call__(self) -> VectorProvenance | None:
        """Work it out."""
        return self.make(self.prompt, self.normalize)

    def is_one_space(self, other: DeferredProvenance) -> bool:
        """Whether one open model made both, in one way: their prompts alone may differ."""
        return self.make == other.make and self.normalize is other.normalize


class VectorOrigin:
    """Where vectors come from, as far as it is known. Pickling works it out.

    Attributes:
        model: name of the model, or nothing.
        prompt: what was put before every text.
    """

    __slots__ = ("_fingerprint", "_provenance", "model", "prompt")

    def __init__(
        self,
        fingerprint: str | Callable[[], str],
        provenance: VectorProvenance | Callable[[], VectorProvenance | None] | None,
        model: str,
        prompt: str,
    ) -> None:
        self._fingerprint = fingerprint
        self._provenance = provenance
        self.model: str = model
        self.prompt: str = prompt

    @property
    def provenance(self) -> VectorProvenance | None:
        """All that is known, or None."""
        if callable(self._provenance):
            self._provenance = self._provenance()
        return self._provenance

    @property
    def fingerprint(self) -> str:
        """That of the provenance, or what the service says; empty where it says nothing."""
        if (provenance := self.provenance) is not None:
            return provenance.fingerprint
        if not isinstance(self._fingerprint, str):
            self._fingerprint = self._fingerprint()
        return self._fingerprint

    def check_comparable(self, other: VectorOrigin) -> None:
        """Make sure that vectors of both lie in one space, unless too little is known of them.

        Prompts may differ: a query and a passage are meant to be compared. Where a fingerprint is all that is known, two
        that differ are one space only if the prompts tell why.

        Raises:
            SpaceMismatchError: they lie in two spaces.
        """
        mine, theirs = self._provenance, other._provenance
        if (
            isinstance(mine, DeferredProvenance)
            and isinstance(theirs, DeferredProvenance)
            and mine.is_one_space(theirs)
        ):
            return
        if self.provenance is not None and other.provenance is not None:
            try:
                self.provenance.check_comparable(other.provenance)
            except ProvenanceMismatchError as error:
                raise self._mismatch(other, error.described) from error
            return
        first, second = self.fingerprint, other.fingerprint
        if not first or not second or first == second:
            return
        one_model = not self.model or not other.model or self.model == other.model
        if self.prompt != other.prompt and one_model:
            return
        raise self._mismatch(other, f"model {self.model!r} and {other.model!r}" if not one_model else "")

    def _mismatch(self, other: VectorOrigin, differing: str) -> SpaceMismatchError:
        return SpaceMismatchError(
            expected=self.fingerprint, actual=other.fingerprint, compared=True, differing=differing
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (VectorOrigin, (self.fingerprint, self.provenance, self.model, self.prompt))


def origin_of(vectors: object) -> VectorOrigin | None:
    """Return the origin that vectors carry, or None for those that carry none."""
    origin = getattr(vectors, "vector_origin", None)
    return origin if isinstance(origin, VectorOrigin) else None


def check_one_space(*operands: object) -> None:
    """Check that the operands of a comparison lie in one space, as far as their origin is known.

    Raises:
        SpaceMismatchError: they do not.
    """
    if sum(map(_may_carry, operands)) < 2:
        return
    origins = [origin for operand in operands if (origin := origin_of(operand)) is not None]
    for other in origins[1:]:
        if other is not origins[0]:
            origins[0].check_comparable(other)


def _may_carry(operand: object) -> bool:
    return operand is not None and type(operand) is not np.ndarray
