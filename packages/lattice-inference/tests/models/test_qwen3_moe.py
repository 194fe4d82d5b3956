"""Qwen3 mixtures of experts: against transformers, in every spelling and form of file, and bit for bit."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qwen3_files as dense_files
import qwen3_moe_files as files
from drawn_adapters import write_adapter
from drawn_checkpoints import draw_ids
from lattice_inference import Extension, load_adapter_file, load_encoder, load_model, merge_adapter
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.graph.batch import Batch
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.models.family import LOGITS, vectors
from lattice_inference.models.opened_model import open_model
from lattice_inference.quantize import Calibrator, quantize_gguf, quantize_int8
from qwen3_gguf import write_gguf_py

FOLDER = Path(__file__).parents[1] / "data" / "qwen3"
OUTPUTS = FOLDER / "outputs.npz"
LLAMA_CPP = json.loads((FOLDER / "llama_cpp.json").read_text())["cases"]
ROWS = [*range(130), 999]
#: Widths that hold whole blocks of every format that is tested.
WIDE = {"hidden_size": 64, "moe_intermediate_size": 96, "intermediate_size": 96, "head_dim": 32}
#: With the small tokenizer's vocabulary.
WITH_TOKENS = files.CASES["moe"] | {"vocab_size": dense_files.SMALL_VOCAB}
WIDER = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256, "head_dim": 64}


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
@pytest.mark.parametrize("spelling", ["single", "fused", "swapped"])
@pytest.mark.parametrize("name", list(files.CASES))
def test_logits_equal_those_of_transformers_at_every_length(tmp_path, name, spelling):
    directory = files.write(tmp_path / "m", files.CASES[name], spelling=spelling)
    ids = draw_ids(f"qwen3:{name}", 1000, 64)
    with np.load(OUTPUTS) as stored, load_model(directory) as model:
        got = all_logits(model, ids, dtype="float32")
        assert np.abs(got[ROWS] - stored[f"logits-{name}"]).max() <= 1e-5
        for length in (1, 16, 17, 130):
            assert all_logits(model, ids[:length], dtype="float32").tobytes() == got[:length].tobytes()


@pytest.mark.parametrize("name", list(files.CASES))
def test_the_reference_backend_runs_mixtures(tmp_path, name):
    directory = files.write(tmp_path / "m", files.CASES[name])
    with np.load(OUTPUTS) as stored, load_model(directory, backend="reference") as model:
        got = all_logits(model, draw_ids(f"qwen3:{name}", 1000, 64)[:20], dtype="float32")
        assert np.abs(got - stored[f"logits-{name}"][:20]).max() <= 1e-5


def test_a_sharded_checkpoint_and_every_spelling_are_the_same(tmp_path):
    ids = draw_ids("shards", 40, 64)
    directory = files.write(tmp_path / "m", files.CASES["moe-mixed"])
    with load_model(directory) as model:
        want = all_logits(model, ids).tobytes()
    for spelling in ("fused", "swapped"):
        with load_model(files.write(tmp_path / spelling, files.CASES["moe-mixed"], spelling=spelling)) as model:
            assert all_logits(model, ids).tobytes() == want, spelling
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {}
    for number in range(7):
        file = f"model-{number + 1:05}-of-00007.safetensors"
        part = dict(list(tensors.items())[number::7])
        save_file(part, directory / file)
        index |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with load_model(directory) as model:
        assert all_logits(model, ids).tobytes() == want


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "stored"])
def test_chunks_and_company_change_no_bit(tmp_path, precision):
    directory, ids = files.write(tmp_path / "m", files.CASES["moe-mixed"]), draw_ids("chunks", 60, 64)
    with load_model(directory, precision=precision, threads=2) as model:
        at_once = all_logits(model, ids)
        for chunks in ([1] * len(ids), [3, 1, 29, 20]):
            assert all_logits(model, ids, chunks).tobytes() == at_once.tobytes(), chunks
        with model.open_cache(tokens=200) as cache:
            others = [Extension(cache.sequence(), draw_ids(f"other{n}", n, 64), "all") for n in (1, 40)]
            rows = model.forward([others[0], Extension(cache.sequence(), ids, "all"), others[1]])
        assert rows[1 : 1 + len(ids)].tobytes() == at_once.tobytes()


@pytest.mark.parametrize("head", [LOGITS, vectors("last")], ids=["generates", "embeds"])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "Q8_0", pytest.param("Q4_K", marks=pytest.mark.slow)])
def test_fusion_and_the_level_change_no_bit(tmp_path, form, head):
    is_blocks = form.startswith("Q")
    path = files.write(tmp_path / "m", files.CASES["moe"] | (WIDER if form == "Q4_K" else WIDE))
    if is_blocks:
        path = write_gguf_py(tmp_path / "m.gguf", path, quantized=form)
    ids = np.array(draw_ids("levels", 50, 64), np.int32)
    pages = {"context_lengths": np.zeros(1, np.int32), "block_table": (np.arange(4, dtype=np.int32),)}
    rows = {"logit_rows": np.arange(0, 50, 5, dtype=np.int32)}
    batch = Batch(ids, np.array([0, 50], np.int32), **({**pages, **rows} if head is LOGITS else {}))
    options = {"precision": "stored" if is_blocks else form}
    if form == "bfloat16":
        options["bfloat16_products"] = "float32"
    found = {}
    with open_model(path) as model:
        program = model.program(head)
        for isa in _cpu.available_isas():
            for fused in (True, False):
                ready = CpuBackend(isa=isa, fused=fused, **options).compile(program, model.tensors(head))
                state = CpuBackend.open_state(program.kv_specs, page_tokens=16, pages=4) if head is LOGITS else None
                found[isa, fused] = ready.run(batch, state=state)["logits" if head is LOGITS else "pooled"].tobytes()
    for isa in _cpu.available_isas():
        assert found[isa, True] == found[isa, False], isa
    assert len({bits for (isa, _), bits in found.items() if isa != "baseline"}) == 1


@pytest.mark.parametrize("joined", [False, True])
def test_a_gguf_file_of_gguf_py_gives_the_bits_of_the_directory(tmp_path, joined):
    directory, ids = files.write(tmp_path / "m", files.CASES["moe"]), draw_ids("gguf", 60, 64)
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False, joined=joined)
    with load_model(path) as model, load_model(directory) as same:
        assert model.config.experts == same.config.experts
        want = all_logits(same, ids, dtype="float32")
        assert all_logits(model, ids, dtype="float32").tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_the_most_likely_tokens_are_those_of_llama_cpp(tmp_path, name):
    case = LLAMA_CPP[name]
    if name == "dense":
        content = dense_files.reranker_files(dense_files.small_tokenizer(ends=False))
        directory = dense_files.write(tmp_path / "m", content, seed=case["seed"])
    else:
        changes = files.CASES["moe"] | {"vocab_size": dense_files.SMALL_VOCAB}
        directory = files.write(tmp_path / "m", changes, seed=case["seed"])
    with load_model(write_gguf_py(tmp_path / "m.gguf", directory)) as model, model.open_cache(tokens=64) as cache:
        sequence, tokens = cache.sequence(), list(case["prompt"])
        added = tokens
        for _ in case["tokens"]:
            added = [int(model.forward([Extension(sequence, added)])[0].argmax())]
            tokens += added
    assert tokens[len(case["prompt"]) :] == case["tokens"]


@pytest.mark.parametrize("quantized", ["Q8_0", "Q4_0", "Q4_1", "Q4_K"])
def test_quantized_files_give_the_same_bits_in_any_chunks(tmp_path, quantized):
    directory = files.write(tmp_path / "m", files.CASES["moe"] | (WIDER if quantized == "Q4_K" else WIDE))
    path = write_gguf_py(tmp_path / "m.gguf", directory, quantized=quantized)
    ids = draw_ids(quantized, 60, 64)
    with load_model(path) as model, load_model(path, activations="float32") as exact:
        experts = [weight for weight in model.weight_sizes if "_exps" in weight.name]
        assert {weight.dtype for weight in experts} == {quantized}
        # packed, they take what the file has of them
        stored = sum(need.nbytes for need in estimate_memory(path).weights if "_exps" in need.name)
        assert sum(weight.nbytes for weight in experts) <= 1.05 * stored
        at_once, widened = all_logits(model, ids), all_logits(exact, ids)
        for chunks in ([1] * len(ids), [3, 1, 29]):
            assert all_logits(model, ids, chunks).tobytes() == at_once.tobytes(), chunks
    assert 0 < np.abs(at_once - widened).mean() < 0.1 * np.abs(widened).mean()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_our_quantizer_takes_stacks_and_leaves_routers(tmp_path, kind):
    exact = write_gguf_py(tmp_path / "exact.gguf", files.write(tmp_path / "m", files.CASES["moe"] | WIDE))
    quantize_gguf(exact, tmp_path / "small.gguf", kind)
    ids = draw_ids(kind, 50, 64)
    with load_model(tmp_path / "small.gguf") as model, load_model(exact) as same:
        stored = {weight.name: weight.dtype for weight in model.weight_sizes}
        assert {dtype for name, dtype in stored.items() if "_exps" in name} == {kind}
        assert {dtype for name, dtype in stored.items() if "gate_inp" in name} == {"float32"}
        difference = np.abs(all_logits(model, ids) - all_logits(same, ids)).mean()
    assert 0 < difference < 0.5
    with open_model(tmp_path / "small.gguf") as model:
        assert model.checkpoint.info("blk.0.ffn_gate_inp.weight").dtype == "F32"


def changed(tmp_path, config=None, tensors=None, *, spelling="single", case="moe"):
    """A directory with another configuration, and tensors replaced, or left out where they are None."""
    directory = files.write(tmp_path / "m", files.CASES[case], spelling=spelling)
    stored = json.loads((directory / "config.json").read_text()) | (config or {})
    (directory / "config.json").write_text(json.dumps(stored))
    found = load_file(directory / "model.safetensors") | (tensors or {})
    save_file({name: array for name, array in found.items() if array is not None}, directory / "model.safetensors")
    return directory


AT = "model.layers.1.mlp."


@pytest.mark.parametrize(
    ("config", "tensors", "spelling", "error", "problem"),
    [
        ({"num_experts_per_tok": 9}, {}, "single", ModelConfigError, "num_experts_per_tok: 9 is more than the 8"),
        ({"num_experts_per_tok": 0}, {}, "single", ModelConfigError, "num_experts_per_tok"),
        ({"num_experts": 2**20}, {}, "single", ModelConfigError, "num_experts"),
        ({"num_local_experts": 4}, {}, "single", ModelConfigError, "num_local_experts"),
        ({"norm_topk_prob": 1}, {}, "single", ModelConfigError, "norm_topk_prob"),
        ({"mlp_only_layers": [2]}, {}, "single", ModelConfigError, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, {}, "single", ModelConfigError, "decoder_sparse_step"),
        ({"moe_intermediate_size": 21}, {}, "single", CheckpointError, r"experts\.0\.gate_proj\.weight \(20, 44\)"),
        ({"num_experts": 7}, {}, "single", CheckpointError, r"experts\.7\..*the configuration has 7 experts"),
        ({"num_experts": 4000}, {}, "single", CheckpointError, r"mlp\.gate\.weight \(8, 44\)"),
        ({"mlp_only_layers": [1]}, {}, "single", CheckpointError, r"holds no tensor .*layers\.1\.mlp\.gate_proj"),
        ({}, {f"{AT}experts.3.up_proj.weight": None}, "single", CheckpointError, r"experts\.3\.up_proj"),
        ({}, {f"{AT}gate.weight": None}, "single", CheckpointError, r"holds no tensor 'model\.layers\.1\.mlp\.gate"),
        ({}, {f"{AT}gate.weight": np.zeros((7, 44), np.float32)}, "single", CheckpointError, r"mlp\.gate\.weight \(7"),
        ({}, {f"{AT}experts.down_proj": np.zeros((8, 44, 20), np.float32)}, "single", CheckpointError, "two spellings"),
        (
            {},
            {f"{AT}experts.down_proj": None},
            "fused",
            CheckpointError,
            r"holds no tensor .*1\.mlp\.experts\.down_proj",
        ),
        ({}, {f"{AT}experts.gate_up_proj": None}, "fused", CheckpointError, r"holds no tensor .*gate_up_proj"),
        (
            {"num_experts": 9},
            {},
            "fused",
            CheckpointError,
            r"gate_up_proj has the shape \(8, 40, 44\); expected \(9, 40",
        ),
        (
            {},
            {f"{AT}experts.gate_up_proj": np.zeros((8, 41, 44), np.float32)},
            "fused",
            CheckpointError,
            r"layers\.1\.mlp\.experts\.gate_up_proj has the shape \(8, 41, 44\)",
        ),
        (
            {},
            {f"{AT}experts.gate_up_proj": np.zeros((8, 40, 44), np.float32)},
            "swapped",
            CheckpointError,
            "with axes swapped",
        ),
        ({"architectures": ["Qwen3ForCausalLM"]}, {}, "single", UnsupportedError, "Qwen3MoeForCausalLM"),
        ({"tie_word_embeddings": True}, {}, "single", CheckpointError, r"lm_head\.weight is not"),
    ],
)
def test_files_that_are_no_mixture_are_refused_before_much_is_allocated(
    tmp_path, config, tensors, spelling, error, problem
):
    directory = changed(tmp_path, config, tensors, spelling=spelling)
    tracemalloc.start()
    with pytest.raises(error, match=problem):
        load_model(directory)
    assert tracemalloc.get_traced_memory()[1] < 16_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("keys", "drop", "error", "problem"),
    [
        ({"qwen3moe.expert_used_count": 9}, (), ModelConfigError, "expert_used_count: 9 is more than the 8"),
        ({"qwen3moe.expert_count": 9}, (), CheckpointError, r"ffn_down_exps\.weight has the shape \(8, 44, 20\)"),
        ({}, ("blk.1.ffn_up_exps.weight",), CheckpointError, r"holds no tensor 'blk\.1\.ffn_up_exps"),
        ({}, ("blk.1.ffn_gate_inp.weight",), CheckpointError, r"holds no tensor 'blk\.1\.ffn_gate_inp"),
    ],
)
def test_gguf_files_that_are_no_mixture_are_refused(tmp_path, keys, drop, error, problem):
    directory = files.write(tmp_path / "m", files.CASES["moe"])
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False, keys=keys, drop=drop)
    with pytest.raises(error, match=problem):
        load_model(path)


def test_adapters_change_attention_and_no_experts(tmp_path):
    base = files.write(tmp_path / "m", files.CASES["moe"])

    def adapter(module, rows, columns):
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [module.rpartition(".")[2]]}
        at = f"base_model.model.model.layers.0.{module}.lora_"
        tensors = {f"{at}A.weight": [2, columns], f"{at}B.weight": [rows, 2]}
        return load_adapter_file(write_adapter(tmp_path / module, module, {"config": config, "tensors": tensors}))

    merge_adapter(base, adapter("self_attn.q_proj", 80, 44), tmp_path / "merged")
    before, after = (load_file(path / "model.safetensors") for path in (base, tmp_path / "merged"))
    changed = [name for name in before if before[name].tobytes() != after[name].tobytes()]
    assert changed == ["model.layers.0.self_attn.q_proj.weight"]
    for module, rows in (("mlp.experts.3.gate_proj", 20), ("mlp.gate_proj", 20), ("mlp.gate", 8)):
        with pytest.raises(InvalidInputError, match=module.replace(".", r"\.")):
            merge_adapter(base, adapter(module, rows, 44), tmp_path / "refused")


@pytest.mark.parametrize("spelling", ["single", "fused", "swapped"])
@pytest.mark.parametrize("name", list(files.CASES))
def test_a_mixture_written_as_int8_has_the_bits_of_its_source(tmp_path, name, spelling):
    directory = files.write(tmp_path / "m", files.CASES[name], spelling=spelling)
    ids, written = draw_ids("int8", 60, 64), []
    quantize_int8(directory, tmp_path / "small", on_tensor=written.append)
    stored = load_file(tmp_path / "small" / "model.safetensors")
    experts = {tensor for tensor in stored if ".experts." in tensor and not tensor.endswith("_scale")}
    assert {stored[tensor].dtype for tensor in experts} == {np.dtype(np.int8)}
    assert set(written) == {tensor for tensor in stored if not tensor.endswith("_scale")}
    assert {array.dtype.name for tensor, array in stored.items() if "mlp.gate." in tensor} == {"float32"}
    for options in ({}, {"activations": "float32"}):
        with (
            load_model(directory, precision="int8", **options) as made,
            load_model(tmp_path / "small", **options) as loaded,
        ):
            sizes = [(weight.name, weight.dtype, weight.nbytes) for weight in loaded.weight_sizes]
            if spelling == "single":
                assert sizes == [(weight.name, weight.dtype, weight.nbytes) for weight in made.weight_sizes]
            assert all_logits(loaded, ids).tobytes() == all_logits(made, ids).tobytes()


def test_a_mixture_in_int8_computes_with_the_rounded_weights(tmp_path):
    directory = files.write(tmp_path / "m", files.CASES["moe"])
    rounded = load_file(directory / "model.safetensors")
    for name, array in rounded.items():
        if "embed_tokens" in name:
            rounded[name] = array.astype(np.float16).astype(np.float32)
        elif array.ndim == 2 and "mlp.gate." not in name:
            scales = np.abs(array).max(axis=1, keepdims=True) / np.float32(127)
            rounded[name] = np.rint(array / scales) * scales
    exact = files.write(tmp_path / "exact", files.CASES["moe"])
    save_file(rounded, exact / "model.safetensors")
    quantize_int8(directory, tmp_path / "small")
    ids = draw_ids("rounded", 60, 64)
    with (
        load_model(exact) as want,
        load_model(tmp_path / "small", activations="float32") as got,
        load_model(tmp_path / "small") as integers,
    ):
        expected = all_logits(want, ids, dtype="float32")
        assert np.abs(all_logits(got, ids, dtype="float32") - expected).max() <= 1e-5
        off = np.abs(all_logits(integers, ids, dtype="float32") - expected).mean()
        assert 0 < off < 0.05 * np.abs(expected).mean()


def test_a_calibrated_mixture_has_ranges_for_its_linears_alone(tmp_path):
    directory, ids = files.write(tmp_path / "m", WITH_TOKENS), draw_ids("ranges", 60, 64)
    with Calibrator(directory) as calibrator:
        calibrator.observe(["some text to see", "and more"])
        calibration = calibrator.calibration()
    quantize_int8(directory, tmp_path / "small", calibration=calibration)
    ranges = [name for name in load_file(tmp_path / "small" / "model.safetensors") if name.endswith("_range")]
    assert ranges
    assert not any("experts" in name for name in ranges)
    with (
        load_model(directory, precision="int8", calibration=calibration) as made,
        load_model(tmp_path / "small") as loaded,
    ):
        assert all_logits(loaded, ids).tobytes() == all_logits(made, ids).tobytes()


def test_a_mixture_embeds(tmp_path):
    whole = {"architectures": ["Qwen3MoeModel"], "vocab_size": dense_files.SMALL_VOCAB}
    directory = files.write(tmp_path / "m", files.CASES["moe"] | whole)
    texts = ["a", "the same text", "x" * 50]
    with load_encoder(directory, pooling="last") as encoder:
        together = encoder.encode(texts).vectors
        for text, vector in zip(texts, together, strict=True):
            assert encoder.encode([text]).vectors[0].tobytes() == vector.tobytes()
