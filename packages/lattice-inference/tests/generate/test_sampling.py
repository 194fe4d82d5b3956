"""Sampling against transformers step by step, and the statistics of draws."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate.exact_weights import LOG2_E, natural_log, weight_bits, weights_of
from lattice_inference.generate.sampler import Sampler, SamplingConfig, token_logprobs, uniform
from lattice_inference.generate.truncation import keep_top_k, keep_top_p

CASES = json.loads((Path(__file__).parents[1] / "data" / "generate" / "sampling.json").read_text())["cases"]
WORD = 2**64 - 1


def sampler(vocab_size=8, prompt=(), seed=0, **settings):
    return Sampler(SamplingConfig(**settings), seed, prompt, vocab_size)


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['step']}-{case['settings']}")
def test_what_is_left_is_what_transformers_leaves(case):
    config = {"temperature": 1.0, **case["settings"]}
    ids, probabilities = sampler(len(case["logits"]), case["prompt"], **config).distribution(floats(*case["logits"]))
    assert ids.tolist() == case["ids"]
    np.testing.assert_allclose(probabilities, case["probabilities"], atol=1e-7)


def philox(counter, key):
    """Philox4x64-10 as published, on Python's integers."""
    x, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [high >> 64 ^ x[1] ^ k[0], high & WORD, low >> 64 ^ x[3] ^ k[1], low & WORD]
        k = [(k[0] + 0x9E3779B97F4A7C15) & WORD, (k[1] + 0xBB67AE8584CAA73B) & WORD]
    return x


def test_the_numbers_are_philox():
    # the first two are known answers of the authors' Random123
    assert philox([0] * 4, [0] * 2)[0] == 0x16554D9ECA36314C
    assert philox([WORD] * 4, [WORD] * 2)[0] == 0x87B092C3013FE90B
    for seed, position in [(0, 0), (1, 0), (0, 1), (WORD, 123_456), (42, 2**40)]:
        assert uniform(seed, position) == (philox([position + 1, 0, 0, 0], [seed, 0])[0] >> 11) / 2**53


def test_a_position_draws_the_same_in_any_order():
    logits = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    one, other = (sampler(50, temperature=1.0, seed=9) for _ in range(2))
    forward = [one.sample(logits, position) for position in range(30)]
    backward = [other.sample(logits, position) for position in reversed(range(30))]
    assert forward == backward[::-1]
    assert len(set(forward)) > 5
    assert forward != [sampler(50, temperature=1.0, seed=10).sample(logits, position) for position in range(30)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [{}, {"top_k": 4}, {"top_p": 0.8}, {"temperature": 0.5}, {"min_p": 0.2, "typical_p": 0.9}]
)
def test_draws_follow_the_distribution(config):
    drawn = sampler(12, seed=3, **{"temperature": 1.0, **config})
    logits = np.random.default_rng(1).normal(0, 1.5, 12).astype(np.float32)
    ids, probabilities = drawn.distribution(logits)
    count = 4000
    counts = Counter(drawn.sample(logits, position) for position in range(count))
    assert set(counts) <= set(ids.tolist())
    if len(ids) > 1:
        observed = [counts[token] for token in ids.tolist()]
        assert scipy.stats.chisquare(observed, probabilities * count).pvalue > 0.001


