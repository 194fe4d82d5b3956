"""What a configuration holds, and where what it leaves out comes from."""

from __future__ import annotations

import json
import math

import pytest

from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.generation_config_file import read_generation_config


def write(directory, **values):
    (directory / "generation_config.json").write_text(json.dumps(values))
    return read_generation_config(directory)


def test_defaults_are_the_documented_ones():
    resolved = GenerateConfig().resolve()
    sampling = resolved.sampling
    assert (resolved.max_new_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (256, 0.7, 50, 0.9)
    assert (sampling.repetition_penalty, sampling.min_p, sampling.typical_p) == (1.1, 0.0, 1.0)
    assert (resolved.stop, resolved.stop_token_ids, resolved.logprobs) == ((), frozenset(), None)


def test_the_model_fills_what_the_caller_leaves_out(tmp_path):
    model = write(tmp_path, temperature=0.2, top_p=0.5, repetition_penalty=1.3, do_sample=True, eos_token_id=[7, 8])
    resolved = GenerateConfig(temperature=0.9, stop_token_ids=[3]).resolve(model, stop_token_ids=[5])
    assert (resolved.sampling.temperature, resolved.sampling.top_p, resolved.sampling.top_k) == (0.9, 0.5, 50)
    assert resolved.sampling.repetition_penalty == 1.3
    assert resolved.stop_token_ids == {3, 5, 7, 8}  # D7: every source of stop tokens counts


def test_the_greedy_preset_leaves_nothing_to_the_model(tmp_path):
    model = write(tmp_path, temperature=0.2, top_p=0.5, repetition_penalty=1.3)
    sampling = GenerateConfig.greedy(5).resolve(model).sampling
    assert (sampling.temperature, sampling.repetition_penalty, sampling.top_k, sampling.top_p) == (0, 1, 0, 1)
    assert GenerateConfig.greedy(5).max_new_tokens == 5


def test_temperature_zero_alone_is_greedy():
    assert GenerateConfig(temperature=0).resolve().sampling == GenerateConfig.greedy().resolve().sampling


def test_a_model_that_does_not_sample_is_greedy(tmp_path):
    model = write(tmp_path, do_sample=False, temperature=0.6)
    assert GenerateConfig().resolve(model).sampling.temperature == 0
    assert GenerateConfig(temperature=0.5).resolve(model).sampling.temperature == 0.5


def test_no_file_states_nothing(tmp_path):
    assert read_generation_config(tmp_path) == GenerateConfig(stop_token_ids=None)


@pytest.mark.parametrize("values", [{"num_beams": 4}, {"no_repeat_ngram_size": 3}, {"suppress_tokens": [5]}])
def test_a_way_of_generating_that_is_not_built_is_refused(tmp_path, values):
    with pytest.raises(UnsupportedError, match=next(iter(values))):
        write(tmp_path, **values)


@pytest.mark.parametrize(
    "values", [{"temperature": "hot"}, {"top_p": 2}, {"eos_token_id": "x"}, {"eos_token_id": [-1]}]
)
def test_a_malformed_file_is_refused_by_its_name(tmp_path, values):
    with pytest.raises(ModelConfigError, match=r"generation_config\.json"):
        write(tmp_path, **values)


@pytest.mark.parametrize(
    "values",
    [
        {"max_new_tokens": -1},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": True},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_k": -1},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"typical_p": 2},
        {"repetition_penalty": 0},
        {"repetition_penalty": math.nan},
        {"presence_penalty": math.inf},
        {"frequency_penalty": math.nan},
        {"logit_bias": {0: math.nan}},
        {"logit_bias": {0: math.inf}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": [1]},
        {"seed": -1},
        {"seed": 2**64},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [1]},
        {"stop": b"x"},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": "12"},
        {"stop_token_ids": [None]},
        {"ignore_stop_tokens": 1},
        {"logprobs": 21},
        {"logprobs": -1},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_its_name(values):
    with pytest.raises(InvalidInputError, match=next(iter(values))):
        GenerateConfig(**values)


def test_numpy_numbers_are_numbers():
    import numpy as np

    config = GenerateConfig(
        max_new_tokens=np.int64(3), temperature=np.float32(0.5), stop_token_ids=np.arange(2).tolist()
    )
    assert config.resolve().max_new_tokens == 3
    assert config.resolve().sampling.temperature == 0.5


def test_a_seed_left_out_is_drawn_anew():
    assert GenerateConfig().resolve().seed != GenerateConfig().resolve().seed
    assert GenerateConfig(seed=5).resolve().seed == 5


def test_stop_tokens_can_be_ignored():
    assert (
        GenerateConfig(ignore_stop_tokens=True, stop_token_ids=[1]).resolve(stop_token_ids=[2]).stop_token_ids == set()
    )
