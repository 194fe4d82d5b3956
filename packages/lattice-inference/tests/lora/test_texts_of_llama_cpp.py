"""Texts with adapters in GGUF files: those that llama.cpp generates with the same files."""

from __future__ import annotations

import json

import pytest

from drawn_adapters import adapter_of_linears
from gguf_models import write_decoder_gguf
from lattice_inference import GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.lora import save_gguf

from .conftest import DATA

CASES = json.loads((DATA / "lora" / "llama_cpp.json").read_text())["cases"]


def check_texts(base, case, path):
    """The program that made the cases had llama.cpp read the adapter that is written here."""
    prompts = [text["prompt"] for text in case["texts"]]
    expected = [tuple(text["tokens"]) for text in case["texts"]]
    # llama.cpp, too, kept keys and values in float32
    with load_model(base, activations="float32") as model:
        drawn = {key: case[key] for key in ("name", "rank", "scales")}
        adapter = adapter_of_linears(linears=model.adapter_sites, **drawn)
        assert len(adapter.sites) == 7 * model.config.num_hidden_layers
        model.load_adapter(save_gguf(adapter, path, base=base), "drawn")
        with Session(model, config=SessionConfig(cache_dtype="float32")) as session:
            greedy = GenerateConfig.greedy(len(expected[0]))
            plain = session.generate_batch(prompts, greedy)
            results = session.generate_batch(prompts, greedy, adapter=["drawn"] * len(prompts))
    assert [result.token_ids for result in results] == expected
    assert sum(one.token_ids != other for one, other in zip(plain, expected, strict=True)) >= 3


def test_a_drawn_llama_generates_what_llama_cpp_does(drawn_base, tmp_path):
    base = write_decoder_gguf(tmp_path / "base.gguf", drawn_base("llama"), with_tokenizer=True)
    check_texts(base, CASES["drawn"], tmp_path / "adapter.gguf")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ["widened", "Q4_1"])
def test_smollm2_generates_what_llama_cpp_does_with_the_same_numbers(smollm2, tmp_path, name):
    check_texts(smollm2, CASES[name], tmp_path / "adapter.gguf")
