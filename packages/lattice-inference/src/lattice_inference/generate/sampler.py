"""Samples one token from a row of logits.

Every step is a function of the logits and of counters, never of hidden state. The draw at a position depends on the seed
and the position alone. So a fork, a rewind and a batch draw the same tokens as one session does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate.truncation import keep_min_p, keep_top_k, keep_top_p, keep_typical

__all__ = [
    "LEAST_TEMPERATURE",
    "Sampler",
    "SamplingConfig",
    "TokenLogprobs",
    "argmax",
    "draw",
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
        _check_below(self._bias_ids, vocab_size, "logit_bias")
        if self._penalizes:
            prompt = np.unique(np.fromiter(prompt_ids, np.intp))
            _check_below(prompt, vocab_size, "the prompt")
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
        return int(ids[draw(weights, uniform(self._seed, position))])

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

    def _weights(self, logits: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """Return the remaining tokens and their unnormalised probabilities."""
        config = self._config
        adjusted = self._adjust(logits)
        argmax(adjusted)  # raises if no token can be drawn
        ids = keep_top_k(adjusted, config.top_k)
        ids = ids[adjusted[ids] > -np.inf]  # a forbidden token has no finite surprise to compare
        scaled = adjusted[ids].astype(np.float64)
        scaled -= scaled.max()
        scaled /= config.temperature
        for keep, limit in ((keep_typical, config.typical_p), (keep_top_p, config.top_p), (keep_min_p, config.min_p)):
            kept = keep(scaled, limit)
            if kept.size < ids.size:
                ids, scaled = ids[kept], scaled[kept]
        return ids, np.exp(scaled - scaled.max())

    def accept(self, token_id: int) -> None:
        """Count ``token_id`` as generated."""
        if self._penalizes:
            self._seen[token_id] = True
            self._generated[token_id] += 1

    def fork(self) -> Sampler:
        """Return another sampler of the same text, which counts on its own."""
        other = copy(self)
        if self._penalizes:
            other._seen, other._generated = self._seen.copy(), self._generated.copy()
        return other

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
        raise NonFiniteError(f"no token can be chosen: the greatest logit, of token {index:,}, is {logits[index]}")
    return index


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
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best = keep_top_k(values, top) if top else np.empty(0, np.intp)
    best = best[np.argsort(-values[best], kind="stable")]
    listed = tuple((int(index), float(values[index])) for index in best)
    return TokenLogprobs(token_id, float(values[token_id]), listed)


def draw(weights: npt.NDArray[np.float64], fraction: float) -> int:
    """Return an index by inverting the cumulative distribution, in the order of token ids."""
    cumulative = np.cumsum(weights)
    # ``fraction`` is at most 1 - 2**-53, so the rounded product is below the total. With side="right" the index is that of
    # the first sum above the product, so a token that adds nothing to the sum is never chosen.
    return int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))


def _check_below(ids: npt.NDArray[np.intp], vocab_size: int, where: str) -> None:
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise InvalidInputError(
            f"{where} holds the token id {wrong:,}; the model's ids go from 0 to {vocab_size - 1:,}"
        )
