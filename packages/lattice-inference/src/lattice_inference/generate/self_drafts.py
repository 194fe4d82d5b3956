"""Guesses of a model's own recurrent layers, without the layers that attend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.errors import CacheFullError, NonFiniteError
from lattice_inference.generate.drafts import MOST_DRAFTS
from lattice_inference.generate.sampled_drafts import SampledDrafts

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.state import CachedSequence

__all__ = ["SelfDrafts"]


class SelfDrafts(SampledDrafts):
    """A source of drafts by the model without the layers that attend; see :class:`Drafts`.

    The recurrent layers go on from the state that they have in the model, so only the drafted tokens lack attention. Then
    the state is cut back. They read most of the weights and no keys and values. A draft thus costs most of a step after a
    short text, and little of one after a very long text. How many tokens are drafted follows from that cost.

    Args:
        model: a model with recurrent layers.
        vocab_size: how many logits belong to tokens.
        tokens: the longest context.
    """

    def __init__(self, model: CausalLanguageModel, *, vocab_size: int, tokens: int) -> None:
        super().__init__(vocab_size=vocab_size, tokens=tokens)
        self._program = model._program
        self._sequence: CachedSequence | None = None

    def watch(self, sequence: CachedSequence) -> None:
        """Take the sequence of the text."""
        self._sequence = sequence

    def start(self, token_ids: Sequence[int], config: ResolvedConfig) -> None:
        """Begin a text after ``token_ids``; see :meth:`Drafts.start`."""
        self._begin(token_ids, config, 1.0)

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that the layers choose; see :meth:`Drafts.propose`."""
        self._proposal, self._checked = [], 0
        most = min(most, self._most - len(self._ids))
        sequence = self._sequence
        if sequence is None or sequence.slots is None or not self._can_draft or most < 1:
            return []
        storage = sequence.cache.storage
        pages = -(-sequence.length // sequence.page_tokens)
        self._length.draft_cost = self._program.guess_share(pages * storage.page_bytes)
        count = self._length.choose(most, company)
        behind = self._ids[sequence.slots.length :]
        if not count or not 0 < len(behind) <= MOST_DRAFTS:  # after a rewind the model's state comes first
            return []
        sampler = self._sampler.fork()  # its penalties count drafts too
        try:
            with sequence.slots.trial():
                while len(self._proposal) < count:
                    given = np.array(self._proposal[-1:] or behind, np.int32)
                    logits = self._program.guess(sequence.slots, storage, given)
                    position = len(self._ids) + len(self._proposal)
                    self._proposal.append(sampler.sample(logits[0, : self._vocab_size], position))
                    sampler.accept(self._proposal[-1])
        except (NonFiniteError, CacheFullError):  # the text goes on without drafts
            self._can_draft = False
        return self._proposal

    def close(self) -> None:
        """Let the sequence go; see :meth:`Drafts.close`."""
        self._sequence = None
