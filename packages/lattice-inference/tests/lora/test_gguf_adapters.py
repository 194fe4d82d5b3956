"""Adapters in GGUF files, read and written by gguf-py; and adapters merged into GGUF models."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_models import write_decoder_gguf
from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.lora import (
    blend,
    in_row_order,
    load_adapter_file,
    merge_adapter,
    save_gguf,
    save_peft_safetensors,
    unmerge,
)
from lattice_inference.quantize import quantize_gguf


@pytest.fixture(scope="module")
def llama_gguf(drawn_base, tmp_path_factory):
    return write_decoder_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf", drawn_base("llama"))


def write_with_gguf_py(path, tensors, **changes):
    settings = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"} | changes
    writer = gguf.GGUFWriter(path, settings.pop("general.architecture"))
    for key, value in settings.items():
        if value is not None:
            writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(rows, heads):
    """llama.cpp's order of the rows of queries and keys, by its own recipe."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


PAIR = {
    "blk.0.attn_q.weight.lora_a": np.ones((2, 64), np.float32),
    "blk.0.attn_q.weight.lora_b": np.ones((64, 2), np.float32),
}


def test_gguf_py_reads_what_is_written(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    path = save_gguf(adapter, tmp_path / "adapter.gguf", base=drawn_base("llama"))
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.type"] == "adapter"
    assert fields["adapter.type"] == "lora"
    assert fields["general.architecture"] == "llama"
    assert fields["adapter.lora.alpha"] == 8.0
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(tensors) == 12
    site = adapter.sites["model.layers.1.self_attn.q_proj"]
    assert np.array_equal(tensors["blk.1.attn_q.weight.lora_a"], site.a)
    assert np.array_equal(tensors["blk.1.attn_q.weight.lora_b"], permuted(site.b, 4))
    value = adapter.sites["model.layers.1.self_attn.v_proj"]
    assert np.array_equal(tensors["blk.1.attn_v.weight.lora_b"], value.b)


@pytest.mark.parametrize(("name", "base"), [("llama", "llama"), ("llama-all-linear", "llama"), ("qwen3", "qwen3")])
def test_an_adapter_comes_back_from_a_gguf_file(drawn_base, drawn_adapter, tmp_path, name, base):
    adapter = load_adapter_file(drawn_adapter(name))
    path = save_gguf(adapter, tmp_path / "adapter.gguf", base=drawn_base(base))
    back = in_row_order(load_adapter_file(path), drawn_base(base), "half")
    assert back.base_model == adapter.base_model
    assert set(back.sites) == set(adapter.sites)
    for module, site in adapter.sites.items():
        update = site.scale * (site.b @ site.a)
        assert np.allclose(back.sites[module].scale * (back.sites[module].b @ back.sites[module].a), update, atol=1e-7)
    first = path.read_bytes()
    save_gguf(adapter, path, base=drawn_base(base), overwrite=True)
    assert path.read_bytes() == first


def test_an_adapter_of_gguf_py_merges_as_llama_cpp_applies_it(llama_gguf, drawn_base, logits_of, tmp_path):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 64)).astype(np.float16), rng.normal(size=(32, 2)).astype(np.float16)
    names = {"blk.2.attn_k.weight.lora_a": a, "blk.2.attn_k.weight.lora_b": permuted(b, 2)}
    path = write_with_gguf_py(tmp_path / "adapter.gguf", names, **{"adapter.lora.alpha": 0.5})
    adapter = load_adapter_file(path)
    assert adapter.row_order == "interleaved"
    merge_adapter(llama_gguf, adapter, tmp_path / "merged.gguf")
    merge_adapter(drawn_base("llama"), adapter, tmp_path / "merged")
    with open_gguf(llama_gguf) as before, open_gguf(tmp_path / "merged.gguf") as after:
        update = 0.25 * (permuted(b, 2).astype(np.float32) @ a.astype(np.float32))
        name = "blk.2.attn_k.weight"
        assert np.abs(after.float32(name) - before.float32(name) - update).max() <= 1e-6
        others = [each for each in before.names() if each != name]
        assert all(after.array(each).tobytes() == before.array(each).tobytes() for each in others)
        assert dict(after.metadata) == dict(before.metadata)
    from_file, from_directory = (logits_of(tmp_path / each, "llama") for each in ("merged.gguf", "merged"))
    assert np.abs(from_file - from_directory).max() <= 1e-5
    assert np.abs(from_file - logits_of(llama_gguf, "llama")).max() > 1e-3


