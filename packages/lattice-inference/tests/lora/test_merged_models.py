"""Adapters merged into models: against PEFT's own merge, and back again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_inference import load_cross_encoder, load_model
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.lora import LoraAdapter, LoraSite, blend, load_adapter_file, merge_adapter, unmerge

from .conftest import BASES, CASES, DATA

DECODERS = [name for name, case in CASES.items() if case["base"] != "cross-encoder-bert-logits"]


@pytest.fixture(scope="module")
def outputs():
    with np.load(DATA / "lora" / "outputs.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("name", DECODERS)
def test_merged_decoders_give_the_logits_of_peft(drawn_base, drawn_adapter, logits_of, outputs, tmp_path, name):
    base = CASES[name]["base"]
    report = merge_adapter(drawn_base(base), load_adapter_file(drawn_adapter(name)), tmp_path / "merged")
    got = logits_of(tmp_path / "merged", base)
    assert np.abs(got - outputs[name]).max() <= 1e-5
    assert np.abs(got - logits_of(drawn_base(base), base)).max() > 1e-3  # the adapter does something
    assert report.kept == pytest.approx(1, abs=1e-4)
    assert report.rounding_error <= 1e-4
    assert report.merged == sum(key.endswith("lora_A.weight") for key in CASES[name]["tensors"])


def test_a_merged_classifier_gives_the_logits_of_peft(drawn_base, drawn_adapter, outputs, tmp_path):
    base = CASES["bert"]["base"]
    report = merge_adapter(drawn_base(base), load_adapter_file(drawn_adapter("bert")), tmp_path / "merged")
    with load_cross_encoder(tmp_path / "merged") as model:
        got = model.score_pairs(BASES[base]["pairs"][:2], activation="identity")
    assert np.abs(np.asarray(got).reshape(-1) - outputs["bert"].reshape(-1)).max() <= 1e-5
    plain = [key for key in CASES["bert"]["tensors"] if "lora_" not in key and ".classifier." not in key]
    assert report.replaced == len(plain) + 2  # PEFT stores the bias of the head three times


def test_unmerging_gives_the_base_back(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    merge_adapter(drawn_base("llama"), adapter, tmp_path / "merged")
    unmerge(tmp_path / "merged", adapter, tmp_path / "back")
    before, merged, after = (
        load_file(path / "model.safetensors") for path in (drawn_base("llama"), tmp_path / "merged", tmp_path / "back")
    )
    name = "model.layers.1.self_attn.q_proj.weight"
    assert np.abs(merged[name] - before[name]).max() > 1e-3
    for key, array in before.items():
        assert np.abs(after[key] - array).max() <= 1e-7
        if "q_proj" not in key and "v_proj" not in key:
            assert after[key].tobytes() == array.tobytes() == merged[key].tobytes()


@pytest.mark.parametrize("name", ["llama-dora", "bert"])
def test_what_cannot_be_taken_out_is_refused(drawn_base, drawn_adapter, tmp_path, name):
    with pytest.raises(UnsupportedError, match="keep the base's files"):
        unmerge(drawn_base(CASES[name]["base"]), load_adapter_file(drawn_adapter(name)), tmp_path / "back")
    assert not list(tmp_path.iterdir())


def test_merging_a_blend_is_the_sum_of_both_updates(drawn_base, drawn_adapter, tmp_path):
    first, second = (load_adapter_file(drawn_adapter(name)) for name in ("llama", "llama-all-linear"))
    merge_adapter(drawn_base("llama"), blend([(first, 0.5), (second, -2)]), tmp_path / "merged")
    before, after = (load_file(path / "model.safetensors") for path in (drawn_base("llama"), tmp_path / "merged"))
    for key, array in before.items():
        expected = array.astype(np.float64)
        for adapter, weight in ((first, 0.5), (second, -2)):
            site = adapter.sites.get(key.removesuffix(".weight"))
            if site is not None:
                expected = expected + weight * site.scale * (site.b.astype(np.float64) @ site.a)
        assert np.abs(after[key] - expected).max() <= 1e-6


def test_a_coarse_type_says_how_much_of_the_update_it_kept(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    faint = blend([(adapter, 1e-4)])
    whole = merge_adapter(drawn_base("llama"), faint, tmp_path / "float32")
    coarse = merge_adapter(drawn_base("llama"), faint, tmp_path / "bfloat16", dtype="BF16")
    assert whole.rounding_error < 0.1
    assert coarse.rounding_error > 1
    assert coarse.tensors == {"BF16": 6}
    assert set(coarse.kept_by_site) == set(adapter.sites)
    stored = load_file(drawn_base("llama") / "model.safetensors")
    directory = tmp_path / "bfloat16-base"
    shutil.copytree(drawn_base("llama"), directory)
    halves = {name: array.astype(np.float16) for name, array in stored.items()}
    save_file(halves, directory / "model.safetensors")
    lost = merge_adapter(directory, blend([(adapter, 1e-6)]), tmp_path / "lost")
    assert lost.kept < 0.2  # most numbers round back to what they were
    assert lost.tensors == {"F16": 6}


def test_adapters_for_another_base_are_refused_and_what_does_not_fit_is_listed(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    with pytest.raises(InvalidInputError, match=r"shapes differ.*\(6 of 6\).*layers\.2\.self_attn\.v_proj"):
        merge_adapter(drawn_base("qwen3"), load_adapter_file_with_fewer_inputs(adapter), tmp_path / "out")
    with pytest.raises(InvalidInputError, match=r"does not have.*\(6 of 6\).*layers\.0\.self_attn\.q_proj"):
        merge_adapter(drawn_base("cross-encoder-bert-logits"), adapter, tmp_path / "out")
    deep = LoraAdapter({"model.layers.3.mlp.up_proj": LoraSite(np.ones((1, 64)), np.ones((96, 1)), 1.0)})
    with pytest.raises(InvalidInputError, match=r"\(1 of 1\): model\.layers\.3\.mlp\.up_proj"):
        merge_adapter(drawn_base("llama"), deep, tmp_path / "out")
    head = LoraAdapter({"lm_head": LoraSite(np.ones((1, 64)), np.ones((128, 1)), 1.0)})
    with pytest.raises(UnsupportedError, match="tie_word_embeddings"):
        merge_adapter(drawn_base("qwen2"), head, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def load_adapter_file_with_fewer_inputs(adapter):
    sites = {name: LoraSite(site.a[:, :32], site.b, site.scale) for name, site in adapter.sites.items()}
    return LoraAdapter(sites)


def test_biases_that_the_base_does_not_have_are_refused(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("qwen2"))
    sites = {name: site for name, site in adapter.sites.items() if "layers" in name}
    with pytest.raises(InvalidInputError, match=r"q_proj\.bias"):
        merge_adapter(drawn_base("llama"), LoraAdapter(sites), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_sum_beyond_float32_is_refused(drawn_base, tmp_path):
    site = LoraSite(np.full((1, 64), 3e38, np.float32), np.full((64, 1), 3e38, np.float32), 1.0)
    with pytest.raises(CheckpointError, match="not finite in float32"):
        merge_adapter(drawn_base("llama"), LoraAdapter({"model.layers.0.self_attn.q_proj": site}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_outputs_that_would_overwrite_something_are_refused(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    base = tmp_path / "base"
    shutil.copytree(drawn_base("llama"), base)
    with pytest.raises(InvalidInputError, match="source itself"):
        merge_adapter(base, adapter, base, overwrite=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidInputError, match=r"holds no config\.json"):
        merge_adapter(base, adapter, tmp_path / "other", overwrite=True)
    merge_adapter(base, adapter, tmp_path / "merged")
    with pytest.raises(InvalidInputError, match="exists"):
        merge_adapter(base, adapter, tmp_path / "merged")
    merge_adapter(base, adapter, tmp_path / "merged", overwrite=True)
    with pytest.raises(InvalidInputError, match="dtype"):
        merge_adapter(base, adapter, tmp_path / "small", dtype="Q8_0")
    with pytest.raises(InvalidInputError, match="does not exist"):
        merge_adapter(base, adapter, tmp_path / "nowhere" / "merged")


def test_a_model_with_an_adapter_in_its_folder_is_refused_as_base_and_as_model(drawn_base, drawn_adapter, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(drawn_base("llama"), base)
    (base / "adapter_config.json").write_text(json.dumps(CASES["llama"]["config"]))
    with pytest.raises(UnsupportedError, match="describes an adapter"):
        merge_adapter(base, load_adapter_file(drawn_adapter("llama")), tmp_path / "merged")
    with pytest.raises(UnsupportedError, match="describes an adapter"):
        load_model(base)