class TestGreedy:
    def test_of_equal_logits_the_lowest_id_wins(self):  # I6
        assert sampler(temperature=0.0).sample(np.full(8, 1.5, np.float32), 0) == 0
        assert sampler(temperature=0.0).sample(floats(0, 2, 1, 2, 2, 0, 0, 0), 0) == 1

    def test_of_equal_logits_top_k_keeps_the_lowest_ids(self):  # I6, the other path
        assert keep_top_k(np.zeros(1000), 3).tolist() == [0, 1, 2]
        assert sampler(1000, temperature=1.0, top_k=1).sample(np.zeros(1000, np.float32), 5) == 0

    @pytest.mark.parametrize(
        "config", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 0.0}]
    )
    @pytest.mark.parametrize("size", [2, 65, 1000, 20_000])
    def test_of_equals_the_lowest_id_wins_on_every_way_to_one_token(self, config, size):  # I6
        """In whatever block of the vocabulary they stand, before and after penalties, and with zeros of both signs."""
        generator = np.random.default_rng(size)
        for _ in range(20):
            logits = generator.normal(size=size).astype(np.float32)
            best = np.sort(generator.choice(size, min(size, 5), replace=False))
            logits[best] = 9.0
            assert sampler(size, **config).sample(logits, 3) == best[0]
            assert sampler(size, [best[0]], repetition_penalty=1.5, **config).sample(logits, 3) == best[1]
            assert token_logprobs(logits, 0, 5).top[0][0] == best[0]
            zeros = np.minimum(logits, -1)
            zeros[best] = [-0.0, 0.0, -0.0, 0.0, 0.0][: len(best)]
            assert sampler(size, **config).sample(zeros, 3) == best[0]

    @pytest.mark.parametrize("config", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1e-30}])
    def test_every_way_to_greedy_is_the_same(self, config):
        logits = np.random.default_rng(2).normal(size=500).astype(np.float32)
        assert sampler(500, **config).sample(logits, 0) == logits.argmax()


