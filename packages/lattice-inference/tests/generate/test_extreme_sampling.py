"""Sampling with values at the edges of float32: the order of the tokens holds, and NumPy has nothing to warn of.

The suite turns warnings into errors, so each call here is also a check that none leaks.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.sampler import Sampler, SamplingConfig
from lattice_inference.generate.session import Session

TINY = [5e-324, 1e-320, 1e-308, 1e-45, 1.4e-45, 1e-40, 1.1754e-38, float(np.float32(1e-45))]
LARGEST = float(np.finfo(np.float32).max)


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("temperature", TINY)
def test_a_temperature_of_next_to_nothing_takes_the_most_probable_token(temperature):
    """Of equal ones that with the lowest id, whatever the seed: as a temperature of 0 does."""
    logits = floats(1, 7, 7, 7, -3)
    for seed in range(20):
        sampler = Sampler(SamplingConfig(temperature=temperature), seed, [], 5)
        assert sampler.sample(logits, seed) == 1
        ids, probabilities = sampler.distribution(logits)
        assert (ids.tolist(), probabilities.tolist()) == ([1], [1.0])


@pytest.mark.parametrize("temperature", TINY)
def test_it_is_greedy_decoding_in_whole(drawn_model, temperature):
    """What is left out beside it is left out as beside 0: no penalty changes the logits."""
    greedy = Session(drawn_model).generate("hello", GenerateConfig(12, temperature=0))
    result = Session(drawn_model).generate("hello", GenerateConfig(12, temperature=temperature, seed=5))
    assert result.token_ids == greedy.token_ids


@pytest.mark.parametrize("temperature", [1.18e-38, 1e-30, 1e-12])
@pytest.mark.parametrize("logits", [(-LARGEST, LARGEST, 0, 1), (0, 1e-3, -1e-3, -5), (1, 1 + 2.0**-23, -LARGEST, 1)])
def test_a_small_temperature_draws_the_greatest_logit(temperature, logits):
    for settings in ({}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}, {"min_p": 1e-300}):
        sampler = Sampler(SamplingConfig(temperature=temperature, **settings), 3, [], 4)
        assert sampler.sample(floats(*logits), 0) == int(np.argmax(floats(*logits)))


@pytest.mark.parametrize("penalty", [1.18e-38, 1e-30, 1e-6, 100.0])
@pytest.mark.parametrize("logits", [(3e38, 2e38, 5, -1), (-3e38, -2e38, -5, -1e-3), (1, 2, 3, 4)])
def test_an_extreme_penalty_keeps_the_order_of_the_tokens(penalty, logits):
    """Expected values by exact arithmetic in Python's integers and fractions."""
    from fractions import Fraction

    given = [Fraction(float(np.float32(value))) for value in logits]
    exact = [value / Fraction(penalty) if value > 0 else value * Fraction(penalty) for value in given]
    sampler = Sampler(SamplingConfig(repetition_penalty=penalty), 1, range(4), 4)
    assert sampler.sample(floats(*logits), 0) == exact.index(max(exact))


def test_a_penalty_that_float32_rounds_to_nothing_is_refused():
    for penalty in (0, 5e-324, 1e-45, 1e-39):
        with pytest.raises(
            InvalidInputError, match=r"repetition_penalty is .*; it must be above 0 \(1.2e-38 or more\)"
        ):
            GenerateConfig(repetition_penalty=penalty)


def test_a_bias_is_within_float32_and_adds_up_beyond_it():
    for bias in (1e39, -1e39, math.inf, math.nan, 1e300, 10**400):
        with pytest.raises(InvalidInputError, match=r"logit_bias\[1\] is .*; expected a finite number"):
            GenerateConfig(logit_bias={1: bias})
    sampler = Sampler(SamplingConfig(logit_bias={0: LARGEST, 1: LARGEST, 3: -LARGEST}), 1, [], 4)
    assert sampler.sample(floats(2e38, 3e38, 3.4e38, -3e38), 0) == 1
    forbidding = Sampler(SamplingConfig(logit_bias={1: -math.inf, 0: LARGEST}, temperature=1.0), 1, [1, 0], 3)
    assert forbidding.sample(floats(3e38, 3e38, 0), 0) == 0


def test_ordinary_penalties_are_the_bits_of_float32():
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 10
    sampler = Sampler(SamplingConfig(repetition_penalty=1.1, presence_penalty=0.3), 1, range(20), 50)
    sampler.accept(30)
    expected = logits.copy()
    seen = [*range(20), 30]
    expected[seen] = np.where(logits[seen] > 0, logits[seen] / np.float32(1.1), logits[seen] * np.float32(1.1))
    expected[30] -= np.float32(0.3)
    adjusted = sampler._adjust(logits)
    assert adjusted.dtype == np.float32
    assert adjusted.tobytes() == expected.tobytes()


def test_a_memory_report_says_nothing_of_what_it_was_not_told(drawn_model):
    from lattice_inference import memory_report

    silent = memory_report(drawn_model)
    assert "a token" not in silent.as_text()
    assert silent.as_json()["cache_per_token"] is None
    assert "(96 bytes a token)" in memory_report(drawn_model, cache_bytes=960, cache_token_bytes=96).as_text()
