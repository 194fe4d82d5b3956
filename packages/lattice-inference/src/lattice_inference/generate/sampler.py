"""Samples one token from a row of logits.

Every step is a function of the logits and of counters, never of hidden state. The draw at a position depends on the seed
and the position alone. So a fork, a rewind and a batch draw the same tokens as one session does.

This is the readable form. Generation uses :mod:`~lattice_inference.generate.row_sampler`, which gives the same tokens and
log-probabilities for the same logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate.exact_weights import LOG2_E, Weights, natural_log, weight_bits, weights_of
from lattice_inference.generate.truncation import keep_min_p, keep_top_k, keep_top_p, keep_typical

__all__ = [
    "LEAST_TEMPERATURE",
    "Sampler",
    "SamplingConfig",
    "TokenLogprobs",
    "argmax",
    "check_below",
    "draw",
    "no_token",
    "token_logprobs",
    "uniform",
]

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]
Adjusted = npt.NDArray[np.float32] | npt.NDArray[np.float64]

LEAST_TEMPERATURE = 2.0**-126
"""The smallest normal float32; a lower temperature counts as 0, which is greedy."""


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is chosen; every field is set and checked.

    See :class:`GenerateConfig` for the fields.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenLogprobs:
    """How probable a token was, by the model's unchanged logits.

    Attributes:
        token_id: the token.
        logprob: the natural logarithm of its probability.
        top: the most probable tokens and their log-probabilities, most probable first; of equal ones the lower id first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses the tokens of one generation; for one thread at a time.

    Args:
        config: how a token is chosen.
        seed: the seed of the random draws, 0 to 2**64 - 1.
        prompt_ids: the tokens of the prompt, to which the repetition penalty applies too.
        vocab_size: the length of a row of logits.

    Raises:
        InvalidInputError: a token id in ``prompt_ids`` or in the bias is not below ``vocab_size``.
    """

    def __init__(self, config: SamplingConfig, seed: int, prompt_ids: Iterable[int], vocab_size: int) -> None:
        self._config = config
        self._seed = seed
        self._penalizes = config.repetition_penalty != 1 or bool(config.presence_penalty or config.frequency_penalty)
        self._bias_ids = np.fromiter(config.logit_bias, np.intp, len(config.logit_bias))
        self._bias = np.fromiter(config.logit_bias.values(), np.float32, len(config.logit_bias))
        check_below(self._bias_ids, vocab_size, "logit_bias")
        if self._penalizes:
            prompt = np.unique(np.fromiter(prompt_ids, np.intp))
            check_below(prompt, vocab_size, "the prompt")
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[prompt] = True
            self._generated = np.zeros(vocab_size, np.int32)

    def sample(self, logits: Floats, position: int, allowed: Bits | None = None) -> int:
        """Return the next token.

        Args:
            logits: (vocabulary,) float32, from the model; they are not changed.
            position: the index of the new token in its sequence, counted from the start of the prompt.
            allowed: a bit per token: bit i % 32 of word i // 32 says whether token i may be chosen. It is applied before all
                that changes logits.

        Raises:
            NonFiniteError: a logit is NaN or +inf, or no token is left.
        """
        if allowed is not None:
            logits = _masked(logits, allowed)
        if self._config.temperature < LEAST_TEMPERATURE:
            return argmax(self._adjust(logits))
        ids, weights = self._weights(logits)
        return int(ids[_draw_weight(weights, uniform(self._seed, position))])

    def distribution(
        self, logits: Floats, allowed: Bits | None = None
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Return the tokens that :meth:`sample` may choose, ascending, and their probabilities."""
        if allowed is not None:
            logits = _masked(logits, allowed)
        if self._config.temperature < LEAST_TEMPERATURE:
            return np.array([argmax(self._adjust(logits))]), np.ones(1)
        ids, weights = self._weights(logits)
        return ids, weights / weights.sum()

    def _weights(self, logits: Floats) -> tuple[npt.NDArray[np.intp], Weights]:
        """Return the remaining tokens and their weights."""
        config, bits = self._config, weight_bits(logits.size)
        adjusted = self._adjust(logits)
        greatest = adjusted[argmax(adjusted)]  # raises if no token can be drawn
        surplus = _surplus(adjusted, float(greatest), LOG2_E / config.temperature)
        ids = keep_top_k(surplus, config.top_k)
        ids = ids[surplus[ids] > -np.inf]  # a forbidden token has no finite surprise to compare
        kept = keep_typical(surplus[ids], config.typical_p, bits)
        if kept.size < ids.size:  # the most probable token may be gone
            ids = ids[kept]
            surplus -= surplus[ids].max()
        ids = ids[keep_top_p(surplus[ids], config.top_p, bits)]
        ids = ids[keep_min_p(surplus[ids], config.min_p, bits)]
        return ids, weights_of(surplus[ids], bits)

    def accept(self, token_id: int) -> None:
        """Count ``token_id`` as generated."""
        if self._penalizes:
            self._seen[token_id] = True
            self._generated[token_id] += 1

    def _adjust(self, logits: Floats) -> Adjusted:
        if not self._penalizes and not self._bias_ids.size:
            return logits
        try:
            with np.errstate(over="raise"):
                return self._adjusted(logits.copy())
        except FloatingPointError:  # an extreme penalty or bias overflows float32; float64 keeps the tokens' order
            return self._adjusted(logits.astype(np.float64))

    def _adjusted(self, adjusted: Adjusted) -> Adjusted:
        """Apply bias and penalties in place, in the array's dtype."""
        config = self._config
        number: Any = adjusted.dtype.type
        adjusted[self._bias_ids] += self._bias
        if config.repetition_penalty != 1:
            seen = np.flatnonzero(self._seen)
            values = adjusted[seen]
            penalty = number(config.repetition_penalty)
            is_positive = values > 0
            np.divide(values, penalty, out=values, where=is_positive)
            np.multiply(values, penalty, out=values, where=~is_positive)
            adjusted[seen] = values
        if config.presence_penalty or config.frequency_penalty:
            generated = np.flatnonzero(self._generated)
            counts = self._generated[generated].astype(number)
            adjusted[generated] -= number(config.presence_penalty) + number(config.frequency_penalty) * counts
        return adjusted


