"""Rejection sampling: keeps drafts so that tokens keep the model's probabilities.

Leviathan et al. 2023, "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.generate.sampler import draw, uniform

__all__ = ["Candidates", "drafted_token", "verified_token"]

DRAFT, KEEP, AGAIN = 1, 2, 3
"""Which of a position's independent draws: of the draft, of whether it is kept, and of the token in its place."""


class Candidates(NamedTuple):
    """What a token is drawn from.

    Attributes:
        ids: the tokens that may be drawn, ascending.
        probabilities: theirs; all others have none.
    """

    ids: npt.NDArray[np.intp]
    probabilities: npt.NDArray[np.float64]

    def probability(self, token_id: int) -> float:
        """Return a token's probability."""
        place = int(np.searchsorted(self.ids, token_id))
        return float(self.probabilities[place]) if place < self.ids.size and self.ids[place] == token_id else 0.0


def drafted_token(candidates: Candidates, seed: int, position: int) -> int:
    """Draw a draft for ``position``."""
    return int(candidates.ids[draw(candidates.probabilities, uniform(seed, position, DRAFT))])


def verified_token(target: Candidates, candidates: Candidates, draft: int, seed: int, position: int) -> int:
    """Return the draft or another token, so that the result is distributed as ``target``.

    The draft is kept with the probability min(1, p / q), where p and q are its probabilities by the model and by what drew
    it. Otherwise the token is drawn in proportion to what p exceeds q by.

    Args:
        target: what the model would draw from.
        candidates: what ``draft`` was drawn from.
        draft: the drafted token.
        seed: of the draws.
        position: of the token.
    """
    if uniform(seed, position, KEEP) * candidates.probability(draft) < target.probability(draft):
        return draft
    excess = target.probabilities.copy()
    _, mine, theirs = np.intersect1d(target.ids, candidates.ids, assume_unique=True, return_indices=True)
    excess[mine] -= candidates.probabilities[theirs]
    np.maximum(excess, 0, out=excess)
    if not excess.any():  # the two are equal but for rounding
        excess = target.probabilities
    return int(target.ids[draw(excess, uniform(seed, position, AGAIN))])