def test_over_quantized_weights_16_bits_are_written_unless_a_type_is_asked_for(
    llama_gguf, drawn_adapter, logits_of, tmp_path
):
    adapter = load_adapter_file(drawn_adapter("llama"))
    small = quantize_gguf(llama_gguf, tmp_path / "q8.gguf", "Q8_0").path
    plain = merge_adapter(small, adapter, tmp_path / "plain.gguf")
    asked = merge_adapter(small, adapter, tmp_path / "asked.gguf", dtype="Q4_0")
    assert plain.tensors == {"F16": 6}
    assert asked.tensors == {"Q4_0": 6}
    assert plain.rounding_error < 0.02 < asked.rounding_error
    with open_gguf(small) as before, open_gguf(plain.path) as after:
        site = adapter.sites["model.layers.0.self_attn.v_proj"]
        exact = before.float32("blk.0.attn_v.weight") + site.scale * (site.b @ site.a)
        assert np.array_equal(after.array("blk.0.attn_v.weight"), exact.astype(np.float16))
    assert np.isfinite(logits_of(plain.path, "llama")).all()
    assert np.isfinite(logits_of(asked.path, "llama")).all()


def test_unmerging_a_gguf_model_gives_it_back(llama_gguf, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    merge_adapter(llama_gguf, adapter, tmp_path / "merged.gguf")
    unmerge(tmp_path / "merged.gguf", adapter, tmp_path / "back.gguf")
    with open_gguf(llama_gguf) as before, open_gguf(tmp_path / "back.gguf") as after:
        assert all(np.abs(before.float32(name) - after.float32(name)).max() <= 1e-7 for name in before.names())


def test_neither_the_base_nor_the_adapter_is_overwritten(llama_gguf, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    folder = tmp_path / "folder"
    folder.mkdir()
    base = Path(shutil.copyfile(llama_gguf, folder / "base.gguf"))
    file = save_gguf(adapter, tmp_path / "adapter.gguf", base=base)
    kept = {path: path.read_bytes() for path in (base, file)}
    for place in (base, folder):  # a directory with one GGUF file in it is a base, too
        with pytest.raises(InvalidInputError, match="is the source itself"):
            save_gguf(adapter, base, base=place, overwrite=True)
    with pytest.raises(InvalidInputError, match="is the source itself"):
        merge_adapter(base, load_adapter_file(file), file, overwrite=True)
    assert {path: path.read_bytes() for path in kept} == kept


def test_rows_in_another_order_are_neither_blended_nor_written_for_others(drawn_base, drawn_adapter, tmp_path):
    adapter = load_adapter_file(drawn_adapter("llama"))
    other = load_adapter_file(save_gguf(adapter, tmp_path / "adapter.gguf", base=drawn_base("llama")))
    with pytest.raises(UnsupportedError, match="another order"):
        blend([(adapter, 1), (other, 1)])
    with pytest.raises(UnsupportedError, match="in_row_order"):
        save_peft_safetensors(other, tmp_path / "peft")
    back = in_row_order(other, drawn_base("llama"), "half")
    assert np.array_equal(
        back.sites["model.layers.0.self_attn.q_proj"].b, adapter.sites["model.layers.0.self_attn.q_proj"].b
    )
    save_peft_safetensors(back, tmp_path / "peft")


@pytest.mark.parametrize(
    ("tensors", "changes", "error", "message"),
    [
        (PAIR, {"adapter.lora.alpha": float("nan")}, ModelConfigError, "adapter.lora.alpha"),
        (PAIR, {"adapter.lora.alpha": float("inf")}, ModelConfigError, "adapter.lora.alpha"),
        (PAIR, {"adapter.lora.alpha": None}, ModelConfigError, "adapter.lora.alpha"),
        (PAIR, {"adapter.type": "control_vector"}, UnsupportedError, "control_vector"),
        (PAIR, {"adapter.type": None}, ModelConfigError, "adapter.type"),
        (PAIR, {"general.type": "model"}, CheckpointError, "no adapter"),
        (PAIR, {"general.architecture": "mamba"}, UnsupportedError, "mamba"),
        (dict([*PAIR.items()][:1]), {}, CheckpointError, "half a pair"),
        (PAIR | {"token_embd.weight.lora_a": np.ones((2, 64), np.float32)}, {}, CheckpointError, "token_embd"),
        (PAIR | {"blk.0.attn_q.weight": np.ones((64, 64), np.float32)}, {}, CheckpointError, r"blk\.0\.attn_q\.weight"),
        ({}, {}, CheckpointError, "holds no pair"),
    ],
)
def test_gguf_adapters_that_are_wrong_are_refused(tmp_path, tensors, changes, error, message):
    settings = {"adapter.lora.alpha": 1.0} | changes
    path = write_with_gguf_py(tmp_path / "adapter.gguf", tensors, **settings)
    with pytest.raises(error, match=message):
        load_adapter_file(path)


def test_what_a_gguf_adapter_cannot_hold_is_refused(drawn_base, drawn_adapter, tmp_path):
    with pytest.raises(UnsupportedError, match="pairs of matrices only"):
        save_gguf(load_adapter_file(drawn_adapter("llama-dora")), tmp_path / "adapter.gguf", base=drawn_base("llama"))
    with pytest.raises(InvalidInputError, match="does not have"):
        save_gguf(
            load_adapter_file(drawn_adapter("llama")),
            tmp_path / "adapter.gguf",
            base=drawn_base("cross-encoder-bert-logits"),
        )
    assert not list(tmp_path.iterdir())
