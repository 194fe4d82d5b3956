"""Adapters in the directories of PEFT and mlx-lm: read, written, and refused where anything is wrong."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drawn_adapters import adapter_tensors, write_adapter
from lattice_inference.errors import (
    CheckpointError,
    InvalidInputError,
    ModelConfigError,
    ModelNotFoundError,
    UnsupportedError,
)
from lattice_inference.lora import LoraAdapter, LoraSite, blend, load_adapter_file, save_mlx, save_peft_safetensors
from lattice_inference.lora.peft_config import FIELDS_REFUSED, FIELDS_USED, FIELDS_WITHOUT_EFFECT

from .conftest import CASES

PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def write(directory, *, tensors=None, drop=(), **fields):
    """Write the llama adapter with other fields or tensors."""
    case = CASES["llama"]
    config = {name: value for name, value in (case["config"] | fields).items() if name not in drop}
    write_adapter(directory, "llama", case | {"config": config})
    if tensors is not None:
        save_file(tensors(adapter_tensors("llama", case["tensors"])), directory / "adapter_model.safetensors")
    return directory


def test_ranks_and_scales_are_those_that_peft_would_use(drawn_adapter):
    adapter = load_adapter_file(drawn_adapter("llama-all-linear"))
    assert adapter.base_model == "drawn/llama"
    ranks = {name: site.rank for name, site in adapter.sites.items()}
    scales = {name: site.scale for name, site in adapter.sites.items()}
    assert len(ranks) == 21  # seven linears in each of three layers: the output matrix is no target of all-linear
    assert ranks["model.layers.1.self_attn.q_proj"] == 6
    assert ranks["model.layers.0.self_attn.q_proj"] == 4
    assert scales["model.layers.1.self_attn.q_proj"] == pytest.approx(3.5 / 6**0.5)
    assert scales["model.layers.0.mlp.up_proj"] == pytest.approx(3.5 / 2**0.5)
    assert scales["model.layers.2.mlp.down_proj"] == pytest.approx(1.5 / 2)
    plain = load_adapter_file(drawn_adapter("llama"))
    assert {site.scale for site in plain.sites.values()} == {2.0}
    site = plain.sites["model.layers.0.self_attn.v_proj"]
    assert (site.a.shape, site.b.shape, site.shape) == ((4, 64), (32, 4), (32, 64))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("bert", "qwen2", "llama-dora")])
def test_what_is_written_for_peft_is_read_back(drawn_adapter, tmp_path, name):
    adapter = load_adapter_file(drawn_adapter(name))
    save_peft_safetensors(adapter, tmp_path / "first")
    save_peft_safetensors(load_adapter_file(tmp_path / "first"), tmp_path / "second")
    back = load_adapter_file(tmp_path / "first")
    assert back.base_model == adapter.base_model
    for module, site in adapter.sites.items():
        other = back.sites[module]
        assert other.a.tobytes() == site.a.tobytes()
        assert other.b.tobytes() == site.b.tobytes()
        assert other.scale == pytest.approx(site.scale, rel=1e-12)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_magnitudes_are_written_for_peft(drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama-dora"))
    layers = LoraAdapter({name: site for name, site in adapter.sites.items() if name != "lm_head"})
    back = load_adapter_file(save_peft_safetensors(layers, tmp_path / "dora"))
    assert back.sha256 == layers.sha256
    with pytest.raises(UnsupportedError, match="merge_adapter"):
        save_peft_safetensors(adapter, tmp_path / "whole")
    with pytest.raises(UnsupportedError, match="merge it first"):
        blend([(layers, 1.0)])


@pytest.mark.parametrize("name", ["llama", "llama-all-linear"])
def test_mlx_has_transposed_matrices_and_one_scale(drawn_adapter, tmp_path, name):
    adapter = load_adapter_file(drawn_adapter(name))
    save_mlx(adapter, tmp_path / "mlx")
    config = json.loads((tmp_path / "mlx" / "adapter_config.json").read_text())
    rank = max(site.rank for site in adapter.sites.values())
    assert config["lora_parameters"]["rank"] == rank
    assert config["num_layers"] == -1
    tensors = load_file(tmp_path / "mlx" / "adapters.safetensors")
    assert tensors["model.layers.1.self_attn.v_proj.lora_a"].shape == (64, rank)
    assert tensors["model.layers.1.self_attn.v_proj.lora_b"].shape == (rank, 32)
    back = load_adapter_file(tmp_path / "mlx")
    for module, site in adapter.sites.items():
        other = back.sites[module]
        assert np.allclose(other.scale * (other.b @ other.a), site.scale * (site.b @ site.a), atol=1e-7)
    if name == "llama":
        assert back.sha256 == adapter.sha256


def test_an_adapter_of_mlx_lm_is_read(tmp_path):
    a, b = np.arange(12, dtype=np.float32).reshape(6, 2), np.ones((2, 4), np.float32)
    name = "model.layers.3.self_attn.q_proj"
    save_file({f"{name}.lora_a": a, f"{name}.lora_b": b}, tmp_path / "adapters.safetensors")
    settings = {"rank": 2, "scale": 20.0, "dropout": 0.0}
    write_mlx = lambda **fields: (tmp_path / "adapter_config.json").write_text(  # noqa: E731
        json.dumps({"fine_tune_type": "lora", "num_layers": 4, "lora_parameters": settings, "model": "base"} | fields)
    )
    write_mlx()
    site = load_adapter_file(tmp_path).sites[name]
    assert site.scale == 20.0
    assert np.array_equal(site.a, a.T)
    assert np.array_equal(site.b, b.T)
    for fields, error, message in (
        ({"fine_tune_type": "full"}, UnsupportedError, "'full'"),
        ({"fine_tune_type": "dora"}, CheckpointError, "magnitudes"),
        ({"lora_parameters": settings | {"rank": 3}}, CheckpointError, "rank 3"),
        ({"lora_parameters": settings | {"scale": "x"}}, ModelConfigError, "scale"),
        ({"lora_parameters": settings | {"alpha": 16}}, UnsupportedError, "alpha"),
        ({"lora_parameters": []}, ModelConfigError, "lora_parameters"),
    ):
        write_mlx(**fields)
        with pytest.raises(error, match=message):
            load_adapter_file(tmp_path)


def test_the_digest_is_of_the_content(drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    write(tmp_path / "other", base_model_name_or_path="another/name")
    assert load_adapter_file(tmp_path / "other").sha256 == adapter.sha256
    write(tmp_path / "louder", lora_alpha=9)
    assert load_adapter_file(tmp_path / "louder").sha256 != adapter.sha256
    write(
        tmp_path / "moved", tensors=lambda tensors: tensors | {f"{PREFIX}.lora_B.weight": np.ones((64, 4), np.float32)}
    )
    assert load_adapter_file(tmp_path / "moved").sha256 != adapter.sha256
    stems = {name.removeprefix("model."): site for name, site in adapter.sites.items()}
    assert LoraAdapter(stems).sha256 == adapter.sha256


def test_an_adapter_is_pickled(drawn_adapter):
    adapter = load_adapter_file(drawn_adapter("llama-dora"))
    back = pickle.loads(pickle.dumps(adapter))
    assert back.sha256 == adapter.sha256
    assert (back.base_model, back.source) == (adapter.base_model, adapter.source)


def test_a_blend_is_the_sum_of_the_updates(drawn_adapter):
    first, second = (load_adapter_file(drawn_adapter(name)) for name in ("llama", "llama-all-linear"))
    both = blend([(first, 0.25), (second, -3.0), (first, 1.0)])
    assert set(both.sites) == set(first.sites) | set(second.sites)
    for module, site in both.sites.items():
        expected = np.zeros(site.shape)
        for adapter, weight in ((first, 1.25), (second, -3.0)):
            if module in adapter.sites:
                part = adapter.sites[module]
                expected += weight * part.scale * (part.b.astype(np.float64) @ part.a)
        assert np.abs(site.scale * (site.b.astype(np.float64) @ site.a) - expected).max() <= 1e-6
    assert both.sites["model.layers.1.self_attn.q_proj"].rank == 4 + 6 + 4


def test_adapters_that_have_no_sum_are_refused(drawn_adapter):
    adapter = load_adapter_file(drawn_adapter("llama"))
    other = dataclasses.replace(adapter, base_model="another")
    for pairs, error, message in (
        ([], InvalidInputError, "one or more"),
        ([(adapter, float("nan"))], InvalidInputError, "weight"),
        ([(adapter, "1")], InvalidInputError, "weight"),
        ([adapter], InvalidInputError, "no pair"),
        ([(adapter, 1), (other, 1)], UnsupportedError, "different bases"),
        ([(adapter, 1)] * 1025, InvalidInputError, "rank 4,100"),
        (
            [(LoraAdapter({"x": LoraSite(np.ones((1, n)), np.ones((2, 1)), 1.0)}), 1) for n in (2, 3)],
            InvalidInputError,
            "shapes",
        ),
    ):
        with pytest.raises(error, match=message):
            blend(pairs)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"peft_type": "LOHA"}, UnsupportedError, "'LOHA'.*merge_and_unload"),
        ({"peft_type": 3}, ModelConfigError, "peft_type"),
        ({"r": 0}, ModelConfigError, "r: 0"),
        ({"r": 5000}, ModelConfigError, "4,096"),
        ({"r": True}, ModelConfigError, "not an integer"),
        ({"r": 8}, CheckpointError, "rank 4, and .* says 8"),
        ({"lora_alpha": "16"}, ModelConfigError, "lora_alpha"),
        ({"lora_alpha": 1e31}, ModelConfigError, "lora_alpha"),
        ({"rank_pattern": {"q_proj": 0}}, ModelConfigError, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 5}}, CheckpointError, "rank_pattern"),
        ({"rank_pattern": {"(": 4}}, ModelConfigError, "regular expression"),
        ({"rank_pattern": {"(a+)+b": 4}}, UnsupportedError, "very long"),
        ({"alpha_pattern": []}, ModelConfigError, "alpha_pattern"),
        ({"alpha_pattern": {str(n): 1 for n in range(5000)}}, ModelConfigError, "at most 4,096"),
        ({"target_modules": ["x"] * 10_001}, ModelConfigError, "at most 10,000"),
        ({"alpha_pattern": {"q_proj": None}}, ModelConfigError, "alpha_pattern"),
        ({"use_rslora": 1}, ModelConfigError, "use_rslora"),
        ({"target_modules": []}, ModelConfigError, "target_modules"),
        ({"target_modules": [1]}, ModelConfigError, "target_modules"),
        ({"target_modules": ["q_proj"]}, CheckpointError, r"\(3\): .*layers\.2\.self_attn\.v_proj"),
        ({"target_modules": ["q_proj", "v_proj", "up_proj"]}, CheckpointError, r"no pair for \(1\): up_proj"),
        ({"target_modules": r".*q_proj"}, CheckpointError, "does not choose"),
        ({"target_modules": "(.*)*_proj"}, UnsupportedError, "very long"),
        ({"target_modules": "x" * 5000}, UnsupportedError, "5,000 characters"),
        ({"exclude_modules": ["v_proj"]}, CheckpointError, "does not choose"),
        ({"exclude_modules": "["}, ModelConfigError, "regular expression"),
        ({"layers_to_transform": [0, 1]}, CheckpointError, r"does not choose.*\(2\).*layers\.2"),
        ({"layers_to_transform": "all"}, ModelConfigError, "layers_to_transform"),
        ({"layers_to_transform": [0, 1, 2], "layers_pattern": "blocks"}, CheckpointError, "does not choose"),
        ({"bias": "some"}, ModelConfigError, "bias"),
        ({"use_dora": True}, CheckpointError, "use_dora is true"),
        ({"lora_bias": True}, CheckpointError, "lora_bias is true"),
        ({"modules_to_save": ["head"]}, CheckpointError, r"modules_to_save.*\(1\): head"),
        ({"modules_to_save": "head"}, ModelConfigError, "modules_to_save"),
        ({"fan_in_fan_out": "no"}, ModelConfigError, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedError, "changing the base"),
        ({"init_lora_weights": "olora"}, UnsupportedError, "changing the base"),
        ({"init_lora_weights": "loftq"}, UnsupportedError, "changing the base"),
        ({"init_lora_weights": 3}, ModelConfigError, "init_lora_weights"),
        ({"trainable_token_indices": [1]}, UnsupportedError, "trainable_token_indices"),
        ({"target_parameters": ["experts.up"]}, UnsupportedError, "target_parameters"),
        ({"layer_replication": [[0, 1]]}, UnsupportedError, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, UnsupportedError, "aLoRA"),
        ({"use_qalora": True}, UnsupportedError, "QALoRA"),
        ({"a_field_of_tomorrow": 1}, UnsupportedError, "a_field_of_tomorrow"),
        ({"base_model_name_or_path": 3}, ModelConfigError, "base_model_name_or_path"),
    ],
)
def test_fields_that_are_wrong_or_not_built_are_refused(tmp_path, fields, error, message):
    with pytest.raises(error, match=message):
        load_adapter_file(write(tmp_path / "adapter", **fields))


@pytest.mark.parametrize("name", ["(x|(y|z)+)*", "(a|a)*", "((.*)){9}", ".*" * 7, r"(?:\w+\.)+q_proj", r"(.)\1*"])
def test_expressions_that_could_take_very_long_are_refused(tmp_path, name):
    with pytest.raises((UnsupportedError, CheckpointError), match="very long"):
        load_adapter_file(write(tmp_path / "adapter", target_modules=name))


def test_every_field_of_peft_is_used_without_effect_or_refused():
    fields = [*FIELDS_USED, *FIELDS_WITHOUT_EFFECT, *FIELDS_REFUSED]
    assert len(fields) == len(set(fields))
    assert set(fields) >= set(CASES["llama"]["config"])
    page = (Path(__file__).parents[4] / "docs" / "adapters.md").read_text(encoding="utf-8")
    table = page.partition("## Fields of LoraConfig")[2]
    assert [name for name in fields if f"`{name}`" not in table] == []


def without(*keys):
    return lambda tensors: {key: array for key, array in tensors.items() if key not in keys}


def with_array(key, array):
    return lambda tensors: tensors | {key: array}


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        (without(f"{PREFIX}.lora_B.weight"), CheckpointError, "half a pair.*its B is missing"),
        (without(f"{PREFIX}.lora_A.weight"), CheckpointError, "half a pair.*its A is missing"),
        (lambda tensors: {"x.weight": np.ones((2, 2), np.float32)}, CheckpointError, r"\(1\): x\.weight"),
        (lambda tensors: {}, CheckpointError, "holds no pair"),
        (with_array("left.over", np.ones(2, np.float32)), CheckpointError, r"\(1\): left\.over"),
        (with_array(f"{PREFIX}.lora_A.weight", np.full((4, 64), np.nan, np.float32)), CheckpointError, "NaN|finite"),
        (with_array(f"{PREFIX}.lora_A.weight", np.full((4, 64), np.inf, np.float16)), CheckpointError, "NaN|finite"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones((4, 8, 8), np.float32)), CheckpointError, "two dimensions"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones(4, np.float32)), CheckpointError, "two dimensions"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones((3, 64), np.float32)), CheckpointError, "no pair"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones((4, 64), np.int32)), CheckpointError, "I32"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones((4097, 1), np.float32)), CheckpointError, "largest rank"),
        (with_array(f"{PREFIX}.lora_A.weight", np.ones((4, 0), np.float32)), CheckpointError, "inputs"),
        (
            with_array("base_model.model.model.embed_tokens.lora_embedding_A", np.ones((4, 8), np.float32)),
            UnsupportedError,
            "embeddings",
        ),
        (
            with_array("base_model.model.model.embed_tokens.weight", np.ones((4, 8), np.float32)),
            UnsupportedError,
            "embed",
        ),
        (
            with_array(f"base_model.model.{'x' * 600}.lora_A.weight", np.ones((4, 8), np.float32)),
            CheckpointError,
            "xxx",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, tensors, error, message):
    with pytest.raises(error, match=message):
        load_adapter_file(write(tmp_path / "adapter", tensors=tensors))


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        # an "all-linear" of a RoBERTa classifier: PEFT lists the head's linears, and saves the head whole
        (
            {"target_modules": ["q_proj", "v_proj", "out_proj"], "modules_to_save": ["classifier"]},
            {"base_model.model.classifier.out_proj.weight": np.ones((2, 8), np.float32)},
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "lm_head"], "modules_to_save": ["lm_head"]},
            {"base_model.model.lm_head.weight": np.ones((2, 8), np.float32)},
        ),
        ({"target_modules": ["q_proj", "v_proj", "layers.7.mlp.up_proj"], "layers_to_transform": [0, 1, 2]}, {}),
        ({"target_modules": ["q_proj", "v_proj", "up_proj"], "exclude_modules": ["up_proj"]}, {}),
    ],
)
def test_targets_that_peft_leaves_out_need_no_pair(tmp_path, fields, tensors):
    directory = write(tmp_path / "adapter", tensors=lambda known: known | tensors, **fields)
    assert len(load_adapter_file(directory).sites) == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "v_proj", "up_proj"]},
        {"target_modules": ["q_proj", "v_proj", "up_proj"], "layers_to_transform": [0, 1, 2]},
        {"target_modules": ["q_proj", "v_proj", "layers.0.mlp.up_proj"], "layers_to_transform": [0, 1, 2]},
        {"target_modules": ["q_proj", "v_proj", "up_proj"], "exclude_modules": ["down_proj"]},
    ],
)
def test_other_targets_need_one(tmp_path, fields):
    with pytest.raises(
        CheckpointError, match=r"no pair for \(1\): .*up_proj\. Remedy: if the base has no such modules"
    ):
        load_adapter_file(write(tmp_path / "adapter", **fields))


def test_files_that_are_missing_or_damaged_are_refused(tmp_path, drawn_adapter):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        load_adapter_file(tmp_path / "nowhere")
    directory = write(tmp_path / "adapter")
    weights = directory / "adapter_model.safetensors"
    assert load_adapter_file(weights).sha256 == load_adapter_file(directory).sha256
    content = weights.read_bytes()
    for end in (0, 4, 100, len(content) - 1):
        weights.write_bytes(content[:end])
        with pytest.raises(CheckpointError):
            load_adapter_file(directory)
    weights.unlink()
    with pytest.raises(ModelNotFoundError, match="is missing"):
        load_adapter_file(directory)
    (directory / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelNotFoundError, match="a pickle that is not read"):
        load_adapter_file(directory)
    for text in ("", "[]", "{", '{"peft_type": NaN}', "{}"):
        (directory / "adapter_config.json").write_text(text)
        with pytest.raises(ModelConfigError):
            load_adapter_file(directory)
    (directory / "adapter_config.json").unlink()
    with pytest.raises(ModelNotFoundError, match="without it the scale is not known"):
        load_adapter_file(directory)


def test_adapters_that_cannot_be_are_refused():
    a, b = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    for arguments, message in (
        ((a, b, float("nan")), "scale"),
        ((a, b, float("inf")), "scale"),
        ((a, b, 1e39), "scale"),
        ((a, b, "1"), "scale"),
        ((a, b.T, 1.0), "no pair"),
        ((a[0], b, 1.0), "dimensions"),
        ((a.astype(int), b, 1.0), "floats"),
        ((a * np.nan, b, 1.0), "NaN"),
        ((a, b, 1.0, np.ones(3, np.float32)), "magnitude"),
        ((a, b, 1.0, None, np.ones(3, np.float32)), "bias"),
        ((a[:0], b[:, :0], 1.0), "rank"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            LoraSite(*arguments)
    site = LoraSite(a, b, 1)
    a[0, 0] = 5
    assert site.a[0, 0] == 1  # later writes of the caller do not reach it
    for sites in ({}, {"x": 1}, {1: site}, [], {"model.layers.0.x": site, "layers.0.x": site}):
        with pytest.raises(InvalidInputError):
            LoraAdapter(sites)


def test_importing_the_package_imports_nothing_of_this():
    code = "import sys, lattice_inference; print([name for name in sys.modules if 'lora' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
