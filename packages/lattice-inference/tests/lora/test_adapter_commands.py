"""``lattice merge-adapter``, ``lattice inspect`` of an adapter, and ``--adapter`` of commands that run a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from lattice_inference import GenerateConfig, Session, load_model, perplexity
from lattice_inference.cli import main
from lattice_inference.lora import (
    LoraAdapter,
    LoraSite,
    blend,
    load_adapter_file,
    merge_adapter,
    save_gguf,
    save_peft_safetensors,
)
from tiny_decoders import write_drawn_model


def run_json(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_merging_by_command_is_merging_by_call(capsys, drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    report = run_json(
        capsys, "merge-adapter", drawn_base("llama"), drawn_adapter("llama"), "--output", tmp_path / "a", "--json"
    )
    expected = merge_adapter(drawn_base("llama"), adapter, tmp_path / "b")
    assert report["merged"] == 6
    assert report["adapter_sha256"] == adapter.sha256
    assert report["kept_by_site"] == dict(expected.kept_by_site)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_several_adapters_are_added_up_and_taken_out(capsys, drawn_base, drawn_adapter, tmp_path):
    first, second = drawn_adapter("llama"), drawn_adapter("llama-all-linear")
    command = ["merge-adapter", drawn_base("llama"), f"{first}:0.5", second, "--output", tmp_path / "a"]
    assert main([str(part) for part in command]) == 0
    assert "rounding kept 100.00%" in capsys.readouterr().out
    both = blend([(load_adapter_file(first), 0.5), (load_adapter_file(second), 1)])
    merge_adapter(drawn_base("llama"), both, tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    command = ["merge-adapter", tmp_path / "a", f"{first}:0.5", second, "--output", tmp_path / "c", "--unmerge"]
    assert main([str(part) for part in command]) == 0
    before, after = (load_file(path / "model.safetensors") for path in (drawn_base("llama"), tmp_path / "c"))
    assert all(abs(before[name] - after[name]).max() <= 1e-6 for name in before)


@pytest.mark.parametrize("form", ["peft", "gguf"])
def test_inspect_says_what_an_adapter_is(capsys, drawn_base, drawn_adapter, tmp_path, form):
    path = drawn_adapter("llama")
    if form == "gguf":
        path = save_gguf(load_adapter_file(path), tmp_path / "adapter.gguf", base=drawn_base("llama"))
    report = run_json(capsys, "inspect", path, "--json")
    assert report["adapter"]["sites"] == 6
    assert report["adapter"]["ranks"] == "4"
    assert report["adapter"]["scales"] == "2"
    assert report["adapter"]["modules"] == "q_proj (3), v_proj (3)"
    assert report["adapter"]["base_model"] == "drawn/llama"
    assert report["adapter"]["sha256"] == load_adapter_file(path).sha256
    assert report["tensor_count"] == 12
    assert main(["inspect", str(path)]) == 0
    assert "LoRA adapter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{base}", "{adapter}", "--output", "{new}", "--type", "Q8_0"], 2, "dtype"),
        (["{base}", "{adapter}", "--output", "{base}"], 2, "source itself"),
        (["{base}", "{adapter}:inf", "--output", "{new}"], 2, "finite"),
        (["{base}", "{base}", "--output", "{new}"], 1, "without it the scale is not known"),
        (["{adapter}", "{adapter}", "--output", "{new}"], 1, "describes an adapter"),
    ],
)
def test_mistakes_are_one_line(capsys, drawn_base, drawn_adapter, tmp_path, arguments, status, message):
    places = {"base": drawn_base("llama"), "adapter": drawn_adapter("llama"), "new": tmp_path / "new"}
    assert main(["merge-adapter", *(argument.format(**places) for argument in arguments)]) == status
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_commands_run_a_model_with_an_adapter(capsys, tmp_path):
    directory = write_drawn_model(tmp_path / "model", context=1024)
    with load_model(directory) as model:
        sites = {
            name: LoraSite(np.full((2, inputs), 0.2, np.float32), np.full((outputs, 2), 0.3, np.float32), 1.0)
            for name, (outputs, inputs) in model.adapter_sites.items()
            if name.endswith("o_proj")
        }
        save_peft_safetensors(LoraAdapter(sites), tmp_path / "mine")
        model.load_adapter(tmp_path / "mine")
        with Session(model, adapter="mine") as session:
            expected = session.generate("a text", GenerateConfig.greedy(5)).token_ids
        nll = perplexity(model, "a text", adapter="mine").nll
    text = tmp_path / "text"
    text.write_text("a text")
    common = ["--model", directory, "--adapter", tmp_path / "mine", "--json"]
    generated = run_json(
        capsys, "generate", *common, "--temperature", 0, "--repetition-penalty", 1, "--max-tokens", 5, "a text"
    )
    assert tuple(generated["token_ids"]) == expected
    assert run_json(capsys, "perplexity", *common, text)["nll"] == nll
    assert run_json(capsys, "compare-logits", *common, text)["max_kl"] > 0
    assert main(["generate", "--model", str(directory), "--adapter", str(tmp_path / "none"), "a"]) != 0
    assert "none" in capsys.readouterr().err
