"""Configurations of decoders: what transformers writes, in its old and new forms, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lattice_inference.errors import CheckpointError, ModelConfigError, UnsupportedError
from lattice_inference.models.llama import build_llama, find_decoder_names
from lattice_inference.models.llama_config import LlamaConfig
from lattice_inference.models.rope_scaling import RopeScaling

CASES = json.loads((Path(__file__).parents[1] / "data" / "decoders" / "cases.json").read_text())["cases"]
LLAMA = CASES["llama"]["files"]["config.json"]
FREQUENCY_RATIOS = {
    # (base, dimensions, factor): how much slower each pair turns, as llama.cpp and transformers have it
    (500_000.0, 64, 32.0): [1.0] * 15 + [0.605573, 0.303743, 0.103448] + [0.03125] * 14,
    (500_000.0, 128, 8.0): [1.0] * 29 + [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211] + [0.125] * 29,
}


def read(**changes):
    settings = {**LLAMA, **changes}
    return LlamaConfig.from_mapping({name: value for name, value in settings.items() if value != "absent"})


@pytest.mark.parametrize(("base", "dimensions", "factor"), FREQUENCY_RATIOS)
def test_llama3_scaling_has_the_published_ratios(base, dimensions, factor):  # H1
    scaled = RopeScaling(base, "llama3", factor, 8192).frequencies(dimensions)
    ratios = scaled / RopeScaling(base).frequencies(dimensions)
    assert np.abs(ratios - FREQUENCY_RATIOS[base, dimensions, factor]).max() <= 1e-6


def test_ntk_keeps_high_frequencies_and_stretches_the_lowest_by_the_factor():
    plain = RopeScaling(10_000.0).frequencies(128)
    stretched = RopeScaling(10_000.0, "ntk", 4.0).frequencies(128)
    ratios = plain / stretched
    assert ratios[0] == 1
    assert ratios[-1] == pytest.approx(4, rel=1e-5)
    assert (np.diff(ratios) > 0).all()
    assert np.allclose(RopeScaling(10_000.0, "linear", 4.0).frequencies(128) * 4, plain, rtol=1e-6)


def test_yarns_ramp_may_end_beyond_the_last_pair():
    """It ends at pair 9.1, rounded up to 10, of 8 pairs (0 to 7); the last is stretched by 3 / 6 of the way."""
    frequencies = RopeScaling(10_000.0, "yarn", 4.0, 65_536).frequencies(16)
    plain = RopeScaling(10_000.0).frequencies(16)
    assert frequencies[7] == pytest.approx(1.976424e-4, rel=1e-6)
    assert frequencies[7] == pytest.approx(plain[7] * (0.5 + 0.5 / 4), rel=1e-6)
    np.testing.assert_allclose(frequencies[:6], plain[:6], rtol=1e-6)


def test_qwen2_has_biases_of_queries_keys_and_values_only():
    settings = CASES["qwen2"]["files"]["config.json"]
    for attention_bias in (True, False):
        config = LlamaConfig.from_mapping({**settings, "attention_bias": attention_bias})
        assert (config.query_key_value_bias, config.output_bias) == (True, False)


NEW = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0, "partial_rotary_factor": 1.0}


@pytest.mark.parametrize(
    "form",
    [
        {"rope_parameters": NEW},
        {"rope_parameters": {**NEW, "type": "linear"}},
        {"rope_scaling": NEW},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5000, "partial_rotary_factor": 1},
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": NEW, "rope_theta": 5000.0},
        {"rope_scaling": {}, "rope_parameters": {**NEW, "rope_theta": None}, "rope_theta": 5000.0},
    ],
)
def test_rope_is_read_from_every_place_that_versions_of_transformers_write_it(form):  # H3
    config = read(**{"rope_parameters": "absent", **form})
    assert config.rope == RopeScaling(5000.0, "linear", 2.0)
    assert config.rotary_dim == 16


@pytest.mark.parametrize(
    "other", [{"type": "linear", "factor": 4.0}, {"type": "dynamic", "factor": 2.0}, {"type": "linear", "factor": 2.0}]
)
def test_two_places_that_say_something_else_about_rope_are_refused(other):
    with pytest.raises(ModelConfigError, match="rope_scaling: says another scaling than rope_parameters"):
        read(
            rope_parameters=NEW, rope_scaling=other
        )  # the last one has transformers' base, without rope_theta beside it


@pytest.mark.parametrize("place", [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
def test_a_part_of_a_head_never_turns_alone_in_these_families(name, place):
    with pytest.raises(UnsupportedError, match=r"partial_rotary_factor is 0\.5"):
        LlamaConfig.from_mapping({**CASES[name]["files"]["config.json"], **place})


def test_what_transformers_leaves_out_has_its_default():
    config = read(
        rope_parameters="absent", num_key_value_heads="absent", tie_word_embeddings="absent", eos_token_id="absent"
    )
    assert (config.rope, config.num_key_value_heads, config.tied, config.eos_token_ids) == (
        RopeScaling(10_000.0),
        4,
        False,
        (),
    )
    assert read(head_dim=None).head_dim == 16
    assert read(eos_token_id=[5, 6, 5]).eos_token_ids == (5, 6)
    mistral = {**CASES["mistral"]["files"]["config.json"]}
    del mistral["sliding_window"]
    assert LlamaConfig.from_mapping(mistral).windows == (4096,) * 3


def test_layer_types_say_which_layers_look_back_how_far():
    base = CASES["qwen2-with-windows"]["files"]["config.json"]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert LlamaConfig.from_mapping(base).windows == (0, 16, 16)
    assert LlamaConfig.from_mapping({**base, "layer_types": kinds}).windows == (16, 0, 16)
    assert LlamaConfig.from_mapping({**base, "use_sliding_window": False}).windows == (0, 0, 0)
    with pytest.raises(ModelConfigError, match="layer_types"):
        LlamaConfig.from_mapping({**base, "layer_types": ["chunked_attention"] * 3})


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"vocab_size": 0}, ModelConfigError, "vocab_size"),
        ({"hidden_size": 2**31}, ModelConfigError, "hidden_size"),
        ({"hidden_size": "64"}, ModelConfigError, "hidden_size"),
        ({"num_attention_heads": 0}, ModelConfigError, "num_attention_heads"),
        ({"num_attention_heads": 5}, ModelConfigError, "num_key_value_heads"),
        ({"num_key_value_heads": 3}, ModelConfigError, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, ModelConfigError, "num_key_value_heads"),
        ({"hidden_size": 66}, ModelConfigError, "hidden_size"),
        ({"head_dim": 0}, ModelConfigError, "head_dim"),
        ({"head_dim": 4096}, ModelConfigError, "head_dim"),
        ({"head_dim": 15}, ModelConfigError, "head_dim"),
        ({"partial_rotary_factor": 0}, ModelConfigError, "partial_rotary_factor"),
        ({"num_hidden_layers": 10_000}, ModelConfigError, "num_hidden_layers"),
        ({"max_position_embeddings": 2**40}, ModelConfigError, "max_position_embeddings"),
        ({"rms_norm_eps": float("nan")}, ModelConfigError, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, ModelConfigError, "rms_norm_eps"),
        ({"intermediate_size": "absent"}, ModelConfigError, "intermediate_size"),
        ({"eos_token_id": "2"}, ModelConfigError, "eos_token_id"),
        ({"eos_token_id": [True]}, ModelConfigError, "eos_token_id"),
        ({"tie_word_embeddings": 1}, ModelConfigError, "tie_word_embeddings"),
        ({"rope_parameters": []}, ModelConfigError, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": 0.5}}, ModelConfigError, "rope_theta"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelConfigError, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, ModelConfigError, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ModelConfigError, "original_max_position"),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            ModelConfigError,
            "high_freq_factor",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, UnsupportedError, "longrope"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            UnsupportedError,
            "full_attention",
        ),
        ({"model_type": "gemma"}, UnsupportedError, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, UnsupportedError, "architectures"),
        ({"quantization_config": {"bits": 4}}, UnsupportedError, "quantization_config"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_and_the_field_named(changes, error, field):
    with pytest.raises(error, match=field):
        read(**changes)


COUNTS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
COUNTS += ["num_key_value_heads", "head_dim", "max_position_embeddings"]
NO_COUNTS = [True, False, 1.0, "12", 0, -1, 2**31, 2**63, 10**400, 1e400, math.nan, [], {}]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", NO_COUNTS, ids=lambda value: str(value)[:20])
def test_a_count_is_an_integer_in_range(name, value):
    """Case G14."""
    with pytest.raises(ModelConfigError, match=f"{name}: ") as caught:
        read(**{"head_dim": 16, name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", [*COUNTS[:5], "max_position_embeddings", "rms_norm_eps", "model_type", "architectures"]
)
def test_a_field_that_is_missing_is_named(name):
    with pytest.raises(ModelConfigError, match=f"{name}: is missing"):
        read(**{name: "absent"})


def test_a_program_keeps_one_spec_of_keys_and_values_a_layer():
    program = build_llama(LlamaConfig.from_mapping(CASES["qwen2-with-windows"]["files"]["config.json"]))
    assert [spec.window for spec in program.kv_specs] == [None, 16, 16]
    assert {(spec.kv_heads, spec.head_dim) for spec in program.kv_specs} == {(2, 16)}


def test_checkpoints_without_the_prefix_of_transformers_are_read():
    assert find_decoder_names({"embed_tokens.weight"}).norm == "norm"
    with pytest.raises(CheckpointError, match="embed_tokens"):
        find_decoder_names({"token_embd.weight"})
