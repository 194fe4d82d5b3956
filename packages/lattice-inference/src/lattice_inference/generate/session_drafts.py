"""The sources of drafts that a session opens for its generations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_inference.errors import UnsupportedError
from lattice_inference.generate.speculation import Speculation

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.generate.config import ResolvedConfig
    from lattice_inference.generate.draft_sources import Speculate
    from lattice_inference.generate.drafts import Drafts
    from lattice_inference.state import CachedSequence
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["SessionDrafts", "watch_rows"]


class SessionDrafts:
    """The source of drafts of a session's context, for one thread at a time.

    It is kept from one generation to the next. What a source holds of an earlier text, it does not run or read again.

    Args:
        model: the model whose texts they are.
        tokenizer: the session's, or None.
        vocab_size: how many of the model's logits belong to tokens.
    """

    def __init__(self, model: CausalLanguageModel, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._kept: Drafts | None = None
        self._kept_for: Speculate | None = None

    def check(self, config: ResolvedConfig) -> None:
        """Check that the model can do what ``config`` asks for.

        It raises the errors of :meth:`begin`.
        """
        if config.speculate == "mtp" and not self._model.mtp_layers:
            raise UnsupportedError(
                f"speculate='mtp' needs heads for further tokens (MTP), and {self._model.directory} has none, or was loaded "
                "without mtp=True: use 'ngram' or a draft model"
            )
        if config.speculate == "self" and not self._model._program.guesses:
            raise UnsupportedError(
                f"speculate='self' drafts with a model's linear layers, and {self._model.directory} has none that "
                "run alone here: use 'ngram' or a draft model"
            )
        if config.speculate is not None and not isinstance(config.speculate, str):
            from lattice_inference.generate.model_drafts import check_draft_open, check_same_vocabulary

            check_draft_open(config.speculate)
            check_same_vocabulary(self._model, self._tokenizer, config.speculate)

    def begin(self, config: ResolvedConfig, context: Sequence[int], tokens: int) -> Speculation | None:
        """Return the speculation of a generation; None if ``config`` asks for none.

        Args:
            config: how to generate.
            context: the tokens so far.
            tokens: the longest context.

        Raises:
            UnsupportedError: the model lacks the heads or layers for it.
            InvalidInputError: the draft model has another vocabulary.
        """
        if config.speculate is None:
            return None
        if self._kept is None or self._kept_for != config.speculate:
            self.close()
            self._kept, self._kept_for = self._open(config, tokens), config.speculate
        return Speculation(self._kept, context, config)

    def watch(self, sequence: CachedSequence) -> None:
        """Tell a source that reads the model's rows whose they are, before they are made."""
        watch_rows(self._kept, sequence)

    def begin_one(
        self, config: ResolvedConfig, context: Sequence[int], tokens: int, sequence: CachedSequence
    ) -> Speculation | None:
        """Return the speculation of one of several generations at a time.

        It has another source, which the caller closes. See :meth:`begin`.
        """
        if config.speculate is None:
            return None
        source = self._open(config, tokens)
        watch_rows(source, sequence)
        return Speculation(source, context, config)

    def close(self) -> None:
        """Free what is kept; closing twice is harmless."""
        if self._kept is not None:
            self._kept.close()
        self._kept = self._kept_for = None

    def _open(self, config: ResolvedConfig, tokens: int) -> Drafts:
        self.check(config)
        draft = config.speculate
        if draft == "mtp":
            from lattice_inference.generate.mtp_drafts import MtpDrafts

            return MtpDrafts(self._model, vocab_size=self._vocab_size, tokens=tokens)
        if draft == "self":
            from lattice_inference.generate.self_drafts import SelfDrafts

            return SelfDrafts(self._model, vocab_size=self._vocab_size, tokens=tokens)
        if draft is None or isinstance(draft, str):  # check() refuses the other names
            from lattice_inference.generate.ngram_drafts import NgramDrafts

            return NgramDrafts()
        from lattice_inference.generate.model_drafts import ModelDrafts

        step_cost = _weight_bytes(draft) / _weight_bytes(self._model)
        return ModelDrafts(draft, vocab_size=self._vocab_size, tokens=tokens, step_cost=step_cost)


def watch_rows(source: Drafts | None, sequence: CachedSequence) -> None:
    """Tell a source that reads the model's rows or state whose they are, before they are made."""
    from lattice_inference.generate.mtp_drafts import MtpDrafts
    from lattice_inference.generate.self_drafts import SelfDrafts

    if isinstance(source, (MtpDrafts, SelfDrafts)):
        source.watch(sequence)


def _weight_bytes(model: CausalLanguageModel) -> int:
    return sum(weight.nbytes for weight in model.weight_sizes)