class TestPenalties:
    def test_repetition_counts_a_token_once(self):  # I1
        chosen = sampler(2, [0] * 30, temperature=0.0, repetition_penalty=1.1)
        assert chosen.sample(floats(2.0, 1.5), 30) == 0
        assert chosen._adjust(floats(2.0, 1.5))[0] == pytest.approx(2.0 / 1.1)

    def test_the_prompt_and_all_of_the_history_count(self):  # I3
        logits = floats(2.0, 1.9, 0, 0, 0, 0, 0, 0)
        config = {"temperature": 0.0, "repetition_penalty": 1.2}
        assert sampler(**config).sample(logits, 0) == 0
        assert sampler(prompt=[0], **config).sample(logits, 1) == 1
        far_back = sampler(**config)
        for token in [0] + [5] * 65:
            far_back.accept(token)
        assert far_back.sample(logits, 66) == 1

    def test_presence_and_frequency_count_what_was_generated(self):
        counted = sampler(4, [3], temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
        for token in (1, 1, 2):
            counted.accept(token)
        np.testing.assert_array_equal(counted._adjust(floats(1, 1, 1, 1)), floats(1, 0, 0.25, 1))

    def test_the_frequency_penalty_grows_with_each_time(self):
        counted = sampler(2, temperature=0.0, frequency_penalty=0.25)
        for count in range(1, 5):
            counted.accept(0)
            assert counted._adjust(floats(1, 1))[0] == 1 - 0.25 * count

    def test_the_logits_of_the_caller_stay(self):
        logits = floats(1, 2, 3, 4)
        sampler(4, [3], temperature=1.0, repetition_penalty=2.0, logit_bias={0: 5.0}).sample(logits, 0)
        assert logits.tolist() == [1, 2, 3, 4]

    def test_bias_comes_before_the_penalties(self):
        biased = sampler(2, [0], temperature=0.0, repetition_penalty=2.0, logit_bias={0: 3.0})
        np.testing.assert_array_equal(biased._adjust(floats(1, 1)), floats(2, 1))

    def test_minus_infinity_forbids_a_token(self):
        logits = floats(9, 1, 0, 0)
        bias = {0: -np.inf}
        assert sampler(4, temperature=0.0, logit_bias=bias).sample(logits, 0) == 1
        ids, _ = sampler(4, temperature=1.0, typical_p=0.99, logit_bias=bias).distribution(logits)
        assert 0 not in ids.tolist()

    @pytest.mark.parametrize(("prompt", "bias"), [([4], {}), ([-1], {}), ([0], {4: 1.0})])
    def test_a_token_beyond_the_vocabulary_is_refused(self, prompt, bias):  # I11
        with pytest.raises(InvalidInputError, match="ids go from 0 to 3"):
            sampler(4, prompt, repetition_penalty=1.5, logit_bias=bias)


class TestGuards:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("values", [(0, np.nan, 1), (0, np.inf, 1), (-np.inf, -np.inf, -np.inf)])
    def test_logits_that_no_token_can_be_drawn_from_are_refused(self, temperature, values):
        with pytest.raises(NonFiniteError, match="no token can be chosen"):
            sampler(3, temperature=temperature).sample(floats(*values), 0)

    @pytest.mark.parametrize(("draw", "first", "last"), [(0.0, -1e6, 0), (1 - 2**-53, 0, -1e6)])
    def test_neither_the_lowest_nor_the_highest_draw_takes_a_token_without_probability(
        self, monkeypatch, draw, first, last
    ):  # I4
        monkeypatch.setattr("lattice_inference.generate.sampler.uniform", lambda seed, position: draw)
        generator = np.random.default_rng(0)
        for size in range(1, 200):
            logits = floats(first, *generator.normal(size=size), last)
            chosen = sampler(size + 2, temperature=1.0).sample(logits, 0)
            assert chosen == (1 if draw == 0 else size)

    def test_draws_are_from_0_up_to_1(self):
        assert all(0 <= uniform(seed, 0) < 1 for seed in range(1000))


@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 3000), st.sampled_from([0.01, 1.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_partial_selection_is_the_full_sort(seed, mass, size, spread):
    logits = np.round(np.random.default_rng(seed).normal(0, spread, size), 1)  # rounded: ties are common
    order = np.argsort(-logits, kind="stable")
    k = seed % size + 1
    assert keep_top_k(logits, k).tolist() == sorted(order[:k].tolist())
    weights = np.exp(logits - logits.max())
    cumulative = np.cumsum((weights / weights.sum())[order])
    kept = keep_top_p((logits - logits.max()) * LOG2_E, mass, weight_bits(size))
    if mass < 1:
        assert kept.tolist() == sorted(order[: kept.size].tolist())
        assert cumulative[kept.size - 1] >= min(mass, 1) - 1e-9
        assert kept.size == 1 or cumulative[kept.size - 2] < mass + 1e-9


def test_weights_and_logarithms_are_those_of_the_mathematical_functions():
    """Weights are whole numbers next to the power of two; logarithms are within a few units in the last place."""
    surplus = -np.random.default_rng(0).random(2000) * 60
    for bits in (20, 44, 46):
        exact = np.exp2(surplus) * 2.0**bits
        assert np.abs(weights_of(surplus, bits) - exact).max() <= 0.6
        assert weights_of(np.array([0.0, -np.inf, -1e300, -bits - 1.1]), bits).tolist() == [2**bits, 0, 0, 0]
    for x in (2.0**-46, 0.1, 0.7, 1 - 2.0**-50, 1.0, 1 + 2.0**-50, 1.5, 3.0, 150_000.0):
        assert natural_log(x) == pytest.approx(np.log(x), rel=5e-16)
    assert [weight_bits(size) for size in (1, 2**15, 2**17, 2**30)] == [46, 46, 44, 31]


def test_logprobs_are_those_of_the_raw_logits():
    logits = np.random.default_rng(4).normal(0, 2, 300).astype(np.float32)
    expected = scipy.special.log_softmax(logits.astype(np.float64))
    told = token_logprobs(logits, 7, 5)
    assert told.token_id == 7
    assert told.logprob == pytest.approx(expected[7])
    order = np.argsort(-expected, kind="stable")[:5]
    assert [token for token, _ in told.top] == order.tolist()
    np.testing.assert_allclose([value for _, value in told.top], expected[order])
    assert token_logprobs(logits, 7, 0).top == ()
