"""Bases in shards, in GGUF files of each family, and with int8 weights."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lattice_inference import load_encoder
from lattice_inference.errors import UnsupportedError
from lattice_inference.lora import LoraAdapter, LoraSite, load_adapter_file, merge_adapter, save_gguf
from lattice_inference.quantize import export_bert_gguf, quantize_int8
from qwen3_gguf import write_gguf_py

TEXTS = ["the cat sat on the mat", "dogs"]


def test_a_base_in_shards_becomes_one_file(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    base = tmp_path / "base"
    shutil.copytree(drawn_base("llama"), base)
    tensors = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, base / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    merge_adapter(base, adapter, tmp_path / "merged")
    merge_adapter(drawn_base("llama"), adapter, tmp_path / "expected")
    merged, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "expected"))
    assert merged.keys() == expected.keys()
    assert all(merged[name].tobytes() == expected[name].tobytes() for name in merged)
    assert not list((tmp_path / "merged").glob("*.index.json"))


def test_qwen3_in_a_gguf_file_gives_the_logits_of_its_directory(drawn_base, drawn_adapter, logits_of, tmp_path):
    adapter = load_adapter_file(drawn_adapter("qwen3"))
    plain = tmp_path / "plain"
    shutil.copytree(drawn_base("qwen3"), plain)
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | config["rope_parameters"]))  # where the writer looks
    base = write_gguf_py(tmp_path / "base.gguf", plain, with_tokenizer=False)
    written = load_adapter_file(save_gguf(adapter, tmp_path / "adapter.gguf", base=base))
    assert written.row_order == "half"
    assert written.architecture == "qwen3"
    merge_adapter(base, written, tmp_path / "merged.gguf")
    merge_adapter(drawn_base("qwen3"), adapter, tmp_path / "merged")
    from_file, from_directory = (logits_of(tmp_path / name, "qwen3") for name in ("merged.gguf", "merged"))
    assert np.abs(from_file - from_directory).max() <= 1e-5
    assert np.abs(from_file - logits_of(base, "qwen3")).max() > 1e-3


def test_bert_in_a_gguf_file_gives_the_vectors_of_its_directory(drawn_base, tmp_path):
    base = drawn_base("all-minilm-l6-v2")
    width = json.loads((base / "config.json").read_text())["hidden_size"]
    rng = np.random.default_rng(3)
    sites = {
        name: LoraSite(rng.normal(size=(2, inputs)), 0.1 * rng.normal(size=(outputs, 2)), 1.0)
        for name, outputs, inputs in (
            ("encoder.layer.0.attention.self.query", width, width),
            ("encoder.layer.1.intermediate.dense", 4 * width, width),
            ("encoder.layer.1.output.dense", width, 4 * width),
        )
    }
    adapter = LoraAdapter(sites)
    export_bert_gguf(base, tmp_path / "base.gguf", "F32")
    save_gguf(adapter, tmp_path / "adapter.gguf", base=base)
    merge_adapter(tmp_path / "base.gguf", load_adapter_file(tmp_path / "adapter.gguf"), tmp_path / "merged.gguf")
    merge_adapter(base, adapter, tmp_path / "merged")
    vectors = []
    for name in ("merged.gguf", "merged", "base.gguf"):
        with load_encoder(tmp_path / name) as encoder:
            vectors.append(encoder.encode(TEXTS).vectors)
    assert np.abs(vectors[0] - vectors[1]).max() <= 1e-5
    assert np.abs(vectors[0] - vectors[2]).max() > 1e-3


def test_int8_weights_are_refused_with_the_remedy(drawn_base, drawn_adapter, tmp_path):
    quantize_int8(drawn_base("llama"), tmp_path / "int8")
    with pytest.raises(UnsupportedError, match="merge into the model in floats, and quantize the result"):
        merge_adapter(tmp_path / "int8", load_adapter_file(drawn_adapter("llama")), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
