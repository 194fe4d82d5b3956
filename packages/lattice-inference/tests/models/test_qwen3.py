"""Qwen3 as a language model: against transformers at every length, in every form of file, and bit for bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qwen3_files as files
from drawn_checkpoints import draw_ids
from lattice_inference import Extension, load_encoder, load_model
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.checkpoint.computed_tensors import ComputedTensors
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.errors import CheckpointError, ModelConfigError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.models.family import LOGITS, vectors
from lattice_inference.models.llama import HUGGING_FACE_NAMES, ROPE_FREQUENCIES
from lattice_inference.models.opened_model import open_model
from lattice_inference.models.qwen3 import build_qwen3, build_qwen3_encoder, qwen3_names
from lattice_inference.models.qwen3_config import Qwen3Config
from lattice_inference.quantize import quantize_gguf
from qwen3_gguf import write_gguf_py

FOLDER = Path(__file__).parents[1] / "data" / "qwen3"
CASES = json.loads((FOLDER / "cases.json").read_text())["logits"]
ROWS = [*range(130), 999]
#: Widths that hold whole blocks of every format that is tested.
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "vocab_size": 64}


def directory_of(folder, changes, *, prefix="model.", seed="qwen3"):
    content = files.reranker_files(files.small_tokenizer(ends=False))
    content["config.json"] |= changes
    return files.write(folder, content, prefix=prefix, seed=seed)


def all_logits(model, ids, chunks=(), **options):
    rows, start = [], 0
    with model.open_cache(tokens=len(ids), **options) as cache:
        sequence = cache.sequence()
        for count in [*chunks, len(ids)]:
            if start < len(ids):
                rows.append(model.forward([Extension(sequence, ids[start : start + count], "all")]))
                start += count
    return np.concatenate(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_logits_equal_those_of_transformers_at_every_length(tmp_path, name):
    directory, ids = directory_of(tmp_path / "m", CASES[name]), draw_ids(f"qwen3:{name}", 1000, 64)
    with np.load(FOLDER / "outputs.npz") as stored, load_model(directory) as model:
        got = all_logits(model, ids, dtype="float32")
        assert np.abs(got[ROWS] - stored[f"logits-{name}"]).max() <= 1e-5
        for length in (1, 16, 17, 130):
            assert all_logits(model, ids[:length], dtype="float32").tobytes() == got[:length].tobytes()


def test_a_sharded_checkpoint_is_the_same(tmp_path):
    from safetensors.numpy import load_file, save_file

    directory, ids = directory_of(tmp_path / "m", {"vocab_size": 64}), draw_ids("shards", 40, 64)
    with load_model(directory) as model:
        want = all_logits(model, ids)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {}
    names_of_files = [list(tensors)[start : start + 5] for start in range(0, len(tensors), 5)]
    for number, names in enumerate(names_of_files, 1):
        file = f"model-{number:05}-of-00005.safetensors"
        save_file({name: tensors[name] for name in names}, directory / file)
        index |= dict.fromkeys(names, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with load_model(directory) as model:
        assert all_logits(model, ids).tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", _cpu.available_isas())
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["generates", "embeds"])
def test_fusion_and_the_level_change_no_bit(tmp_path, isa, precision, kind):
    directory = directory_of(tmp_path / "m", {"vocab_size": 64, "head_dim": 24})
    config = Qwen3Config.from_mapping(json.loads((directory / "config.json").read_text()))
    names = qwen3_names(HUGGING_FACE_NAMES)
    program = build_qwen3(config, names) if kind == "generates" else build_qwen3_encoder(config, names)
    ids = np.array(draw_ids("fused", 90, 64), np.int32)
    bounds = np.array([0, 90] if kind == "generates" else [0, 1, 40, 90], np.int32)
    pages = {
        "context_lengths": np.zeros(1, np.int32),
        "block_table": (np.arange(6, dtype=np.int32),),
        "logit_rows": np.arange(0, 90, 7, dtype=np.int32),
    }
    batch = Batch(ids, bounds, **(pages if kind == "generates" else {}))
    output = "logits" if kind == "generates" else "normalized"

    def run(**backend):
        with open_checkpoint(directory) as checkpoint:
            source = ComputedTensors(checkpoint, {ROPE_FREQUENCIES: config.rope.frequencies(config.rotary_dim)})
            products = {"bfloat16_products": "float32"} if precision == "bfloat16" else {}
            ready = CpuBackend(precision=precision, **products, **backend).compile(program, source)
        state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=6) if kind == "generates" else None
        return ready.run(batch, state=state)[output].tobytes()

    here = run(isa=isa)
    assert run(isa=isa, fused=False) == here
    if isa != "baseline":
        assert run() == here


@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_0", "Q4_1", "Q4_K"])
def test_quantized_files_give_the_same_bits_in_any_chunks(tmp_path, quantized):
    changes = WIDE | ({"hidden_size": 256, "intermediate_size": 256, "head_dim": 64} if quantized == "Q4_K" else {})
    directory = directory_of(tmp_path / "m", changes)
    path = write_gguf_py(tmp_path / "m.gguf", directory, quantized=quantized)
    ids = draw_ids(quantized, 100, 64)
    with load_model(path) as model, load_model(path, activations="float32") as exact:
        assert any(weight.dtype == quantized for weight in model.weight_sizes)
        at_once = all_logits(model, ids)
        for chunks in ([1] * len(ids), [3, 1, 29, 40], [64, 1]):
            assert all_logits(model, ids, chunks).tobytes() == at_once.tobytes(), chunks
        widened = all_logits(exact, ids)
    assert 0 < np.abs(at_once - widened).mean() < 0.05 * np.abs(widened).mean()
    with load_model(path, precision="float32") as model:  # gguf-py's blocks, read as floats
        assert np.abs(all_logits(model, ids) - widened).max() < 1e-4


@pytest.mark.parametrize("head", [LOGITS, vectors("last")], ids=["generates", "embeds"])
@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_K"])
def test_of_blocks_fusion_and_the_level_change_no_bit(tmp_path, quantized, head):
    changes = WIDE | ({"hidden_size": 256, "intermediate_size": 256, "head_dim": 64} if quantized == "Q4_K" else {})
    path = write_gguf_py(tmp_path / "m.gguf", directory_of(tmp_path / "m", changes), quantized=quantized)
    ids = np.array(draw_ids("blocks", 70, 64), np.int32)
    pages = {"context_lengths": np.zeros(1, np.int32), "block_table": (np.arange(5, dtype=np.int32),)}
    rows = {"logit_rows": np.arange(0, 70, 5, dtype=np.int32)}
    batch = Batch(ids, np.array([0, 70], np.int32), **({**pages, **rows} if head is LOGITS else {}))
    found = {}
    with open_model(path) as model:
        program = model.program(head)
        for isa in _cpu.available_isas():
            for fused in (True, False):
                ready = CpuBackend(isa=isa, fused=fused, precision="stored").compile(program, model.tensors(head))
                state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=5) if head is LOGITS else None
                found[isa, fused] = ready.run(batch, state=state)["logits" if head is LOGITS else "pooled"].tobytes()
    for isa in _cpu.available_isas():
        assert found[isa, True] == found[isa, False], isa
    assert len({bits for (isa, _), bits in found.items() if isa != "baseline"}) == 1


@pytest.mark.parametrize("name", list(CASES))
def test_a_gguf_file_of_gguf_py_gives_the_logits_of_the_directory(tmp_path, name):
    changes = CASES[name] | {"use_sliding_window": False}
    directory, ids = directory_of(tmp_path / "m", changes), draw_ids(name, 60, 64)
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False)
    with load_model(path) as model, load_model(directory) as same:
        assert model.config.head_dim == 20
        want = all_logits(same, ids, dtype="float32")
        assert all_logits(model, ids, dtype="float32").tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_our_quantizer_takes_the_file(tmp_path, kind):
    directory = directory_of(tmp_path / "m", WIDE)
    exact = write_gguf_py(tmp_path / "exact.gguf", directory)
    quantize_gguf(exact, tmp_path / "small.gguf", kind)
    ids = draw_ids(kind, 50, 64)
    with load_model(tmp_path / "small.gguf") as model, load_model(exact) as same:
        difference = np.abs(all_logits(model, ids) - all_logits(same, ids)).mean()
    assert 0 < difference < 0.5


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"architectures": ["Qwen3ForTokenClassification"]}, UnsupportedError, "Qwen3ForTokenClassification"),
        ({"num_key_value_heads": 3}, ModelConfigError, "num_key_value_heads"),
        ({"head_dim": 0}, ModelConfigError, "head_dim"),
        ({"head_dim": 21}, ModelConfigError, "head_dim"),
        ({"tie_word_embeddings": "yes"}, ModelConfigError, "tie_word_embeddings"),
        ({"tie_word_embeddings": False}, CheckpointError, "lm_head.weight"),
        (
            {"layer_types": ["full_attention"], "use_sliding_window": True, "sliding_window": 4},
            ModelConfigError,
            "layer_types",
        ),
        ({"attention_bias": True}, CheckpointError, "q_proj.bias"),
        ({"num_hidden_layers": 900}, CheckpointError, "model.layers.2"),
        ({"hidden_size": 2**20}, CheckpointError, "embed_tokens"),
        ({"quantization_config": {}}, UnsupportedError, "quantization_config"),
    ],
)
def test_a_directory_that_is_no_qwen3_is_refused_before_much_is_allocated(tmp_path, changes, error, problem):
    import tracemalloc

    directory = directory_of(tmp_path / "m", {"vocab_size": 64})
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    for load in (load_model, partial(load_encoder, pooling="last")):
        if problem == "lm_head.weight" and load is not load_model:
            continue  # an encoder needs no output matrix
        tracemalloc.start()
        with pytest.raises(error, match=problem):
            load(directory)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
        tracemalloc.stop()


def test_a_head_that_differs_from_the_embedding_it_is_said_to_be_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    directory = directory_of(tmp_path / "m", {"vocab_size": 64})
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, directory / "model.safetensors")
    for load in (load_model, partial(load_encoder, pooling="last")):
        with pytest.raises(CheckpointError, match=r"lm_head\.weight is not model\.embed_tokens\.weight"):
            load(directory)


@pytest.mark.parametrize("model_type", ["qwen4_exp"])
def test_relatives_that_are_not_built_are_refused_by_name(tmp_path, model_type):
    directory = directory_of(tmp_path / "m", {"vocab_size": 64, "model_type": model_type})
    for load in (load_model, partial(load_encoder, pooling="last")):
        with pytest.raises(UnsupportedError, match=f"model_type is '{model_type}'"):
            load(directory)


def test_a_dense_gguf_file_with_experts_is_refused_by_name(tmp_path):
    directory = directory_of(tmp_path / "m", {"vocab_size": 64})
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False, keys={"qwen3.expert_count": 8})
    with pytest.raises(UnsupportedError, match="expert_count is not 0"):
        load_model(path)
