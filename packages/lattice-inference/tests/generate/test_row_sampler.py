"""The sampling kernels give the tokens and log-probabilities of the readable form, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.errors import InvalidInputError, NonFiniteError
from lattice_inference.generate import _sampling
from lattice_inference.generate.row_sampler import Draw, RowSampler, sample_rows
from lattice_inference.generate.sampler import Sampler, SamplingConfig, token_logprobs
from sampling_rows import SIZES, differing, random_case

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # infinities among logits


@pytest.mark.parametrize("isa", _sampling.available_isas())
@pytest.mark.parametrize("size", SIZES)
def test_random_rows_are_sampled_as_by_the_readable_form(isa, size):
    """Ties, infinities, NaN, masks, penalties and biases, and each step with and without the others."""
    assert differing(np.random.default_rng(size), size, 300, isa=isa) == []


@pytest.mark.slow
def test_twenty_thousand_random_rows_of_other_sizes_are_sampled_as_by_the_readable_form():
    rng = np.random.default_rng(7)
    for turn in range(40):
        size = int(rng.choice([rng.integers(1, 700), *SIZES]))
        assert differing(rng, size, 500) == [], (turn, size)


@pytest.mark.slow
@pytest.mark.parametrize("isa", _sampling.available_isas())
@pytest.mark.parametrize("size", [5_000, 49_152, 151_936])
def test_large_vocabularies_are_sampled_as_by_the_readable_form(isa, size):
    assert differing(np.random.default_rng(size), size, 2_000_000 // size, isa=isa) == []


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"min_p": 0.01}, {"typical_p": 0.9}, {"top_k": 50}], ids=str)
def test_the_weights_of_many_equal_tokens_add_up(settings):
    """Every weight is the greatest there is, so that their sum is as large as it can be."""
    size = 300_000
    config = SamplingConfig(temperature=1.0, **settings)
    sampler = RowSampler(config, 1, [], size, logprobs=3)
    logits = np.full((1, size), 2.5, np.float32)
    for position in range(3):
        (chosen,) = sample_rows(logits, [Draw(sampler, position)])
        assert not isinstance(chosen, NonFiniteError)
        assert chosen[0] == Sampler(config, 1, [], size).sample(logits[0], position)
        assert chosen[1] == token_logprobs(logits[0], chosen[0], 3)
        assert chosen[1].logprob == pytest.approx(-np.log(size))


def test_rows_of_a_step_are_sampled_alike_in_any_company_and_on_any_number_of_threads():
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((40, 2100)).astype(np.float32) * 3
    settings = [SamplingConfig(temperature=t, top_p=p) for t in (0.0, 0.8, 1.5) for p in (0.7, 1.0)]
    draws = [Draw(RowSampler(settings[row % 6], row, [], 2000, logprobs=row % 3 or None), row) for row in range(40)]
    alone = [sample_rows(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]
    for threads in (1, 2, 3):
        assert sample_rows(logits, draws, threads=threads) == alone
    wide = np.full((40, 5000), 100, np.float32)  # what stands beside the vocabulary is not looked at
    wide[:, :2100] = logits
    assert sample_rows(wide[:, :2100], draws) == alone


def test_a_bad_row_is_an_error_of_its_own():
    logits = np.zeros((3, 5), np.float32)
    logits[1, 3] = np.nan
    sampler = RowSampler(SamplingConfig(), 0, [], 5)
    first, bad, last = sample_rows(logits, [Draw(sampler, 0)] * 3)
    assert first == last == (0, None)
    assert isinstance(bad, NonFiniteError)
    assert str(bad) == "no token can be chosen: the greatest logit, of token 3, is nan"


def test_counts_of_many_tokens_are_kept():
    config = SamplingConfig(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5)
    sampler = RowSampler(config, 0, range(0, 3000, 2), 5000)
    readable = Sampler(config, 0, range(0, 3000, 2), 5000)
    for token in [1, 1, 4, 4999, 4999, 4999, *range(2000, 2600)]:
        sampler.accept(token)
        readable.accept(token)
    same = sampler.readable()
    logits = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    assert same._adjust(logits).tobytes() == readable._adjust(logits).tobytes()
    for _ in range(20):
        (chosen,) = sample_rows(logits[None], [Draw(sampler, 0)])
        assert chosen == (readable.sample(logits, 0), None)
        logits[chosen[0]] -= 2


@pytest.mark.parametrize("isa", _sampling.available_isas())
def test_distributions_are_those_of_the_readable_form(isa):
    rng = np.random.default_rng(11)
    for turn in range(300):
        size = int(rng.choice(SIZES))
        logits, config, prompt, generated, allowed, _ = random_case(rng, size)
        sampler = RowSampler(config, 0, prompt, size)
        for token in generated:
            sampler.accept(token)
        try:
            expected = sampler.readable().distribution(logits, allowed)
        except NonFiniteError as error:
            with pytest.raises(NonFiniteError, match=str(error).replace("+", "[+]")):
                sampler.distribution(logits, allowed, isa=isa)
            continue
        ids, probabilities = sampler.distribution(logits, allowed, isa=isa)
        has_weight = expected[1] > 0
        assert ids.tolist() == expected[0][has_weight].tolist(), turn
        assert probabilities.tolist() == expected[1][has_weight].tolist(), turn


def test_a_fork_counts_on_its_own():
    config = SamplingConfig(frequency_penalty=1.0)
    one = RowSampler(config, 0, [], 4)
    one.accept(2)
    other = one.fork()
    other.accept(3)
    assert one.sample(np.array([0, 0, 3.5, 3], np.float32), 0) == 3
    assert other.sample(np.array([0, 0, 3.5, 3], np.float32), 0) == 2


@pytest.mark.parametrize(("prompt", "bias"), [([4], {}), ([-1], {}), ([0], {4: 1.0}), ([0], {-1: 1.0})])
def test_a_token_beyond_the_vocabulary_is_refused(prompt, bias):
    with pytest.raises(InvalidInputError, match="ids go from 0 to 3"):
        RowSampler(SamplingConfig(repetition_penalty=1.5, logit_bias=bias), 0, prompt, 4)


def test_rows_that_do_not_fit_are_refused():
    draw = Draw(RowSampler(SamplingConfig(), 0, [], 40), 0)
    with pytest.raises(ValueError, match="2 rows of logits for 1 draws"):
        sample_rows(np.zeros((2, 40), np.float32), [draw])
    with pytest.raises(ValueError, match="a row of 39 logits for a vocabulary of 40"):
        sample_rows(np.zeros((1, 39), np.float32), [draw])
    counting = RowSampler(SamplingConfig(frequency_penalty=1.0), 0, [], 40)
    counting.accept(40)  # a token of another vocabulary: the kernel writes to its place in the row
    for one in (counting, counting.fork()):
        with pytest.raises(ValueError, match="token 40 was counted, and a row has 40 tokens"):
            sample_rows(np.zeros((1, 64), np.float32), [Draw(one, 0)])
    settings = {"scale": 1.0, "top_p": 1.0, "typical_p": 1.0, "min_p": 0.0, "top_k": 0, "repetition": 1.0}
    settings |= {"presence": 0.0, "frequency": 0.0, "bias": {}, "seed": 0, "vocabulary": 40, "top": -1, "counts": None}
    for name in ("scale", "top_p", "typical_p", "min_p"):
        for value in (np.nan, -1.0, np.inf if name == "scale" else -np.inf):
            with pytest.raises(ValueError, match="no token is chosen"):
                _sampling.RowSettings(**settings | {name: value})
    with pytest.raises(ValueError, match="a mask of 1 words for a vocabulary of 40"):
        sample_rows(np.zeros((1, 40), np.float32), [draw._replace(allowed=np.zeros(1, np.uint32))])
    assert sample_rows(np.zeros((0, 40), np.float32), []) == []
