"""Qwen3.5: against transformers and llama.cpp, in every form of file, and bit for bit in any chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qwen3_files
import qwen35_files as files
from drawn_adapters import adapter_of_linears
from drawn_checkpoints import draw_ids
from lattice_inference import Extension, LoraAdapter, load_model, merge_adapter
from lattice_inference.backends.cpu import _cpu
from lattice_inference.errors import UnsupportedError
from lattice_inference.lora import save_gguf
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.models.opened_model import open_model
from lattice_inference.quantize import Calibrator, quantize_gguf, quantize_int8
from qwen35_gguf import write_gguf_py

FOLDER = Path(__file__).parents[1] / "data" / "qwen35"
OUTPUTS = FOLDER / "outputs.npz"
LLAMA_CPP = json.loads((FOLDER / "llama_cpp.json").read_text())["cases"]
#: Widths that hold whole blocks of every format that is tested.
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "moe_intermediate_size": 96}
WIDE |= {"shared_expert_intermediate_size": 64, "linear_value_head_dim": 32}
WIDE["rope_parameters"] = files.text_of({})["rope_parameters"] | {"mrope_section": [3, 3, 2]}


def all_logits(model, ids, chunks=(), **options):
    rows, start = [], 0
    with model.open_cache(tokens=len(ids), **options) as cache:
        sequence = cache.sequence()
        for count in [*chunks, len(ids)]:
            if start < len(ids):
                rows.append(model.forward([Extension(sequence, ids[start : start + count], "all")]))
                start += count
    return np.concatenate(rows)


def ids_of(name, length=5000):
    return draw_ids(f"qwen3.5:{name}", length, files.VOCAB)


@pytest.fixture(scope="module")
def outputs():
    with np.load(OUTPUTS) as stored:
        return dict(stored)


@pytest.mark.parametrize("form", ["text", "vision", "gguf"])
@pytest.mark.parametrize("name", list(files.CASES))
def test_logits_equal_those_of_transformers_at_every_length(tmp_path, outputs, name, form):
    path = files.write(tmp_path / "m", files.CASES[name], with_vision=form == "vision", fused=form == "vision")
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)
    with load_model(path) as model:
        got = all_logits(model, ids_of(name)[:200], dtype="float32")
    assert np.isfinite(got).all()
    assert np.abs(got - outputs[f"logits-{name}"][:200]).max() <= 1e-4


def test_qwen3_next_is_the_same_network(tmp_path, outputs):
    ids = ids_of("next")[:200]
    with load_model(files.write(tmp_path / "m", files.NEXT, fused=True)) as model:
        got = all_logits(model, ids, dtype="float32")
        assert np.abs(got - outputs["logits-next"][:200]).max() <= 1e-4
        assert all_logits(model, ids[:60], [1] * 60, dtype="float32").tobytes() == got[:60].tobytes()
    directory = files.write(tmp_path / "n", files.NEXT | {"mlp_only_layers": []})  # as GGUF files have them
    path = write_gguf_py(tmp_path / "n.gguf", directory, with_tokenizer=False)
    with load_model(path) as model, load_model(directory) as same:
        wanted = all_logits(same, ids, dtype="float32")
        assert np.abs(all_logits(model, ids, dtype="float32") - wanted).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", list(files.CASES))
def test_logits_equal_those_of_transformers_after_long_texts(tmp_path, outputs, name):
    ids = ids_of(name)
    directory = files.write(tmp_path / "m", files.CASES[name])
    with load_model(directory) as model, model.open_cache(tokens=len(ids), dtype="float32") as cache:
        sequence = cache.sequence()
        at_thousand = model.forward([Extension(sequence, ids[:1000])])
        at_end = model.forward([Extension(sequence, ids[1000:])])
    assert np.abs(np.concatenate([at_thousand, at_end]) - outputs[f"logits-{name}"][200:]).max() <= 1e-4


@pytest.mark.parametrize("name", list(files.CASES))
def test_logits_are_those_of_the_reference_in_float64(tmp_path, name):
    directory, ids = files.write(tmp_path / "m", files.CASES[name]), ids_of(name, 100)
    with load_model(directory) as model, load_model(directory, backend="reference") as reference:
        exact = all_logits(reference, ids, dtype="float32")
        assert np.abs(all_logits(model, ids, dtype="float32") - exact).max() <= 1e-5


@pytest.mark.parametrize("name", list(LLAMA_CPP))
def test_the_most_likely_tokens_are_those_of_llama_cpp(tmp_path, name):
    case = LLAMA_CPP[name]
    directory = files.write(tmp_path / "m", files.changes_for_llama_cpp(name), seed=case["seed"])
    for path in (write_gguf_py(tmp_path / "m.gguf", directory), directory):
        with load_model(path) as model, model.open_cache(tokens=64) as cache:
            sequence, tokens = cache.sequence(), list(case["prompt"])
            added = tokens
            for _ in case["tokens"]:
                added = [int(model.forward([Extension(sequence, added)])[0].argmax())]
                tokens += added
        assert tokens[len(case["prompt"]) :] == case["tokens"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["double", "experts"])
def test_chunks_and_company_change_no_bit(tmp_path, name, precision):
    directory, ids = files.write(tmp_path / "m", files.CASES[name]), draw_ids("chunks", 100, files.VOCAB)
    with load_model(directory, precision=precision, threads=2) as model:
        at_once = all_logits(model, ids)
        for chunks in ([1] * len(ids), [3, 1, 29, 40], [64, 1]):
            assert all_logits(model, ids, chunks).tobytes() == at_once.tobytes(), chunks
        with model.open_cache(tokens=300, sequences=3) as cache:
            others = [Extension(cache.sequence(), draw_ids(f"other{n}", n, files.VOCAB), "all") for n in (1, 70)]
            rows = model.forward([others[0], Extension(cache.sequence(), ids, "all"), others[1]])
        assert rows[1 : 1 + len(ids)].tobytes() == at_once.tobytes()


@pytest.mark.parametrize("name", ["triple", "experts"])
def test_the_level_and_the_threads_change_no_bit(tmp_path, monkeypatch, name):
    directory, ids = files.write(tmp_path / "m", files.CASES[name]), draw_ids("levels", 80, files.VOCAB)
    found = {}
    for isa in _cpu.available_isas():
        monkeypatch.setenv("LATTICE_ISA", isa)
        for threads in (1, 2):
            with load_model(directory, threads=threads) as model:
                found[isa, threads] = all_logits(model, ids).tobytes()
    for isa in _cpu.available_isas():
        assert found[isa, 1] == found[isa, 2], isa
    assert len({bits for (isa, _), bits in found.items() if isa != "baseline"}) == 1


@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["double", "experts"])
def test_quantized_files_give_the_same_bits_in_any_chunks(tmp_path, name, quantized):
    directory = files.write(tmp_path / "m", files.CASES[name] | WIDE)
    path = write_gguf_py(tmp_path / "m.gguf", directory, quantized=quantized, with_tokenizer=False)
    ids = draw_ids(quantized, 80, files.VOCAB)
    with load_model(path) as model, load_model(path, activations="float32") as exact:
        assert quantized in {weight.dtype for weight in model.weight_sizes if "attn_qkv" in weight.name}
        at_once, widened = all_logits(model, ids), all_logits(exact, ids)
        for chunks in ([1] * len(ids), [3, 1, 40]):
            assert all_logits(model, ids, chunks).tobytes() == at_once.tobytes(), chunks
    assert 0 < np.abs(at_once - widened).mean() < 0.2 * np.abs(widened).mean()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_our_quantizer_takes_the_file_and_leaves_kernels_and_routers(tmp_path, kind):
    directory = files.write(tmp_path / "m", files.CASES["experts"] | WIDE, with_mtp=True)
    exact = write_gguf_py(tmp_path / "exact.gguf", directory)
    quantize_gguf(exact, tmp_path / "small.gguf", kind)
    ids = draw_ids(kind, 50, files.VOCAB)
    with load_model(tmp_path / "small.gguf") as model, load_model(exact) as same:
        stored = {weight.name: weight.dtype for weight in model.weight_sizes}
        assert {dtype for name, dtype in stored.items() if "ssm_out" in name or "_exps" in name} == {kind}
        assert {dtype for name, dtype in stored.items() if "gate_inp" in name or "conv1d" in name} == {"float32"}
        difference = np.abs(all_logits(model, ids) - all_logits(same, ids)).mean()
    assert 0 < difference < 0.5
    with open_model(tmp_path / "small.gguf") as small:
        assert small.checkpoint.info("blk.0.ssm_conv1d.weight").dtype == "F32"


def test_int8_files_are_refused_by_name_and_calibrations_work(tmp_path):
    directory = files.write(tmp_path / "m", {"vocab_size": qwen3_files.SMALL_VOCAB})
    with pytest.raises(UnsupportedError, match="recurrent layers are not written to files"):
        quantize_int8(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with Calibrator(directory) as calibrator:
        calibrator.observe("some text to be seen " * 20)
        calibration = calibrator.calibration()
    ids = draw_ids("calibrated", 40, files.VOCAB)
    with load_model(directory, precision="int8", calibration=calibration) as model, load_model(directory) as exact:
        difference = np.abs(all_logits(model, ids) - all_logits(exact, ids)).mean()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("form", ["text", "vision", "gguf"])
def test_adapters_change_every_linear_beside_the_model_as_merged(tmp_path, form):
    same_heads = {"linear_num_value_heads": 2, "tie_word_embeddings": False}
    path = files.write(tmp_path / "m", same_heads, with_vision=form == "vision")
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path, with_tokenizer=False)
    ids = draw_ids("adapted", 40, files.VOCAB)
    with load_model(path) as model:
        linears = {name.split(".")[-1] for name in model.adapter_sites}
        assert {"q_proj", "o_proj", "in_proj_qkv", "in_proj_a", "out_proj", "down_proj", "lm_head"} <= linears
        adapter = adapter_of_linears("qwen3.5", model.adapter_sites, rank=2, scales=[0.5, 2.0])
        model.attach_adapter(adapter, "drawn")
        plain = all_logits(model, ids)
        with model.open_cache(tokens=64) as cache:
            beside = model.forward([Extension(cache.sequence(adapter="drawn"), ids, "all")])
    target = tmp_path / ("merged.gguf" if form == "gguf" else "merged")
    merge_adapter(path, adapter, target)
    with load_model(target) as model:
        merged = all_logits(model, ids)
    assert np.abs(plain - merged).max() > 0.1
    assert np.abs(beside - merged).max() < 1e-3


def test_adapters_of_value_heads_in_another_order_are_refused(tmp_path):
    directory = files.write(tmp_path / "m", {})
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False)
    with load_model(directory) as model:
        linears = model.adapter_sites
    whole = adapter_of_linears("order", linears, rank=2, scales=[1.0])
    of_attention = LoraAdapter({name: site for name, site in whole.sites.items() if "linear_attn" not in name})
    with load_model(path) as model:
        model.attach_adapter(of_attention, "attention")
        with pytest.raises(UnsupportedError, match="value heads have another order in GGUF files"):
            model.attach_adapter(whole, "whole")
    with pytest.raises(UnsupportedError, match="value heads have another order in GGUF files"):
        merge_adapter(path, whole, tmp_path / "merged.gguf")
    with pytest.raises(UnsupportedError, match="value heads have another order in GGUF files"):
        save_gguf(whole, tmp_path / "adapter.gguf", base=directory)


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_memory_counts_keys_of_the_layers_that_attend(tmp_path, form):
    path = files.write(tmp_path / "m", files.CASES["triple"], with_mtp=True)
    if form == "gguf":
        path = write_gguf_py(tmp_path / "m.gguf", path)
    need = estimate_memory(path, context=100)
    assert list(need.kv_layer_bytes) == [100 * 2 * 2 * 16 * 2] * 2  # keys and values of 2 heads of 16, two bytes each
