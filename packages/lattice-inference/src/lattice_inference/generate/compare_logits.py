"""Compares the predictions of two models, such as two precisions of one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.argument_checks import check_callable, check_provides
from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate.perplexity import evaluated_ids
from lattice_inference.generate.windows import check_windows, log_probabilities, predictions, windows_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["LogitComparison", "compare_logits"]


@dataclass(frozen=True)
class LogitComparison:
    """Two models' predictions of the same text, position by position.

    Attributes:
        tokens: the number of tokens that both models predicted.
        reference_perplexity: the perplexity of the first model.
        perplexity: the perplexity of the second model.
        agreement: the fraction of positions where both have the same most probable token.
        mean_kl: the mean Kullback-Leibler divergence of the second's distribution from the first's, in nats.
        max_kl: the largest divergence, in nats.
        kl: (tokens,) float64, the divergence at each position.
        agrees: (tokens,) bool, whether both have the same most probable token.
    """

    tokens: int
    reference_perplexity: float
    perplexity: float
    agreement: float
    mean_kl: float
    max_kl: float
    kl: npt.NDArray[np.float64]
    agrees: npt.NDArray[np.bool_]


def compare_logits(
    reference: CausalLanguageModel,
    model: CausalLanguageModel,
    text: str | Sequence[int],
    *,
    window: int = 512,
    stride: int = 256,
    max_tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Callable[[int], object] | None = None,
    adapter: str | None = None,
) -> LogitComparison:
    """Compare two models' predictions of each token of ``text``.

    The text is split into windows as by :func:`perplexity`.

    Args:
        reference: the model that the other is measured against.
        model: the model to measure.
        text: a text, or token ids; the reference's tokenizer tokenizes it for both.
        window: the number of tokens in a window.
        stride: the number of tokens from the start of a window to the start of the next.
        max_tokens: the most tokens of the text to use.
        tokenizer: by default the reference's own.
        progress: called with the number of tokens that are new in each window.
        adapter: the name of one of ``model.adapters`` for ``model``; the reference runs without an adapter.

    Raises:
        InvalidInputError: the vocabularies differ in size, or :func:`perplexity` refuses the arguments.
        NonFiniteError: a model computed NaN or infinity.
    """
    check_callable("progress", progress)
    for name, one_model in (("reference", reference), ("model", model)):
        check_provides(name, one_model, "open_cache", "a language model, as load_model() gives it")
    if reference.vocab_size != model.vocab_size:
        raise InvalidInputError(
            f"the models have {reference.vocab_size:,} and {model.vocab_size:,} tokens; only equal vocabularies compare"
        )
    ids = evaluated_ids(reference, text, max_tokens, tokenizer)
    check_windows(len(ids), window, stride, min(reference.context_length, model.context_length))
    count = len(ids) - 1
    nlls = np.empty((2, count))
    kl = np.empty(count)
    agrees = np.empty(count, np.bool_)
    with (
        reference.open_cache(tokens=window) as first_cache,
        first_cache.sequence() as first_sequence,
        model.open_cache(tokens=window) as second_cache,
        second_cache.sequence(adapter=adapter) as second_sequence,
    ):
        for seen in windows_of(len(ids), window, stride):
            pairs = zip(
                predictions(reference, first_sequence, ids, seen),
                predictions(model, second_sequence, ids, seen),
                strict=True,
            )
            for one, other in pairs:
                rows, index = np.arange(len(one.targets)), one.positions - 1
                p, q = log_probabilities(one.logits), log_probabilities(other.logits)
                nlls[0, index], nlls[1, index] = -p[rows, one.targets], -q[rows, one.targets]
                # rounding may put a divergence of 0 slightly below 0
                kl[index] = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0)
                agrees[index] = one.logits.argmax(axis=1) == other.logits.argmax(axis=1)
            if progress is not None:
                progress(seen.end - seen.scored)
    if not (np.isfinite(nlls).all() and np.isfinite(kl).all()):
        raise NonFiniteError("a model gives a token no probability: the models cannot be compared on this text")
    return LogitComparison(
        tokens=count,
        reference_perplexity=_exp(nlls[0].mean()),
        perplexity=_exp(nlls[1].mean()),
        agreement=float(agrees.mean()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        kl=kl,
        agrees=agrees,
    )


def _exp(mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf
