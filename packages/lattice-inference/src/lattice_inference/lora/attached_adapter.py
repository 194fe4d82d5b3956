"""An adapter that a model has attached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import AdaptingProgram, PreparedAdapter

__all__ = ["AttachedAdapter"]


@dataclass(frozen=True, eq=False)
class AttachedAdapter:
    """One adapter of a loaded model. Immutable.

    What began with it ends with it, whatever its name means meanwhile.

    Attributes:
        name: what it is called in this process.
        sha256: the digest of its content, as :attr:`LoraAdapter.sha256` has it; what caches and fingerprints tell
            adapters apart by.
        source: where it was read from.
        sites: how many linears it changes.
        ranks: its ranks, ascending, each once.
        nbytes: what its matrices take in memory.
        prepared: the form that steps take.
        program: the program that it belongs to.
    """

    name: str
    sha256: str
    source: str
    sites: int
    ranks: tuple[int, ...]
    nbytes: int
    prepared: PreparedAdapter = field(repr=False)
    program: AdaptingProgram = field(repr=False)
