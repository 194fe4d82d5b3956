"""How well a model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.argument_checks import check_callable, check_integer, check_provides
from lattice_inference.errors import NonFiniteError
from lattice_inference.generate.prompt_tokens import check_vocabulary, prompt_ids
from lattice_inference.generate.windows import check_windows, log_probabilities, predictions, windows_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["Perplexity", "evaluated_ids", "perplexity"]


@dataclass(frozen=True)
class Perplexity:
    """How well a text was predicted.

    Attributes:
        perplexity: ``exp(nll)``.
        tokens: how many were predicted: all but the first.
        nll: the mean negative log-likelihood of a token, in nats.
        token_nlls: (tokens,) float64, each token's.
    """

    perplexity: float
    tokens: int
    nll: float
    token_nlls: npt.NDArray[np.float64]


def perplexity(
    model: CausalLanguageModel,
    text: str | Sequence[int],
    *,
    window: int = 512,
    stride: int = 256,
    max_tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int], object] | None = None,
    adapter: str | None = None,
) -> Perplexity:
    """Return the perplexity of ``text``.

    The text is seen through windows of ``window`` tokens, each begun ``stride`` tokens after the one before and run anew;
    of each, the tokens that no window before has predicted count. So every token but the first counts once, and all but the
    first window's have at least ``window - stride`` tokens before them.

    Args:
        model: made by :func:`load_model`.
        text: a text, or token ids.
        window: tokens that the model sees at once.
        stride: tokens from one window's beginning to the next one's, fewer than ``window``.
        max_tokens: use only so many tokens of the text.
        tokenizer: by default the model's own.
        progress: called with the number of tokens that are new in each window.
        adapter: the name of one of ``model.adapters`` that the text is run with.

    Raises:
        InvalidInputError: fewer than 2 tokens, an id that the model has not, or a window, a stride or a limit out of range.
        NonFiniteError: the model gives a token of the text no probability, or computed NaN.
    """
    check_callable("progress", progress)
    ids = evaluated_ids(model, text, max_tokens, tokenizer)
    check_windows(len(ids), window, stride, model.context_length)
    nlls = np.empty(len(ids) - 1)
    with model.open_cache(tokens=window) as cache, cache.sequence(adapter=adapter) as sequence:
        for seen in windows_of(len(ids), window, stride):
            for part in predictions(model, sequence, ids, seen):
                rows = log_probabilities(part.logits)
                nlls[part.positions - 1] = -rows[np.arange(len(rows)), part.targets]
            if progress is not None:
                progress(seen.end - seen.scored)
    if not np.isfinite(nlls).all():
        worst = int(np.flatnonzero(~np.isfinite(nlls))[0])
        raise NonFiniteError(f"the negative log-likelihood of token {worst + 1:,} is {nlls[worst]}")
    mean = math.fsum(nlls) / len(nlls)
    return Perplexity(math.exp(mean) if mean < 700 else math.inf, len(nlls), mean, nlls)


def evaluated_ids(
    model: CausalLanguageModel, text: str | Sequence[int], max_tokens: int | None, tokenizer: Tokenizer | None
) -> list[int]:
    """Return the tokens that an evaluation uses of ``text``.

    Raises:
        InvalidInputError: it is neither a text nor token ids, holds an id that the model has not, or ``max_tokens`` is less
            than 2.
    """
    from lattice_inference.generate.config_checks import MOST_TOKENS

    check_provides("model", model, "open_cache", "a language model, as load_model() gives it")
    if tokenizer is not None:
        check_provides("tokenizer", tokenizer, "token_of", "a tokenizer, as load_tokenizer() gives it, or None")
    check_integer("max_tokens", max_tokens, 2, MOST_TOKENS)
    reader = (model.tokenizer if tokenizer is None else tokenizer) if isinstance(text, str) else None
    ids = prompt_ids(reader, text, begins=True, what="the text")[:max_tokens]
    check_vocabulary(ids, model.vocab_size, "the text")
    return ids
