"""Guesses of a model's own layer for further tokens (MTP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.errors import CacheFullError, NonFiniteError
from lattice_inference.generate.draft_length import DraftLength
from lattice_inference.generate.sampler import Sampler
from lattice_inference.state.hidden_rows import HiddenRows

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.rejection import Candidates
    from lattice_inference.state import CachedSequence

__all__ = ["MtpDrafts"]

MOST_AT_ONCE = 512
"""The most rows of a prompt that the layer reads before a step, so that a cancellation does not wait for it."""


class MtpDrafts:
    """A source of drafts by the layer that a model has for further tokens; see :class:`Drafts`.

    The layer reads the model's last row of a token together with the next token, and predicts the token after that. To
    predict further ones it reads its own row. Its keys and values lie in pages of the sequence, at the row's position.
    Tokens that were not run here, because a remembered prefix holds them, count as rows of zeros.

    Args:
        model: the model, loaded with ``mtp=True``.
        vocab_size: how many logits belong to tokens.
        tokens: the longest context.

    Attributes:
        candidates: always empty, as these drafts are not verified by rejection.
    """

    def __init__(self, model: CausalLanguageModel, *, vocab_size: int, tokens: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._most = tokens
        self._sequence: CachedSequence | None = None
        self._rows = HiddenRows()
        self._ids: list[int] = []
        self._read = 0  # positions whose keys and values the layer has written, for the tokens of the text
        self._proposal: list[int] = []
        self._checked = 0  # tokens of the proposal
        self._can_draft = True
        self.candidates: Sequence[Candidates] = ()

    def watch(self, sequence: CachedSequence) -> None:
        """Take the sequence of the text, before any of its tokens is run."""
        if sequence is not self._sequence:
            self._sequence, self._read, self._rows = sequence, 0, HiddenRows()
            sequence.hidden = self._rows

    def start(self, token_ids: Sequence[int], config: ResolvedConfig) -> None:
        """Begin a text after ``token_ids``; see :meth:`Drafts.start`."""
        same = 0
        for old, new in zip(self._ids, token_ids, strict=False):
            if old != new:
                break
            same += 1
        self._read = max(0, min(self._read, same - 1))  # a position also depends on the token after it
        self._ids = list(token_ids)
        self._proposal, self._checked = [], 0
        self._can_draft = True
        self._length = DraftLength(self._model.mtp_share)
        self._config = config
        seen = {token_id for token_id in self._ids if token_id < self._vocab_size}
        self._sampler = Sampler(config.sampling, config.seed, seen, self._vocab_size)

    def accept(self, token_id: int) -> None:
        """Append the next token of the text; see :meth:`Drafts.accept`."""
        if self._checked < len(self._proposal):
            is_right = self._proposal[self._checked] == token_id
            self._length.note(is_right)
            self._checked = self._checked + 1 if is_right else len(self._proposal)
        self._ids.append(token_id)
        self._sampler.accept(token_id)

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that the layer chooses; see :meth:`Drafts.propose`."""
        self._proposal, self._checked = [], 0
        most = min(most, self._most - len(self._ids))
        count = self._length.choose(most, company) if self._can_draft and most > 0 else 0
        last = len(self._ids) - 1  # the position of the token that is still to be run
        if self._sequence is None or self._rows.end < last or not (count or last - self._read > MOST_AT_ONCE):
            return []
        try:
            end = min(last, self._read + MOST_AT_ONCE)
            ids = np.array(self._ids[self._read + 1 : end + 1], np.int32)
            logits, hidden = self._model.predict(self._sequence, self._read, ids, self._rows.between(self._read, end))
            self._read = end
            self._rows.drop_before(end)
            while end == last and len(self._proposal) < count:
                position = len(self._ids) + len(self._proposal)
                self._proposal.append(self._sampler.sample(logits[0, : self._vocab_size], position))
                if len(self._proposal) < count:
                    newest = np.array(self._proposal[-1:], np.int32)
                    logits, hidden = self._model.predict(self._sequence, position - 1, newest, hidden)
        except (NonFiniteError, CacheFullError):  # the text goes on without drafts
            self._can_draft = False
        return self._proposal

    def close(self) -> None:
        """Stop to collect rows; see :meth:`Drafts.close`."""
        if self._sequence is not None and self._sequence.hidden is self._rows:
            self._sequence.hidden = None
        self._sequence = None
