"""Guesses of a model's own layers for further tokens (MTP)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import CacheFullError, NonFiniteError
from lattice_inference.generate.sampled_drafts import SampledDrafts
from lattice_inference.state.hidden_rows import HiddenRows

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.row_sampler import RowSampler
    from lattice_inference.state import CachedSequence

__all__ = ["MtpDrafts"]

MOST_AT_ONCE = 512
"""The most rows of a prompt that a layer reads before a step, so that a cancellation does not wait for it."""


class MtpDrafts(SampledDrafts):
    """A source of drafts by the layers that a model has for further tokens; see :class:`Drafts`.

    The first layer reads the model's last row of a token together with the next token, and predicts the token after that.
    Each further layer reads the rows of the layer before it and predicts one token more. A model with one such layer feeds
    the layer's own row back to predict further ones. Keys and values of a layer lie in pages of the sequence, at the row's
    position. Tokens that were not run here, because a remembered prefix holds them, count as rows of zeros.

    Args:
        model: the model, loaded with ``mtp=True``.
        vocab_size: how many logits belong to tokens.
        tokens: the longest context.
    """

    def __init__(self, model: CausalLanguageModel, *, vocab_size: int, tokens: int) -> None:
        super().__init__(vocab_size=vocab_size, tokens=tokens)
        self._model = model
        self._sequence: CachedSequence | None = None
        self._rows: list[HiddenRows] = []  # what each layer reads
        self._read: list[int] = []  # the rows that each layer has read together with tokens of the text
        self._forget_rows()
        self._is_kept = False

    def watch(self, sequence: CachedSequence) -> None:
        """Take the sequence of the text, before any of its tokens is run."""
        if sequence is not self._sequence:
            self._sequence = sequence
            self._forget_rows()
            sequence.hidden = self._rows[0]

    def start(self, token_ids: Sequence[int], config: ResolvedConfig) -> None:
        """Begin a text after ``token_ids``; see :meth:`Drafts.start`."""
        same = 0
        for old, new in zip(self._ids, token_ids, strict=False):
            if old != new:
                break
            same += 1
        # a layer's row also depends on the tokens after it: one, and one more for each layer before
        self._read = [max(0, min(read, same - 1 - layer)) for layer, read in enumerate(self._read)]
        self._is_kept = False
        self._begin(token_ids, config, self._model.mtp_share)

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that the layers choose; see :meth:`Drafts.propose`."""
        self._proposal, self._checked = [], 0
        layers = len(self._rows)
        most = min(most, self._most - len(self._ids))
        if layers > 1:
            most = min(most, layers)
        count = self._length.choose(most, company) if self._can_draft and most > 0 else 0
        last = len(self._ids) - 1  # the position of the token that is still to be run
        lag = last - self._read[0]
        if self._sequence is None or self._rows[0].end < last or not (count or lag > MOST_AT_ONCE):
            return []
        try:
            if lag > MOST_AT_ONCE:
                self._read_on(self._read[0] + MOST_AT_ONCE)
            elif layers == 1:
                self._feed_back(count)
            else:
                self._chain(count)
        except (NonFiniteError, CacheFullError):  # the text goes on without drafts
            self._can_draft = False
        return self._proposal

    def close(self) -> None:
        """Stop to collect rows; see :meth:`Drafts.close`."""
        if self._sequence is not None and self._sequence.hidden is self._rows[0]:
            self._sequence.hidden = None
        self._sequence = None

    def _forget_rows(self) -> None:
        layers = self._model.mtp_layers
        self._rows = [HiddenRows() for _ in range(layers)]
        self._read = [0] * layers

    def _read_on(self, end: int) -> None:
        """Let the layers read a part of the prompt, up to position ``end``."""
        for layer in range(len(self._rows)):
            until = min(end, len(self._ids) - 1 - layer)
            if until > self._read[layer]:
                self._run(layer, until)

    def _feed_back(self, count: int) -> None:
        """Let the one layer choose ``count`` tokens, from the model's row and then its own rows."""
        assert self._sequence is not None
        sampler = self._sampler.fork()  # its penalties count drafts too
        logits, hidden = self._run(0, len(self._ids) - 1)
        self._keep_prompt()
        while len(self._proposal) < count:
            self._choose(sampler, logits)
            if len(self._proposal) < count:
                position = len(self._ids) + len(self._proposal) - 2
                newest = np.array(self._proposal[-1:], np.int32)
                logits, hidden = self._model.predict(self._sequence, position, newest, hidden)

    def _chain(self, count: int) -> None:
        """Let each of the first ``count`` layers choose a token."""
        sampler = self._sampler.fork()
        for layer in range(count):
            logits, _ = self._run(layer, len(self._ids) - 1)
            self._choose(sampler, logits)
        self._keep_prompt()

    def _run(self, layer: int, end: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Let a layer read its further rows up to ``end``; return its logits and hidden rows.

        Rows that it read with drafts are among them.
        """
        assert self._sequence is not None
        first = min(self._read[layer], end - 1)
        ids = [*self._ids[first + 1 + layer : end + 1 + layer], *self._proposal][: end - first]
        rows = self._rows[layer].between(first, end)
        logits, hidden = self._model.predict(self._sequence, first, np.array(ids, np.int32), rows, layer=layer)
        if layer + 1 < len(self._rows):
            self._rows[layer + 1].put(first, hidden)
        self._read[layer] = max(0, min(end, len(self._ids) - 1 - layer))
        self._rows[layer].drop_before(self._read[layer] - 1)
        return logits, hidden

    def _choose(self, sampler: RowSampler, logits: npt.NDArray[np.float32]) -> None:
        position = len(self._ids) + len(self._proposal)
        self._proposal.append(sampler.sample(logits[0, : self._vocab_size], position))
        sampler.accept(self._proposal[-1])

    def _keep_prompt(self) -> None:
        """Remember the prompt's pages and states, now that the layers have written to its pages."""
        if not self._is_kept and self._sequence is not None and self._sequence.slots is not None:
            self._sequence.cache.remember(self._sequence, whole_pages=True)
        self._is_kept = True
