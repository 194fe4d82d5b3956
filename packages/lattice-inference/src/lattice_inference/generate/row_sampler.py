"""Samples tokens from the rows of one step, in C and in parallel.

:mod:`~lattice_inference.generate.sampler` is the readable form of the same functions: for the same logits it gives the same
tokens and log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import NonFiniteError
from lattice_inference.generate import _sampling
from lattice_inference.generate.exact_weights import LOG2_E
from lattice_inference.generate.sampler import (
    LEAST_TEMPERATURE,
    Sampler,
    SamplingConfig,
    TokenLogprobs,
    check_below,
    no_token,
    token_logprobs,
)

__all__ = ["Choice", "Draw", "RowSampler", "sample_rows"]

Bits = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


class RowSampler:
    """Chooses the tokens of one generation by :func:`sample_rows`; for one thread at a time.

    Args:
        config: how a token is chosen.
        seed: the seed of the random draws, 0 to 2**64 - 1.
        prompt_ids: the tokens of the prompt, to which the repetition penalty applies too.
        vocab_size: how many of a row's logits belong to tokens.
        logprobs: how many log-probabilities are listed for a token; ``None`` computes none.

    Raises:
        InvalidInputError: a token id in ``prompt_ids`` or in the bias is not below ``vocab_size``.
    """

    def __init__(
        self,
        config: SamplingConfig,
        seed: int,
        prompt_ids: Iterable[int],
        vocab_size: int,
        *,
        logprobs: int | None = None,
    ) -> None:
        self._config = config
        self._seed = seed
        self._vocab_size = vocab_size
        self._logprobs = logprobs
        self._counts: _sampling.TokenCounts | None = None
        check_below(np.fromiter(config.logit_bias, np.intp, len(config.logit_bias)), vocab_size, "logit_bias")
        if config.repetition_penalty != 1 or config.presence_penalty or config.frequency_penalty:
            prompt = np.unique(np.fromiter(prompt_ids, np.intp))
            check_below(prompt, vocab_size, "the prompt")
            self._counts = _sampling.TokenCounts()
            if config.repetition_penalty != 1:
                for token_id in prompt.tolist():
                    self._counts.add(token_id, 0)
        self.settings: _sampling.RowSettings = self._native_settings()

    def _native_settings(self) -> _sampling.RowSettings:
        config = self._config
        return _sampling.RowSettings(
            scale=0.0 if config.temperature < LEAST_TEMPERATURE else LOG2_E / config.temperature,
            top_p=config.top_p,
            typical_p=config.typical_p,
            min_p=config.min_p,
            top_k=config.top_k,
            repetition=config.repetition_penalty,
            presence=config.presence_penalty,
            frequency=config.frequency_penalty,
            bias=dict(config.logit_bias),
            seed=self._seed,
            vocabulary=self._vocab_size,
            top=-1 if self._logprobs is None else self._logprobs,
            counts=self._counts,
        )

    def accept(self, token_id: int) -> None:
        """Count ``token_id`` as generated."""
        if self._counts is not None:
            self._counts.add(token_id, 1)

    def fork(self) -> RowSampler:
        """Return another sampler of the same text, which counts on its own."""
        other = copy(self)
        if self._counts is not None:
            other._counts = self._counts.copy()
            other.settings = other._native_settings()
        return other

    def sample(self, logits: Floats, position: int, allowed: Bits | None = None) -> int:
        """Return the next token of one row; see :meth:`Sampler.sample`."""
        (chosen,) = sample_rows(logits[None], [Draw(self, position, allowed)])
        if isinstance(chosen, NonFiniteError):
            raise chosen
        return chosen[0]

    def distribution(
        self, logits: Floats, allowed: Bits | None = None, *, isa: str | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the tokens that may be chosen from one row, ascending, and their probabilities.

        Tokens are left out whose probability is 0 in :meth:`Sampler.distribution`.

        Raises:
            NonFiniteError: a logit is NaN or +inf, or no token is left.
        """
        status, token_id, value, ids, probabilities = _sampling.distribution(
            logits[None], self.settings, allowed, isa=isa
        )
        if status == _sampling.NO_TOKEN:
            raise no_token(token_id, value)
        if status == _sampling.PAST_FLOAT32:
            ids, probabilities = self.readable().distribution(logits, allowed)
            drawn = probabilities > 0
            return ids[drawn], probabilities[drawn]
        return ids, probabilities

    def readable(self) -> Sampler:
        """Return the readable form, with the same counts."""
        counts = {} if self._counts is None else self._counts.items()
        sampler = Sampler(self._config, self._seed, counts, self._vocab_size)
        for token_id, count in counts.items():
            for _ in range(count):
                sampler.accept(token_id)
        return sampler


class Draw(NamedTuple):
    """What a row of logits is sampled for.

    Attributes:
        sampler: of the text.
        position: the index of the new token in its sequence, counted from the start of the prompt.
        allowed: a bit per token: bit i % 32 of word i // 32 says whether token i may be chosen. ``None`` allows all.
    """

    sampler: RowSampler
    position: int
    allowed: Bits | None = None


Choice = tuple[int, TokenLogprobs | None] | NonFiniteError
"""A token and its log-probabilities, if they are wanted, or the error of a row that allows no choice."""


def sample_rows(
    logits: Floats,
    draws: Sequence[Draw],
    rows: Sequence[int] | None = None,
    *,
    isa: str | None = None,
    threads: int | None = None,
) -> list[Choice]:
    """Return the next token for each draw.

    Args:
        logits: (rows, width) float32, from the model; they are not changed.
        draws: what for.
        rows: the row of each draw; by default there is one draw for each row, in order.
        isa: the instruction set; by default the best one. The results do not depend on it.
        threads: the most threads; by default those of the process.
    """
    rows = range(len(logits)) if rows is None else rows
    chosen: list[Choice] = []
    for (status, token_id, value, logprob, top), row, draw in zip(
        _sampling.sample(logits, draws, rows, isa=isa, threads=threads), rows, draws, strict=True
    ):
        if status == _sampling.SAMPLED:
            chosen.append((token_id, None if logprob is None else TokenLogprobs(token_id, logprob, top)))
        elif status == _sampling.NO_TOKEN:
            chosen.append(no_token(token_id, value))
        else:
            chosen.append(_sample_readably(logits[row], draw))
    return chosen


def _sample_readably(row: Floats, draw: Draw) -> Choice:
    """Sample a row whose penalties or biases overflow float32, in float64."""
    settings = draw.sampler.settings
    logits = row[: settings.vocabulary]
    try:
        token_id = draw.sampler.readable().sample(logits, draw.position, draw.allowed)
    except NonFiniteError as error:
        return error
    return token_id, None if settings.top < 0 else token_logprobs(logits, token_id, settings.top)
