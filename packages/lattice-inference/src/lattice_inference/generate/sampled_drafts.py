"""What drafts sampled from logits share: the text, the proposal, how much was right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_inference.generate.draft_length import DraftLength
from lattice_inference.generate.row_sampler import RowSampler

if TYPE_CHECKING:
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.rejection import Candidates

__all__ = ["SampledDrafts"]


class SampledDrafts:
    """Base class of sources of drafts that sample as the generation does; see :class:`Drafts`.

    Args:
        vocab_size: how many logits belong to tokens.
        tokens: the longest context.

    Attributes:
        candidates: for each token of the last proposal what it was drawn from, where drafts are verified by rejection.
    """

    def __init__(self, *, vocab_size: int, tokens: int) -> None:
        self._vocab_size = vocab_size
        self._most = tokens
        self._ids: list[int] = []
        self._proposal: list[int] = []
        self._checked = 0  # tokens of the proposal
        self._can_draft = True
        self.candidates: Sequence[Candidates] = ()

    def accept(self, token_id: int) -> None:
        """Append the next token of the text; see :meth:`Drafts.accept`."""
        if self._checked < len(self._proposal):
            is_right = self._proposal[self._checked] == token_id
            self._length.note(is_right)
            self._checked = self._checked + 1 if is_right else len(self._proposal)
        self._ids.append(token_id)
        self._sampler.accept(token_id)

    def _begin(self, token_ids: Sequence[int], config: ResolvedConfig, draft_cost: float) -> None:
        """Begin a text after ``token_ids``; a draft costs ``draft_cost`` of a step of the model."""
        self._ids = list(token_ids)
        self._proposal, self._checked = [], 0
        self._can_draft = True
        self._length = DraftLength(draft_cost)
        seen = {token_id for token_id in self._ids if token_id < self._vocab_size}
        self._sampler = RowSampler(config.sampling, config.seed, seen, self._vocab_size)
