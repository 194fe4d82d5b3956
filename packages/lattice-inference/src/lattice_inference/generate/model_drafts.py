"""Guesses of a second, smaller language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate.rejection import Candidates, drafted_token
from lattice_inference.generate.sampled_drafts import SampledDrafts

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.row_sampler import RowSampler
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["ModelDrafts", "check_draft_open", "check_same_vocabulary"]

MOST_AT_ONCE = 512
"""The most tokens of a prompt that the draft model runs before a step, so that a cancellation does not wait for it."""


class ModelDrafts(SampledDrafts):
    """A source of drafts that a smaller model draws; see :class:`Drafts`.

    The draft model samples as the generation does, with the same penalties and, unless drafts are verified by rejection,
    with the same draw of each position. So where the two models agree on the probabilities they choose the same token.

    Args:
        model: the draft model.
        vocab_size: how many logits belong to tokens.
        tokens: the longest context; the draft model's own may be shorter, and nothing is drafted beyond it.
        step_cost: the time of a step of the draft model, as a share of one of the model.

    Attributes:
        candidates: for each token of the last proposal what it was drawn from, where drafts are verified by rejection.
    """

    def __init__(self, model: CausalLanguageModel, *, vocab_size: int, tokens: int, step_cost: float) -> None:
        super().__init__(vocab_size=vocab_size, tokens=min(tokens, model.context_length))
        self._model = model
        self._step_cost = step_cost
        self._cache = model.open_cache(tokens=self._most)
        self._sequence = self._cache.sequence()
        self._agreed = 0  # tokens of the sequence that are known to be those of the text
        self._can_draft = False

    def start(self, token_ids: Sequence[int], config: ResolvedConfig) -> None:
        """Begin a text after ``token_ids``; see :meth:`Drafts.start`."""
        self._config = config
        self._agreed = 0
        self._begin(token_ids, config, self._step_cost)
        # ids that belong to no token of this model end its drafts, as a context beyond its own does
        self._can_draft = max(self._ids, default=0) < self._model.vocab_size

    def propose(self, most: int, company: int) -> list[int]:
        """Return the tokens that the model chooses; see :meth:`Drafts.propose`."""
        self._proposal, self._checked, self.candidates = [], 0, ()
        is_exact = self._config.verify == "exact"
        most = min(most, self._most - len(self._ids))
        count = self._length.choose(most, company if is_exact else 1) if self._can_draft and most > 0 else 0
        if not count:
            return []
        logits = self._caught_up()
        sampler = self._sampler.fork()  # its penalties count drafts too
        while logits is not None and len(self._proposal) < count:
            try:
                self._proposal.append(self._chosen(sampler, logits[0, : self._vocab_size], is_exact))
            except NonFiniteError:
                break
            sampler.accept(self._proposal[-1])
            if len(self._proposal) < count:
                logits = self._run(self._proposal[-1:])
        return self._proposal

    def close(self) -> None:
        """Free the draft model's cache; see :meth:`Drafts.close`."""
        self._cache.close()

    def _caught_up(self) -> npt.NDArray[np.float32] | None:
        """Run the text's tokens that the sequence lacks.

        Returns:
            The logits after the last one, or None if some are left for the next time.
        """
        held = self._sequence.token_ids[self._agreed :]
        for mine, wanted in zip(held, self._ids[self._agreed : -1], strict=False):
            if mine != wanted:
                break
            self._agreed += 1
        self._sequence.rewind(self._agreed)
        end = min(len(self._ids), self._agreed + MOST_AT_ONCE)
        logits = self._run(self._ids[self._agreed : end])
        self._agreed = self._sequence.length
        return logits if end == len(self._ids) else None

    def _run(self, token_ids: list[int]) -> npt.NDArray[np.float32] | None:
        from lattice_inference.generate.causal_language_model import Extension

        check_draft_open(self._model)
        try:
            return self._model.forward([Extension(self._sequence, token_ids)])
        except NonFiniteError:  # the text goes on without drafts
            self._can_draft = False
            return None

    def _chosen(self, sampler: RowSampler, logits: npt.NDArray[np.float32], is_exact: bool) -> int:
        position = len(self._ids) + len(self._proposal)
        if is_exact:
            return sampler.sample(logits, position)
        candidates = Candidates(*sampler.distribution(logits))
        self.candidates = (*self.candidates, candidates)
        return drafted_token(candidates, self._config.seed, position)


_COMPARED: WeakKeyDictionary[CausalLanguageModel, WeakSet[Tokenizer]] = WeakKeyDictionary()
"""The tokenizers whose vocabulary a draft model is known to have."""


def check_draft_open(draft: CausalLanguageModel) -> None:
    """Raise InvalidInputError, which names the draft model, if it is closed."""
    try:
        draft.weight_sizes  # noqa: B018
    except InvalidInputError as error:
        raise InvalidInputError(f"the draft model {draft.directory} is closed: load it again") from error


def check_same_vocabulary(model: CausalLanguageModel, tokenizer: Tokenizer | None, draft: CausalLanguageModel) -> None:
    """Check that a draft model's ids mean what the model's do.

    Further logits that belong to no token do not count. Without tokenizers only the numbers of logits are compared.

    Raises:
        InvalidInputError: they differ.
    """
    if draft is model:
        return
    if tokenizer is None or not draft.has_tokenizer:
        if draft.vocab_size != model.vocab_size:
            raise InvalidInputError(
                f"the draft model {draft.directory} has {draft.vocab_size:,} tokens and {model.directory} has "
                f"{model.vocab_size:,}: a draft model needs the same vocabulary"
            )
        return
    compared = _COMPARED.setdefault(draft, WeakSet())
    if tokenizer in compared:
        return
    for token_id in range(max(model.vocab_size, draft.vocab_size)):
        one, other = tokenizer.id_to_token(token_id), draft.tokenizer.id_to_token(token_id)
        if one != other or (one is not None and token_id >= min(model.vocab_size, draft.vocab_size)):
            raise InvalidInputError(
                f"token {token_id:,} is {other!r} of the draft model {draft.directory} and {one!r} of {model.directory}: a "
                "draft model needs the same vocabulary"
            )
    compared.add(tokenizer)