def _masked(logits: Floats, allowed: Bits) -> Floats:
    """Return the logits with -inf for each token whose bit is not set."""
    argmax(logits)  # finds a NaN that the mask would hide
    bits = np.unpackbits(allowed.view(np.uint8), count=logits.size, bitorder="little")
    return np.where(bits.view(np.bool_), logits, np.float32(-np.inf))


def argmax(logits: Adjusted) -> int:
    """Return the index of the largest logit; of equal ones the first.

    Raises:
        NonFiniteError: a logit is NaN or +inf, or all are -inf.
    """
    index = int(np.argmax(logits))  # NumPy treats the first NaN as the largest
    if not np.isfinite(logits[index]):
        raise no_token(index, float(logits[index]))
    return index


def no_token(index: int, value: float) -> NonFiniteError:
    """Return the error for logits whose greatest, at ``index``, is not finite."""
    return NonFiniteError(f"no token can be chosen: the greatest logit, of token {index:,}, is {value}")


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """Return a random number in [0, 1) that depends on seed, position and stream only.

    It is made of the upper 53 bits of the first word of Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as
    easy as 1, 2, 3"), and uniform. The key is (seed, stream) and the counter is ``position`` + 1. Tokens have stream 0.
    """
    word = np.random.Philox(
        key=seed | stream << 64, counter=position
    ).random_raw()  # NumPy counts up before it computes
    return float((int(word) >> 11) * 2.0**-53)


def token_logprobs(logits: Floats, token_id: int, top: int) -> TokenLogprobs:
    """Return the log-probability of ``token_id`` and of the ``top`` most probable tokens."""
    greatest, bits = float(logits.max()), weight_bits(logits.size)
    surplus = _surplus(logits, greatest, LOG2_E)
    total = natural_log(int(weights_of(surplus, bits).sum()) * 2.0**-bits)
    best = keep_top_k(surplus, top) if top else np.empty(0, np.intp)
    best = best[np.argsort(-surplus[best], kind="stable")]
    listed = tuple((int(index), float(logits[index]) - greatest - total) for index in best)
    return TokenLogprobs(token_id, float(logits[token_id]) - greatest - total, listed)


def _surplus(logits: Adjusted, greatest: float, scale: float) -> npt.NDArray[np.float64]:
    """Return each logit minus the greatest, times ``scale``: zeros and negative numbers."""
    return np.asarray((logits.astype(np.float64) - greatest) * scale)


def _draw_weight(weights: Weights, fraction: float) -> int:
    """Return an index by inverting the cumulative distribution, in the order of token ids.

    ``fraction`` is a multiple of 2**-53 below 1. All is in whole numbers, so a token of weight 0 is never chosen.
    """
    cumulative = np.cumsum(weights)
    drawn = int(fraction * 2.0**53) * int(cumulative[-1]) >> 53
    return int(np.searchsorted(cumulative, drawn, side="right"))


def draw(weights: npt.NDArray[np.float64], fraction: float) -> int:
    """Return an index by inverting a cumulative distribution of floats."""
    cumulative = np.cumsum(weights)
    # ``fraction`` is at most 1 - 2**-53, so the rounded product is below the total. With side="right" the index is that of
    # the first sum above the product, so a token that adds nothing to the sum is never chosen.
    return int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))


def check_below(ids: npt.NDArray[np.intp], vocab_size: int, where: str) -> None:
    """Raise InvalidInputError unless all ``ids`` are tokens of the vocabulary."""
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise InvalidInputError(
            f"{where} holds the token id {wrong:,}; the model's ids go from 0 to {vocab_size - 1:,}"
        )
